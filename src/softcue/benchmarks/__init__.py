"""Speed and memory as ratios, measured interleaved in one run. Never part of a test's verdict."""
