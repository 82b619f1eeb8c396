"""Helpers of these tests: a subject in a folder, a host that records everything, and a worker of both.

Imported by the child process, which finds it beside the test; the package is imported only when it is needed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
import time

SUBJECT = """
from democrai_sandbox import sdk
import asyncio, os, time

@sdk.method("add")
def add(a, b=1):
    return a + b

@sdk.method("read")
def read(path):
    with open(path) as file:
        return file.read()

@sdk.method("who")
def who():
    return list(sdk.request())
"""


class Host:
    """Records the questions and messages of a worker; services are functions, by name."""

    def __init__(self, decide=None, **services):
        self.questions, self.written, self.denials, self.views = [], [], [], []
        self._decide = decide
        self._doors = services
        self.services = tuple(services)

    def decide(self, question):
        self.questions.append(question)
        return False if self._decide is None else self._decide(question)

    def door(self, name, view, args):
        self.views.append(view)
        return self._doors[name](*args)

    def output(self, label, stream, text):
        self.written.append((stream, text))

    def denied(self, label, denial):
        self.denials.append(str(denial))

    def saw(self, label, question, *, allowed, times):
        self.seen.append((label, question, allowed, times))

    def text(self, stream="stdout"):
        return "".join(text for found, text in self.written if found == stream)


def make_spec(world, source=SUBJECT, **more):
    """Return the spec of an engine whose entry file has this source."""
    from democrai_sandbox.runtime.worker.process import WorkerSpec

    name = more.pop("name", "demo")
    kind = more.pop("kind", "engine")
    folder, data = os.path.join(world.base, "subjects", name), os.path.join(world.base, "data", name)
    os.makedirs(folder, exist_ok=True)
    os.makedirs(data, exist_ok=True)
    with open(os.path.join(folder, "main.py"), "w") as file:
        file.write(textwrap.dedent(source))
    given = {"call_timeout": 10.0, "grace": 0.3, "pause": 1.0, "own_read": (folder,), "own_write": (data,), **more}
    interpreter = given.pop("interpreter", sys.executable)
    return WorkerSpec(kind, name, folder, interpreter, data_dir=data, **given)


def make_worker(world, source=SUBJECT, host=None, **more):
    """Return a worker and its host; nothing is started yet."""
    from democrai_sandbox.runtime.worker.handle import WorkerHandle

    host = host or Host()
    return WorkerHandle(make_spec(world, source, **more), host), host


def who(user="", organization="", session="", role="", level="", task=""):
    """Return an identity."""
    from democrai_sandbox.runtime.worker.process import CallIdentity

    return CallIdentity(user, organization, session, role, level, task)


def run(story, *args, seconds=50):
    """Run a story on a loop, and detect tasks and readers that it left behind."""

    async def bounded():
        async with asyncio.timeout(seconds):
            return await story(*args)

    return asyncio.run(bounded())


async def verdict(awaitable):
    """Return the value, or the class and text of the error."""
    try:
        return await awaitable
    except Exception as error:
        return [type(error).__name__, str(error)]


async def until(condition, seconds=30.0):
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not happen")
        await asyncio.sleep(0.01)


def is_alive(pid):
    """Return whether a process exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
