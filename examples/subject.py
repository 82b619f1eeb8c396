"""Somebody else's code: a module that writes reports, and tries a few things it was not given.

It only imports ``SandboxDenied`` so that it can show what it met; code that knows nothing of the sandbox sees an
ordinary ``PermissionError``.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import tempfile
import threading
import urllib.request
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from democrai_sandbox.errors import SandboxDenied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Attempt: TypeAlias = "tuple[str, Callable[[], object]]"
Outcome: TypeAlias = tuple[str, SandboxDenied | None]


def on_disk(reports: Path, inbox: Path) -> Iterator[Attempt]:
    """Yield what the subject tries of files, programs and modules: a sentence, and the call."""
    yield "write its report", partial((reports / "today.txt").write_text, "12 requests, all fine\n")
    yield "read its report again", (reports / "today.txt").read_text
    yield "read the inbox", (inbox / "letter.txt").read_text
    yield "change a letter in the inbox", partial((inbox / "letter.txt").write_text, "forged")
    yield "follow a link out of its folder", (reports / "shortcut").read_text
    yield "read the password file", Path("/etc/passwd").read_text
    yield "read it from a raw thread", in_a_thread(Path("/etc/passwd").read_text)
    yield "run a program", partial(subprocess.run, ["/bin/true"], check=True)
    yield "import ctypes", partial(importlib.import_module, "ctypes")
    yield "rename itself for its children", partial(os.putenv, "DEMOCRAI_NETWORK_SUBJECT", "core")
    yield "use a temporary file", use_scratch


def on_the_network(server: str) -> Iterator[Attempt]:
    """Yield what the subject tries of the network."""
    address = urlsplit(server)
    yield "fetch the news", partial(fetch, f"{server}/news/today")
    yield "fetch another page of that server", partial(fetch, f"{server}/accounts")
    yield "follow a redirect to another page", partial(fetch, f"{server}/news/moved")
    yield "post to the news", partial(fetch, f"{server}/news", b"forged")
    yield "open a raw socket to that server", partial(socket.create_connection, (address.hostname, address.port))
    yield "look up a name it did not declare", partial(socket.getaddrinfo, "data.example.com", 443)
    yield "fetch what an administrator approved", partial(fetch, f"{server}/weather")


def fetch(url: str, data: bytes | None = None) -> bytes:
    """Return what a URL holds, or send something there."""
    with urllib.request.urlopen(url, data, timeout=10) as answer:  # noqa: S310 - the host gave the scheme
        return bytes(answer.read())


def in_a_thread(call: Callable[[], object]) -> Callable[[], object]:
    """Return the call as made by a thread of its own, whose outcome is handed back."""

    def run() -> object:
        outcome: list[object] = []

        def work() -> None:
            try:
                outcome.append(call())
            except OSError as error:
                outcome.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if isinstance(outcome[0], OSError):
            raise outcome[0]
        return outcome[0]

    return run


def use_scratch() -> int:
    """Write to a temporary file and tell how much."""
    with tempfile.TemporaryFile() as file:
        return file.write(b"scratch")


def work(reports: Path, inbox: Path, server: str) -> list[Outcome]:
    """Try everything and note what was stopped."""
    outcomes: list[Outcome] = []
    for sentence, call in (*on_disk(reports, inbox), *on_the_network(server)):
        try:
            call()
        except SandboxDenied as denial:
            outcomes.append((sentence, denial))
        else:
            outcomes.append((sentence, None))
    return outcomes
