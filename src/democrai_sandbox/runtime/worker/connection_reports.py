"""Connections of workers: reported to the host before they are opened, so that the allowlist contains them."""

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

    from .host_client import HostClient
    from .process import WorkerHostServices, WorkerSpec

_log = logging.getLogger(__name__)
_LONGEST_HOST = 255
_HIGHEST_PORT = 65535
_MOST_AT_ONCE = 64
_PARTS = frozenset({"task", "tool", "agent", "pipeline", "skill"})


class ConnectionReport(NamedTuple):
    """A connection that a worker is about to open."""

    subject: str
    subject_kind: str
    host: str
    addresses: tuple[str, ...]
    port: int


class RemoteObserver:
    """Worker side: asks the host to permit a connection, and waits for it."""

    def __init__(self, host: HostClient) -> None:
        self._host = host

    def observe(self, endpoint: ObservedEndpoint) -> None:
        """Report one connection; an error on the way is a failed check, never a denial."""
        subject, kind, host, _, port = endpoint
        _, answer = self._host.ask("observe", [subject, kind, host, port])
        if answer is not True:
            raise ExternalAccessCheckFailed("the host could not permit the connection")


class ConnectionReports:
    """Host side: receives the reports of one worker on the loop, and permits connections on a thread."""

    def __init__(self, spec: WorkerSpec, host: WorkerHostServices, tell: Callable[[list[Any]], None]) -> None:
        """Answer this worker for the host."""
        self._spec = spec
        self._host = host
        self._tell = tell
        self._open = 0

    def observe(self, number: int, fields: Any) -> None:
        """Permit one connection. A malformed report raises ``ValueError``, which stops the worker."""
        told = self._read(fields)
        if self._open >= _MOST_AT_ONCE:
            raise ValueError("too many pending connections of one worker")
        self._open += 1
        opened = asyncio.get_running_loop().run_in_executor(None, self._host.observe, told)
        opened.add_done_callback(lambda done: self._opened(number, done))

    def _opened(self, number: int, done: asyncio.Future[None]) -> None:
        self._open -= 1
        try:
            done.result()
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - any failure means that the connection is not permitted
            _log.exception("a connection of %s could not be permitted", self._spec.label)
            self._tell(["answer", number, None])
        else:
            self._tell(["answer", number, True])

    def _read(self, fields: Any) -> ConnectionReport:
        """Return the report, only for the worker's own subject and its parts.

        Addresses are not part of it: the worker could choose one to be permitted.
        """
        subject, kind, host, port = fields
        if not all(type(text) is str for text in (subject, kind, host)) or type(port) is not int:
            raise ValueError("a malformed connection report")
        if not 0 < port <= _HIGHEST_PORT or not 0 < len(host) <= _LONGEST_HOST:
            raise ValueError("a malformed connection report")
        spec = self._spec
        part = spec.kind == "module" and kind in _PARTS and subject.rpartition(".")[0] == spec.name
        if not part and (kind, subject) != (spec.kind, spec.name):
            raise ValueError("a connection report for another subject")
        return ConnectionReport(subject, kind, host, (), port)


def resolved(told: ConnectionReport) -> ConnectionReport:
    """Return it with the addresses of its host on this machine. May block on a resolver."""
    if is_address(told.host):
        return told._replace(addresses=(told.host,))
    try:
        found = socket.getaddrinfo(told.host, told.port, type=socket.SOCK_STREAM)
    except OSError:
        return told  # the helper may resolve it
    return told._replace(addresses=tuple(dict.fromkeys(str(address[0]) for *_, address in found)))
