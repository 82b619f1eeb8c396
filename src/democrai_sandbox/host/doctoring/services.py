"""Services of the host: the database, events, and its address. Each is tested, none is changed."""

from __future__ import annotations

import errno
import socket
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox.access.store.peeking import peek_schema
from democrai_sandbox.access.store.schema import HEAD
from democrai_sandbox.access.store.urls import parse_url, shown_url
from democrai_sandbox.errors import StateUnusable, StoreUnavailable
from democrai_sandbox.host.config.showing import without_password
from democrai_sandbox.host.lines import Area, Line, LineState
from democrai_sandbox.host.places import database_file
from democrai_sandbox.host.whereabouts import whereabouts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.host.settings import HostSettings

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def service_lines(settings: HostSettings) -> Iterator[Line]:
    """Test the database, the events and the address."""
    yield _store(settings)
    yield _events(settings)
    yield _address(settings)


# ---- database --------------------------------------------------------------------------------------------------------


def _store(settings: HostSettings) -> Line:
    shown = shown_url(parse_url(settings.database, needs_folder=False))
    line = Line("store", "Database", Area.DECISIONS, LineState.OK, shown, details={"url": shown, "needed": HEAD})
    file = database_file(settings)
    if file and not _is_there(file):
        return replace(line, summary=f"{shown}, created at the first start")
    try:
        found = peek_schema(settings.database)
    except StoreUnavailable as error:
        reason = " ".join(str(getattr(error.__cause__, "orig", None) or error.__cause__ or error).split())
        fix = "check that it exists and that this user may use it, or set database.url"
        return replace(line, state=LineState.OFF, summary=f"{shown} does not answer: {reason}", fix=fix)
    except StateUnusable as error:
        return replace(line, state=LineState.OFF, summary=error.what, fix=error.fix)
    if HEAD in found.nodes:
        return replace(line, summary=f"{shown}, schema {found.version}")
    if not found.version:
        return replace(line, summary=f"{shown}, empty; its tables are created at the first start")
    summary = f"{shown} has the schema {found.version}; {HEAD} is needed"
    fix = "run democrai-sandbox db upgrade after a backup, or install the version that created it"
    return replace(line, state=LineState.OFF, summary=summary, fix=fix)


def _is_there(file: str) -> bool:
    """Whether a file exists, or may exist: then opening it shows the reason."""
    try:
        Path(file).stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


# ---- events ----------------------------------------------------------------------------------------------------------


def _events(settings: HostSettings) -> Line:
    kind = settings.stream_type
    line = Line("events", "Events", Area.DECISIONS, LineState.OK, "", details={"type": kind})
    if kind == "redis":
        return _redis(line, str(settings.stream["url"]))
    if kind == "ipc":
        return _ipc(line, Path(str(settings.stream["folder"])))
    return replace(line, summary=f"{kind}: within one process")


def _redis(line: Line, url: str) -> Line:
    from democrai_sandbox.access.events.reaching import why_unreachable  # noqa: PLC0415 - redis is an extra

    shown = without_password(url)
    reason = without_password(why_unreachable(url))
    if reason:
        fix = "check that Redis is running and reachable, or set network.stream"
        return replace(line, state=LineState.OFF, summary=f"{shown} does not answer: {reason}", fix=fix)
    return replace(line, summary=f"{shown} answers")


def _ipc(line: Line, folder: Path) -> Line:
    try:
        mode = folder.stat().st_mode
    except OSError as error:
        fix = f"mkdir -m 700 {folder}"
        return replace(line, state=LineState.OFF, summary=f"ipc: {folder}: {error.strerror}", fix=fix)
    if mode & _OTHERS:
        summary = f"ipc: other users can enter {folder} (mode {stat.S_IMODE(mode):04o})"
        return replace(line, state=LineState.OFF, summary=summary, fix=f"chmod 700 {folder}")
    return replace(line, summary=f"ipc: uses {folder}")


# ---- address ---------------------------------------------------------------------------------------------------------


def _address(settings: HostSettings) -> Line:
    host, port = settings.server.host, settings.server.port
    line = Line("address", "Address", Area.HOST, LineState.OK, f"{host}:{port} is free", details={"port": port})
    if not port:
        return replace(line, summary=f"{host}, any free port")
    problem = _in_the_way(host, port)
    if problem is None:
        return line
    running = _running(settings.state_dir)
    if problem.errno == errno.EADDRINUSE and running:
        return replace(line, summary=f"{host}:{port} is used by the running node, {running}")
    fix = "set server.port to another one (0 selects a free one), or stop the process that listens there"
    return replace(line, state=LineState.OFF, summary=f"{host}:{port} is not available: {problem.strerror}", fix=fix)


def _in_the_way(host: str, port: int) -> OSError | None:
    """Bind the address briefly without listening; return the error, if any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((host, port))
    except OSError as error:
        return error
    return None


def _running(state_dir: str) -> str:
    try:
        found = whereabouts(state_dir)
    except OSError:
        return ""
    return found.url if found is not None and found.is_held else ""
