"""Use of the kernel layer by the runtimes: confinement of processes, and the sources of the egress allowlist."""
