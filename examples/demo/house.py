"""The folder of the demonstration, the server over it, and the people in it."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, NoReturn, Self

from runtime_story import furnish

from democrai_sandbox.access.store import open_store
from democrai_sandbox.host.accounts.accounts import Accounts
from democrai_sandbox.host.config import load
from democrai_sandbox.host.scopes import Scope

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PORT = 8420
_MARK = "this folder belongs to the demonstration"
_READY = re.compile(r"democrai-sandbox is ready at (\S+)")
_FIRST = re.compile(r"first login: (\S+), password: (\S+)")
_ENDING = 30
_LOOK = 0.2


class NotStarted(Exception):  # noqa: N818 - it says what happened
    """There is nothing to show."""


class House:
    """The server in a process of its own, for as long as the context lasts."""

    def __init__(self, folder: Path, world: str) -> None:
        """``world`` is the address of the stand-in for what lies outside."""
        _make_anew(folder)
        self._folder = folder
        self._taken = socket.socket(socket.AF_UNIX)
        try:
            self._furnish(folder, world)
        except BaseException:
            self._remove()
            raise

    def _furnish(self, folder: Path, world: str) -> None:
        furnish(folder, world)
        shutil.rmtree(folder / "modules" / "assistant")  # it needs a language model, and there is none here
        self.log = folder / "log"
        self._config = folder / "config.yaml"
        self.url = self.admin = self.password = ""
        settings = {
            "state_dir": str(folder / "state"),
            **{f"{kind}_path": str(folder / kind) for kind in ("modules", "engines", "extractors")},
            "sandbox": {"poll_seconds": 0.2},
            "server": {"port": self._take_port()},
        }
        self._config.write_text(json.dumps(settings, indent=2))  # every JSON document is YAML
        self._config.chmod(0o600)
        self._scratch = str(folder / "scratch")

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "democrai_sandbox.cli", "serve", "--config", str(self._config)]
        environ = {**os.environ, "TMPDIR": self._scratch}
        with self.log.open("w") as log:
            # In a session of its own, so that Ctrl-C reaches only this process, which then ends the other in order.
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environ, start_new_session=True
            )
        try:
            self._read(self._process.stdout or ())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def wait(self) -> NoReturn:
        """Wait for the server's end."""
        # Not by waiting for good: a signal that comes just before that would be noticed with the next one only.
        while self._process.poll() is None:
            time.sleep(_LOOK)
        raise NotStarted(f"the server has ended:\n{self._last_words()}")

    def people(self) -> tuple[str, str]:
        """Make uma, who uses modules, and return her token; and one that looks at requests for the administrator."""
        settings = load(self._config, environ={}).settings
        with closing(open_store(settings.database)) as store:
            accounts = Accounts(store.database, settings)
            uma = accounts.create_person("uma", secrets.token_urlsafe(), actor="demo")
            _, hers = accounts.create_token(uma.id, "demo", (Scope.MODULES_RUN,), None)
            _, looks = accounts.create_token(self.admin, "demo", (Scope.REQUESTS_READ,), None)
        return hers, looks

    def _read(self, lines: Iterable[str]) -> None:
        """Read what the server says until it is ready."""
        for line in lines:
            if first := _FIRST.match(line):
                self.admin, self.password = first.groups()
            if ready := _READY.match(line):
                self.url = ready[1]
                return
        raise NotStarted(f"the server did not start:\n{self._last_words()}")

    def _last_words(self) -> str:
        """Return what the server said, or why it could not say it."""
        free = shutil.disk_usage(self._folder).free
        return self.log.read_text() if free else f"the disk of {self._folder} is full: free some space"

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._remove()

    def _remove(self) -> None:
        """Leave nothing: the next start begins anew."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._taken.close()

    def _take_port(self) -> int:
        """Return the usual port, or the next that nobody has, and say so; no other demonstration takes it then.

        A socket without a file stands for the port: the server itself listens only after a while.
        """
        for port in range(PORT, PORT + 100):
            self._taken = socket.socket(socket.AF_UNIX)
            try:
                self._taken.bind(f"\0democrai-demonstration-{port}")
                with socket.socket() as trial:
                    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    trial.bind(("127.0.0.1", port))
            except OSError:
                self._taken.close()
                continue
            if port != PORT:
                print(f"Port {PORT} is taken: {port} is used in its place.\n")
            return port
        return 0


def _make_anew(folder: Path) -> None:
    """Empty the folder, if it is ours: each start is a fresh story."""
    mark = folder / ".demo"
    if folder.exists() and any(folder.iterdir()) and not mark.is_file():
        raise NotStarted(f"{folder} is not empty, and not of the demonstration: name another one")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    mark.write_text(_MARK)
