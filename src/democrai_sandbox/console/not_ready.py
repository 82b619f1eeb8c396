"""Health checks while the application waits for its database, answered by a small separate process.

    python -I -S -B not_ready.py LISTENER

The application must not create a socket or a thread before it is confined. Until then this process reports that it is
live and not ready. It ends when its standard input closes. It uses the standard library only and runs as a script.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIVE = "/health/live"
_NOT_READY = '{"ready": false, "checks": {"store": "failed", "runtime": "failed"}}'
_LIVE_NOW = '{"live": true}'
_MOST = 8 * 1024
"""Maximum bytes of an HTTP request."""
_SECONDS = 5.0
"""Timeout in seconds for an HTTP request."""
_ENDING = 5.0


@contextmanager
def told_not_ready(listener: socket.socket) -> Iterator[None]:
    """Answer health checks at a bound socket during the block. The socket is closed in this process at once."""
    with listener:
        listener.listen()
        process = subprocess.Popen(  # noqa: S603 - this interpreter, on a file of this package
            [sys.executable, "-I", "-S", "-B", __file__, str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(listener.fileno(),),
            env={},
            cwd="/",
            start_new_session=True,  # terminal input is for the application
        )
    try:
        yield
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(answer_to(head))
            await writer.drain()
    writer.close()


def answer_to(head: bytes) -> bytes:
    """Return the answer to an HTTP request, by its first line."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    is_live = len(words) > 1 and words[1].partition("?")[0] == _LIVE
    status, content = ("200 OK", _LIVE_NOW) if is_live else ("503 Service Unavailable", _NOT_READY)
    body = content.encode("ascii")
    fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    first = f"HTTP/1.1 {status}\r\n{fields}Cache-Control: no-store\r\n\r\n".encode("ascii")
    return first if words[0] == "HEAD" else first + body


async def _serve(listener: socket.socket) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(0, ended.set)  # readable when the application has closed it or has ended
    server = await asyncio.start_server(_answer, sock=listener, limit=_MOST)
    await ended.wait()
    server.close()


def main(arguments: list[str]) -> None:
    """Answer until the application continues."""
    number = int(arguments[0])
    os.set_inheritable(number, False)  # noqa: FBT003 - its only form
    asyncio.run(_serve(socket.socket(fileno=number)))


if __name__ == "__main__":
    main(sys.argv[1:])
