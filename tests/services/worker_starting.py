"""Has a host of a test start its workers by orders to the process of tests.services.workers. Loaded by its path."""

from __future__ import annotations

import json
import os
import socket

from democrai_sandbox.runtime.worker import process

START = process.PlainStarter.start
WORDS = 5
"""How many options of the interpreter a worker has."""


class Child:
    """A worker that is a fork: as much of a ``subprocess.Popen`` as its host uses."""

    def __init__(self, link, order, lines):
        self._link = link
        self.returncode = None
        (out, theirs_out), (err, theirs_err) = os.pipe(), os.pipe()
        self.stdout, self.stderr = (open(number, "rb", 0) for number in (out, err))
        text = json.dumps(order).encode()
        socket.send_fds(link, [len(text).to_bytes(8, "big")], [theirs_out, theirs_err, *lines])
        link.sendall(text)
        for number in (theirs_out, theirs_err):
            os.close(number)
        self.pid = self._told()

    def wait(self):
        """Return the exit status; asked for when the process has ended."""
        if self.returncode is None:
            self._link.sendall(b"?")
            self.returncode = self._told()
            self._link.close()
        return self.returncode

    def _told(self):
        text = b""
        while not text.endswith(b"\n"):
            text += self._link.recv(64) or self._lost()
        return int(text)

    def _lost(self):
        raise RuntimeError("the process that forks for workers has ended")


def start_by(place, words):
    """Have workers started at this place, whose process has these words for the interpreter; all else as ever."""

    async def start(self, argv, *, env, pass_fds, cwd):
        *command, lane, control = argv
        if command[: len(words)] == words and list(pass_fds) == [int(lane), int(control)] and (link := reached(place)):
            order = {"words": command[WORDS + 1 :], "environ": dict(env), "folder": cwd, "umask": umask()}
            return process.PlainProcess(Child(link, order, pass_fds))
        return await START(self, argv, env=env, pass_fds=pass_fds, cwd=cwd)

    process.PlainStarter.start = start


def reached(place):
    """Return a connection; none from another network than that of the tests, where workers have to be too."""
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect("\0" + place)
    except OSError:
        link.close()
        return None
    return link


def umask():
    found = os.umask(0o77)
    os.umask(found)
    return found
