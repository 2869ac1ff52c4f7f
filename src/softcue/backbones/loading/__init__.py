"""From a name to a frozen backbone: its source, its fingerprint, and the fastest settings on this machine."""
