"""One-off runs: a script in a process of its own with a guard in it, and programs that the kernel holds."""
