"""Benchmarks of the guard: its cost for a program, idle and guarded, compared with the reference product."""
