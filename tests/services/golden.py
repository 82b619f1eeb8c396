"""Golden sentences: texts of the product, kept in one file per test package below ``tests/golden``.

sentence("unknown tool", told["unknown"]["text"])        # compares with the entry "unknown tool" of this test file
sentence("no folder", str(error), folder=tmp_path)       # the folder is written as /folder

A test first compares codes, fields and values; a sentence is kept here where it is what the user gets to read. ``make
golden`` writes the files again, so that rewording is one command and one diff to review.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
GOLDEN = TESTS / "golden"
IS_UPDATING = bool(os.environ.get("UPDATE_GOLDENS"))

_ID = re.compile(r"\b0[0-9a-hjkmnp-tv-z]{25}\b")
_HASH = re.compile(r"\b[0-9a-f]{64}\b")
_TIME = re.compile(r"\b20\d\d-\d\d-\d\d(?P<gap>[T ])\d\d:\d\d:\d\d(?P<part>\.\d+)?")
_CLOCK = re.compile(r"\b\d\d:\d\d:\d\d\b")
_AGE = re.compile(r"(?m)(?<=  )\d{1,2}[smhd](?=  |$) *")
_PORT = re.compile(r"(?<=127\.0\.0\.1:)\d{4,5}\b")


def sentence(name, text, folder=None, also=()):
    """Compare a text with the entry of this name; `also` has patterns and what they are replaced with."""
    test = Path(sys._getframe(1).f_globals["__file__"]).resolve().relative_to(TESTS)
    found = settled(text, folder)
    for pattern, instead in also:
        found = re.sub(pattern, instead, found)
    key = f"{test} {name}"
    file = GOLDEN / f"{test.parts[0].removesuffix('.py')}.txt"
    if IS_UPDATING:
        with _locked(file) as entries:
            entries[key] = found
        return
    kept = _read_once(file)
    assert key in kept, f"{file.name} has no entry {key!r}: `make golden` writes it, from\n{found}"
    assert found == kept[key], f"not as in {file.name}; if the new text is right, run `make golden`"


def settled(text, folder=None):
    """Return a text with ids, times, ports and a folder replaced by fixed texts."""
    if folder is not None:
        text = re.sub(r"(?<=\S)  +", "  ", text.replace(str(folder), "/folder"))
    ids = {}
    text = _ID.sub(lambda match: ids.setdefault(match[0], f"id-{len(ids) + 1}-".ljust(26, "x")), text)
    text = _HASH.sub("h" * 64, text)
    text = _TIME.sub(lambda match: f"2026-01-02{match['gap']}03:04:05" + ("." + "0" * 6 if match["part"] else ""), text)
    text = _CLOCK.sub("03:04:05", text)
    text = re.sub(r"[ \t]+$", "", _AGE.sub(lambda match: "0s".ljust(len(match[0])), text), flags=re.MULTILINE)
    return _PORT.sub("80800", text).replace("\x1b", "␛")


def read(file):
    """Return the entries of a golden file: a line with the name, then the text, each line of it behind a bar."""
    entries = {}
    name = None
    for line in file.read_text().split("\n") if file.exists() else ():
        if line.startswith("|"):
            entries[name].append(line[2:])
        elif line:
            name = line
            entries[name] = []
    return {name: "\n".join(lines) for name, lines in entries.items()}


@cache
def _read_once(file):
    return read(file)


@contextmanager
def _locked(file):
    """Give the entries of a file to be changed; other workers wait for their turn."""
    GOLDEN.mkdir(exist_ok=True)
    lock = os.open(GOLDEN, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = read(file)
        yield entries
        file.write_text("\n".join(_entry(name, text) for name, text in sorted(entries.items())))
    finally:
        os.close(lock)


def _entry(name, text):
    lines = [f"| {line}" if line else "|" for line in text.split("\n")]
    return "\n".join([name, *lines, ""])


# --- make golden ------------------------------------------------------------------------------------------------------


def main():
    """Write all golden files, error pages and the command reference again; the exit status is that of the tests."""
    old = {file: read(file) for file in GOLDEN.glob("*.txt")}
    for file in old:
        file.unlink()
    users = [
        file
        for file in sorted(TESTS.rglob("test_*.py"))
        if re.search(r"\b(golden|sentence|transcript)\(", file.read_text())
    ]
    with tempfile.NamedTemporaryFile("r") as skipped:
        command = [sys.executable, "-m", "pytest", "-q", "--workers", str(os.cpu_count()), "--untested", skipped.name]
        status = subprocess.run([*command, *users], env=os.environ | {"UPDATE_GOLDENS": "1"}).returncode
        if status or skipped.read():
            print("golden: some tests failed or were skipped; the entries that they did not write are kept")
            keep(old)
    pages = [sys.executable, "-m", "democrai_sandbox.errors", TESTS.parent / "docs" / "errors"]
    subprocess.run(pages, check=True)
    subprocess.run([sys.executable, "-m", "tests.docs.reference"], check=True)
    subprocess.run([sys.executable, "-m", "tests.guard.attacks.record_shown"], check=True)
    return status


def keep(old):
    """Add entries that are not written anew."""
    for file, entries in old.items():
        with _locked(file) as current:
            current |= {name: text for name, text in entries.items() if name not in current}


if __name__ == "__main__":
    sys.exit(main())
