"""Single runs: a script in a separate guarded process, and programs confined by the kernel."""
