"""Counts words, in a process of its own, on packages of its own."""

from __future__ import annotations

import subprocess
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import wordtools

from democrai_sandbox import sdk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@sdk.method("count")
def count(text: str) -> dict[str, object]:
    """Return how many words a text has."""
    return {"words": len(wordtools.words(text)), "with": f"wordtools {wordtools.VERSION}"}


@sdk.method("frequent")
def frequent(text: str) -> Iterator[list[object]]:
    """Yield the words by how often they come, one by one."""
    for word, times in Counter(wordtools.words(text)).most_common():
        yield [word, times]


@sdk.method("look_up")
def look_up(word: str) -> str:
    """Return what the configured dictionary says; its URL is allowed because the manifest names the key."""
    url = f"{sdk.engines.settings()['dictionary_url']}/{word}"
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - an administrator configured it
        return answer.read(10_000).decode()


@sdk.method("remember")
def remember(text: str) -> int:
    """Keep a text among the engine's own data; return how many there are."""
    notes = sdk.data_dir() / "notes.txt"
    with notes.open("a") as file:
        file.write(text + "\n")
    return len(notes.read_text().splitlines())


@sdk.method("misbehave")
def misbehave() -> dict[str, str]:
    """Try what an engine must not do while it serves, and return what became of it."""
    installed = Path(wordtools.__file__)
    attempts = {
        "read a file of the host": lambda: Path("/etc/passwd").read_text(),
        "start a program": lambda: subprocess.run(["/bin/true"], check=True),
        "reach another host": lambda: urllib.request.urlopen("http://203.0.113.7/", timeout=1),
        "change an installed package": lambda: installed.write_text("VERSION = 'mine'"),
        "put a start file into the environment": lambda: (installed.parent / "mine.pth").write_text("import os"),
        "look at the data of others": lambda: list(sdk.data_dir().parent.iterdir()),
    }
    return {name: _try(attempt) for name, attempt in attempts.items()}


def _try(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except PermissionError as error:
        return type(error).__name__
    return "it worked"
