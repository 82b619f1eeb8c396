"""One guarded child of an installation: its output, its questions and denials, its timeout, and its end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .interface import CONTROL, LONGEST_MESSAGE, InstallFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from democrai_sandbox.runtime.worker.interface import Process, Starter

_LAST_LINES = 40
_LONGEST_LINE = 4000
_MOST_DENIALS = 50
_MOST_QUESTIONS = 1000
_LAST_WORDS = 1.0
_log = logging.getLogger(__name__)


class Child:
    """Output and denials of a child. For one run, on one loop."""

    def __init__(
        self, on_line: Callable[[str], None], decide: Callable[[list[Any]], Awaitable[list[Any] | bool | None]]
    ) -> None:
        """Take the receiver of the child's lines, and the function that answers its guard; None means undecided."""
        self.lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.denials: deque[tuple[str, str]] = deque(maxlen=_MOST_DENIALS)
        self._on_line = on_line
        self._decide = decide
        self._questions: asyncio.Queue[tuple[Any, list[Any]]] = asyncio.Queue(_MOST_QUESTIONS)

    async def run(
        self,
        starter: Starter,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: str,
        lock: int,
        timeout: float,  # noqa: ASYNC109 - the timeout ends the child
    ) -> int:
        """Run the child and return its exit code; in any case, stop all its processes."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003 - signature of the standard library
        told = {**environment, CONTROL: str(theirs.fileno())}
        with ours:
            with theirs:
                process = await starter.start(command, env=told, pass_fds=(theirs.fileno(), lock), cwd=folder)
            answering = asyncio.create_task(self._answer(ours))
            try:
                async with asyncio.timeout(timeout):
                    return await self._follow(process, ours)
            except TimeoutError:
                raise InstallFailed(f"pip took longer than {timeout:g} seconds", lines=tuple(self.lines)) from None
            finally:
                answering.cancel()
                # The whole group: a compiler that keeps writing would change what was verified.
                process.kill()
                await asyncio.shield(process.wait())
                process.close()

    async def _follow(self, process: Process, control: socket.socket) -> int:
        """Read until the child has ended. No stream can block another, or grow without limit."""
        readers = {
            process.stdout: _Reader(process.stdout, _LONGEST_LINE, self._hear),
            process.stderr: _Reader(process.stderr, _LONGEST_LINE, self._hear),
            control.fileno(): _Reader(control.fileno(), LONGEST_MESSAGE, self._be_told),
        }
        try:
            code = await process.wait()
            # A detached grandchild may keep the output open, so read only for a moment longer.
            ends = [reader.ended for reader in readers.values()]
            await asyncio.wait(ends, timeout=_LAST_WORDS)
        finally:
            for reader in readers.values():
                reader.stop()
        return code

    def _hear(self, line: str) -> None:
        # Lines are displayed, so remove terminal control characters.
        self.lines.append("".join(letter if letter.isprintable() else " " for letter in line))
        self._on_line(line)

    def _be_told(self, line: str) -> None:
        """Handle a message of the child's guard; a malformed one is not answered, which allows nothing."""
        try:
            message = json.loads(line)
            if "refused" in message:
                self.denials.append((str(message["code"]), str(message["refused"])))
            else:
                self._questions.put_nowait((message["number"], list(message["ask"])))
        except (ValueError, KeyError, TypeError, RecursionError, asyncio.QueueFull):
            self._hear("(the child sent a malformed message)")

    async def _answer(self, control: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            number, question = await self._questions.get()
            try:
                answer = await self._decide(question)
            except Exception:  # noqa: BLE001 - the child waits for an answer in any case
                _log.exception("an access question of an installation could not be answered")
                answer = None  # no decision, so nothing is allowed
            with suppress(OSError):
                await loop.sock_sendall(control, json.dumps({"number": number, "answer": answer}).encode() + b"\n")


async def output_of(starter: Starter, command: Sequence[str], environment: Mapping[str, str], seconds: float) -> str:
    """Return the output of a program of the host; raise an error with its last lines if it fails."""
    process = await starter.start(command, env=environment, pass_fds=(), cwd="/")
    said: list[str] = []
    complaints: deque[str] = deque(maxlen=_LAST_LINES)
    readers = [
        _Reader(process.stdout, LONGEST_MESSAGE, said.append),
        _Reader(process.stderr, _LONGEST_LINE, complaints.append),
    ]
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
            await asyncio.wait([reader.ended for reader in readers], timeout=_LAST_WORDS)
    except TimeoutError:
        raise InstallFailed(f"{command[0]} did not finish within {seconds:g} seconds") from None
    finally:
        for reader in readers:
            reader.stop()
        process.kill()
        await asyncio.shield(process.wait())
        process.close()
    if code != 0:
        raise InstallFailed(f"{command[0]} failed with exit code {code}", lines=tuple(complaints))
    return "\n".join(said)


class _Reader:
    """Splits the data of a descriptor into lines, and cuts long ones."""

    def __init__(self, descriptor: int, longest: int, on_line: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._descriptor = descriptor
        self._longest = longest
        self._on_line = on_line
        self._rest = b""
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, LONGEST_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (not data or len(self._rest) > LONGEST_MESSAGE):
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._on_line(line[: self._longest].decode(errors="replace").rstrip("\r"))
        if not data:
            self.stop()

    def stop(self) -> None:
        if not self.ended.done():
            self._loop.remove_reader(self._descriptor)
            self.ended.set_result(None)
