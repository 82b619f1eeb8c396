"""Move torch, and the requirements of its CUDA build only, from a hashed requirement file to another one.

    python scripts/separate_torch.py REQUIREMENTS TORCH

The usual index has a CUDA build of torch, which needs gigabytes of libraries. `compat/torch-cpu.txt` has the build
without CUDA, from other indexes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MOVED = re.compile(r"torch==|triton==|nvidia-|cuda-")


def separate(text: str) -> tuple[str, str]:
    """Return the file without the moved packages, and the file with them."""
    head, *blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)
    kept = [block for block in blocks if not MOVED.match(block)]
    return head + "".join(kept), head + "".join(block for block in blocks if MOVED.match(block))


def main(requirements: str, torch: str) -> None:
    """Write both files."""
    kept, moved = separate(Path(requirements).read_text())
    Path(requirements).write_text(kept)
    Path(torch).write_text(moved)


if __name__ == "__main__":
    main(*sys.argv[1:])
