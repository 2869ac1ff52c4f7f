"""From a name to a frozen backbone: where it comes from, what it is, and which settings suit this machine."""
