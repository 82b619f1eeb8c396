"""How the runtimes use the kernel layer: what processes are held to below Python, and what the allowlist is made of."""
