"""Cases by theme. Importing this package registers every case, in the order of the table."""

from __future__ import annotations

from bench.cases import files, imports

# isort: split
from bench.cases import sockets

# isort: split
from bench.cases import clients, concurrency, guards

# isort: split
from bench.cases import interpreter, sweeps

# isort: split
from bench.cases import rules

# isort: split
from bench.cases import access

# isort: split
from bench.cases import extensions, nesting, provenance, workers

# isort: split
from bench.cases import egress, isolation, spawning

# isort: split
from bench.cases import console

# isort: split
from bench.cases import packages, work
from bench.registry import CASES

__all__ = [
    "CASES",
    "access",
    "clients",
    "concurrency",
    "console",
    "egress",
    "extensions",
    "files",
    "guards",
    "imports",
    "interpreter",
    "isolation",
    "nesting",
    "packages",
    "provenance",
    "rules",
    "sockets",
    "spawning",
    "sweeps",
    "work",
    "workers",
]
