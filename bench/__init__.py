"""Benchmarks of the guard: what a program pays for it, idle and guarded, next to the reference product."""
