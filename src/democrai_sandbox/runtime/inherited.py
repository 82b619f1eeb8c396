"""The environment and the interpreter of the host, as they were before any extension ran.

Extensions in this process share ``os.environ`` and ``sys``. What a later child of the host's is started with must not
be theirs: a search path for libraries is code that runs in it before any guard, ``sys.executable`` the program itself.
"""

from __future__ import annotations

import os
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

INTERPRETER = str(sys.executable)
BASE_INTERPRETER = str(getattr(sys, "_base_executable", sys.executable))
"""Of the installation, not of a virtual environment."""
PREFIX = str(sys.prefix)

_settled: Mapping[str, str] | None = None


def settle_environment() -> None:
    """Keep the environment as it is now, for all children from now on. Done by the host, before the first guard."""
    global _settled  # noqa: PLW0603 - settled once
    if _settled is None:
        _settled = MappingProxyType(dict(os.environ))


def host_environment() -> Mapping[str, str]:
    """Return what the host's children are given a part of: as it was settled, or the present one if it was not."""
    return os.environ if _settled is None else _settled
