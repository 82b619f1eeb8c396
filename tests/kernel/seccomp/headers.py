"""System call numbers from other sources than our table."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

DATA = Path(__file__).parent / "data"
GENERIC = Path("/usr/include/asm-generic/unistd.h")
_DEFINE = re.compile(r"^#define __NR(?:3264)?_(\w+) (\w+)$", re.MULTILINE)


@cache
def written_x86_64() -> dict[str, int]:
    """Return the table of the kernel's sources."""
    found = {}
    for line in (DATA / "x86_64.txt").read_text("ascii").splitlines():
        if not line.startswith("#"):
            first, names = line.split(":")
            found |= {name: int(first) + place for place, name in enumerate(names.split())}
    return found


def compiled(header: str, *options: str) -> dict[str, int]:
    """Return the output of the C preprocessor for a header."""
    result = subprocess.run(
        ["gcc", "-E", "-dM", *options, "-include", header, "-x", "c", "/dev/null"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {name: int(value) for name, value in _DEFINE.findall(result.stdout) if value.isdecimal()}


@cache
def own_machine() -> dict[str, int]:
    return compiled("asm/unistd.h")


@cache
def aarch64() -> dict[str, int]:
    """aarch64 has the numbers of the generic table, with these parts of it."""
    if platform.machine() == "aarch64":
        return own_machine()
    parts = ("SYS_CLONE3", "NEW_STAT", "RENAMEAT", "SET_GET_RLIMIT", "MEMFD_SECRET")
    return compiled("asm-generic/unistd.h", *(f"-D__ARCH_WANT_{part}" for part in parts), "-D__BITS_PER_LONG=64")


HEADERS_MISSING = shutil.which("gcc") is None or not GENERIC.exists()
