"""What is measured, by theme. Importing this package registers every case, in the order of the table."""

from __future__ import annotations

from bench.cases import files, imports

# isort: split
from bench.cases import concurrency, guards

# isort: split
from bench.cases import interpreter, sweeps

__all__ = ["concurrency", "files", "guards", "imports", "interpreter", "sweeps"]
