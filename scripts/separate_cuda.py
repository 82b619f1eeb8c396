"""Separate the packages that only a CUDA build of torch needs, and accept the CPU build of torch beside it.

    python scripts/separate_cuda.py REQUIREMENTS CUDA

REQUIREMENTS is a hashed file as `uv pip compile` writes it, and is written again without the packages that go to CUDA.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CUDA = re.compile(r"(?:nvidia|cuda)-|triton==")
CPU_BUILDS = {
    "torch==2.13.0": (
        # torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl, which the index of PyTorch for CPU builds has
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
    )
}
"""Hashes of builds that are not in the usual index, by requirement."""


def separate(text: str) -> tuple[str, str]:
    """Return the file without the packages for CUDA, and a file of these."""
    head, *blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)
    others = [with_cpu_builds(block) for block in blocks if not CUDA.match(block)]
    return head + "".join(others), head + "".join(block for block in blocks if CUDA.match(block))


def with_cpu_builds(block: str) -> str:
    """Return the lines of a package with the hashes of its CPU builds."""
    more = CPU_BUILDS.get(block.split(maxsplit=1)[0], ())
    lines = "".join(f"    --hash=sha256:{digest} \\\n" for digest in more)
    return block.replace("    --hash", f"{lines}    --hash", 1)


def main(requirements: str, cuda: str) -> None:
    """Write both files."""
    others, only = separate(Path(requirements).read_text())
    Path(requirements).write_text(others)
    Path(cuda).write_text(only)


if __name__ == "__main__":
    main(*sys.argv[1:])
