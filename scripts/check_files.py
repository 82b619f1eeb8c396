#!/usr/bin/env python3
"""Check files before a commit: line ends, conflict markers, the syntax of data files, and their size.

usage: scripts/check_files.py FILE ...

Prints each problem with its file and line, and exits with 1 if it found one.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LARGEST = 1_000_000
EXACT = re.compile(r"(?:^|/)(?:golden|corpus)/")
"""Folders of files that tests compare byte by byte."""
CONFLICT = re.compile(r"(?:<{7}|\|{7}|>{7}) ")
READERS: dict[str, Callable[[str], object]] = {
    ".json": json.loads,
    ".toml": tomllib.loads,
    ".yaml": lambda text: list(yaml.safe_load_all(text)),
    ".yml": lambda text: list(yaml.safe_load_all(text)),
}


def problems(name: str, content: bytes) -> Iterator[str]:
    """Yield the problems of one file."""
    if len(content) > LARGEST:
        yield f"{name}: {len(content)} bytes, more than {LARGEST}"
    if EXACT.search(name) or b"\0" in content:
        return
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        yield f"{name}: not UTF-8: {error.reason} at byte {error.start}"
        return
    yield from _lines(name, text)
    if reader := READERS.get(Path(name).suffix):
        try:
            reader(text)
        except (ValueError, yaml.YAMLError) as error:
            yield f"{name}: malformed: {' '.join(str(error).split())}"


def _lines(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.endswith("\r"):
            yield f"{name}:{number}: ends with a carriage return"
        elif line != line.rstrip() and not name.endswith(".md"):
            yield f"{name}:{number}: ends with spaces"
        if CONFLICT.match(line):
            yield f"{name}:{number}: conflict marker"
    if text and not text.endswith("\n"):
        yield f"{name}: no newline at the end"
    if text.endswith("\n\n"):
        yield f"{name}: empty line at the end"


def main(names: list[str]) -> int:
    """Print the problems of all files; the result is the exit status."""
    found = [problem for name in names for problem in problems(name, Path(name).read_bytes())]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
