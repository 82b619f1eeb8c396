"""``python -m tests.services.rewriting``: compiles the tests as pytest does, with words for each assertion that fails.

That takes half of the time in which they are collected, and each worker of pytest would do it for all of them.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from _pytest.assertion import rewrite
from _pytest.config import get_config

HERE = Path(__file__).resolve().parents[1]


def compile_test(file):
    """Compile a file, unless that was done; pytest finds it there as it would leave it there."""
    folder = rewrite.get_cache_dir(file)
    place = folder / f"{file.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(file, place) is None:
        folder.mkdir(parents=True, exist_ok=True)
        source_hash, code = rewrite._rewrite_test(file, None)
        rewrite._write_pyc(SimpleNamespace(trace=print), code, source_hash, place)


def main():
    """Compile all of them, on all processors."""
    files = [*HERE.rglob("test_*.py"), *HERE.rglob("conftest.py")]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_test, files, chunksize=10))
    sys.dont_write_bytecode = False
    get_config().parse([])  # loads the plugins, and leaves them compiled in the same way


if __name__ == "__main__":
    main()
