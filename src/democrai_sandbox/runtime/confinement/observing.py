"""Connections of workers: told to the host before they are made, so that the allowlist has them."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import ExternalAccessCheckFailed
from democrai_sandbox.policy.hosts import is_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from democrai_sandbox.guard import ObservedEndpoint
    from democrai_sandbox.runtime.worker.interface import Host, WorkerSpec
    from democrai_sandbox.runtime.worker.remote import Desk

_log = logging.getLogger(__name__)
_LONGEST_HOST = 255
_HIGHEST_PORT = 65535
_MOST_AT_ONCE = 64
_PARTS = frozenset({"task", "tool", "agent", "pipeline", "skill"})


class Told(NamedTuple):
    """A connection that a worker is about to make."""

    subject: str
    subject_kind: str
    host: str
    addresses: tuple[str, ...]
    port: int


class RemoteObserver:
    """In the worker: has the host open the way, and waits until it is open."""

    def __init__(self, desk: Desk) -> None:
        """Ask at this desk."""
        self._desk = desk

    def observe(self, endpoint: ObservedEndpoint) -> None:
        """Tell of one connection; what goes wrong on the way is a failed check, never a no."""
        subject, kind, host, _, port = endpoint
        _, answer = self._desk.ask("observe", [subject, kind, host, port])
        if answer is not True:
            raise ExternalAccessCheckFailed("the host could not open the way")


class Watch:
    """In the host: takes what one worker tells, on the loop, and has it opened on a thread."""

    def __init__(self, spec: WorkerSpec, host: Host, tell: Callable[[list[Any]], None]) -> None:
        """Answer for the host what this worker asks."""
        self._spec = spec
        self._host = host
        self._tell = tell
        self._open = 0

    def observe(self, number: int, fields: Any) -> None:
        """Open the way for one connection. A worker that tells nonsense raises ``ValueError``, and is ended."""
        told = self._read(fields)
        if self._open >= _MOST_AT_ONCE:
            raise ValueError("more connections at once than a worker can have")
        self._open += 1
        opened = asyncio.get_running_loop().run_in_executor(None, self._host.observe, told)
        opened.add_done_callback(lambda done: self._opened(number, done))

    def _opened(self, number: int, done: asyncio.Future[None]) -> None:
        self._open -= 1
        try:
            done.result()
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - whatever it is, the way is not open
            _log.exception("the way for a connection of %s could not be opened", self._spec.label)
            self._tell(["answer", number, None])
        else:
            self._tell(["answer", number, True])

    def _read(self, fields: Any) -> Told:
        """Return what was told. The process is the subject's, which speaks for nobody else.

        Addresses are not asked for: one of its choosing would be opened with them.
        """
        subject, kind, host, port = fields
        if not all(type(text) is str for text in (subject, kind, host)) or type(port) is not int:
            raise ValueError("a connection that is none")
        if not 0 < port <= _HIGHEST_PORT or not 0 < len(host) <= _LONGEST_HOST:
            raise ValueError("a connection that is none")
        spec = self._spec
        part = spec.kind == "module" and kind in _PARTS and subject.rpartition(".")[0] == spec.name
        if not part and (kind, subject) != (spec.kind, spec.name):
            raise ValueError("a connection of another")
        return Told(subject, kind, host, (), port)


def resolved(told: Told) -> Told:
    """Return it with the addresses that its host has here. May wait for a resolver."""
    if is_address(told.host):
        return told._replace(addresses=(told.host,))
    try:
        found = socket.getaddrinfo(told.host, told.port, type=socket.SOCK_STREAM)
    except OSError:
        return told  # the helper may know better
    return told._replace(addresses=tuple(dict.fromkeys(str(address[0]) for *_, address in found)))
