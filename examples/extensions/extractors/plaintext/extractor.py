"""Takes the paragraphs out of a text, given as bytes or as a file in the folder that the manifest declares."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox import sdk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@sdk.method("extract")
async def extract(data: bytes) -> dict[str, object]:
    """Return the paragraphs of a document."""
    return {"paragraphs": list(_paragraphs(data.decode("utf-8", "replace")))}


@sdk.method("extract_file")
def extract_file(path: str) -> dict[str, object]:
    """Return the paragraphs of a file; whether it may be read, the manifest says."""
    return {"paragraphs": list(_paragraphs(Path(path).read_text("utf-8", "replace")))}


@sdk.method("misbehave")
def misbehave() -> dict[str, str]:
    """Try what an extractor must not do, and return what became of it."""
    attempts = {
        "read a file of the host": lambda: Path("/etc/passwd").read_text(),
        "write beside its own code": lambda: Path(__file__).with_name("mine.py").write_text(""),
        "start a program": lambda: os.system("true"),  # noqa: S605, S607 - it is refused
        "use native code": lambda: importlib.import_module("ctypes"),
    }
    return {name: _try(attempt) for name, attempt in attempts.items()}


def _paragraphs(text: str) -> Iterator[str]:
    for part in text.replace("\r\n", "\n").split("\n\n"):
        if part.strip():
            yield " ".join(part.split())


def _try(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except PermissionError as error:
        return type(error).__name__
    return "it worked"
