"""Folders and files of the host: their owner, and whether the host can store its state there. None is created."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox.access.keyring import KeyRing
from democrai_sandbox.host.lines import Area, Line, LineState
from democrai_sandbox.kernel.egress.policy_file import socket_path
from democrai_sandbox.kernel.helper.arguments import LONGEST_SOCKET_PATH
from democrai_sandbox.policy import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.host.settings import HostSettings

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_LONGEST_PID = 4194304


def place_lines(settings: HostSettings) -> Iterator[Line]:
    """Check the folders, the key file and the path of the helper's socket."""
    yield _user()
    yield _folder("state_dir", "State folder", settings.state_dir)
    yield _folder("data_dir", "Data folder", settings.data_dir)
    yield _keys(settings.key_file)
    if settings.os.enabled:
        yield _socket(settings)


def _user() -> Line:
    """Return the user of this check: other users may have other rights."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = f"#{os.geteuid()}"
    means = "directly" if os.geteuid() == 0 else "only through sudo, pkexec or systemd"
    summary = f"{name}: can use packet filters and cgroups {means}"
    return Line("user", "User", Area.HOST, LineState.OK, summary, details={"uid": os.geteuid()})


def _folder(name: str, title: str, path: str) -> Line:
    line = Line(name, title, Area.HOST, LineState.OK, path)
    place = Path(path)
    try:
        found = place.stat()
    except FileNotFoundError:
        return _to_be_made(line, place)
    except OSError as error:
        return _bad(line, f"{path} cannot be read: {error.strerror}", "use another folder")
    problem = _wrong_with(path, found)
    return line if problem is None else _bad(line, *problem)


def _wrong_with(path: str, found: os.stat_result) -> tuple[str, str] | None:
    """Return the problem of a folder, and the fix."""
    if not stat.S_ISDIR(found.st_mode):
        return f"{path} is not a folder", "use another path, or move the file"
    if found.st_uid != os.geteuid():
        fix = f"run this as user {found.st_uid}, or use another folder"
        return f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}", fix
    if found.st_mode & _OTHERS_WRITE:
        return f"other users can write to {path} (mode {stat.S_IMODE(found.st_mode):04o})", f"chmod 700 {path}"
    if not os.access(path, os.W_OK | os.X_OK):
        return f"{path} is not writable", "make it writable for this user, or use another folder"
    return None


def _to_be_made(line: Line, place: Path) -> Line:
    above = next(parent for parent in place.parents if parent.exists())
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return replace(line, summary=f"{place}, created at the first start")
    return _bad(
        line,
        f"{place} does not exist and cannot be created in {above}",
        "create it for the user of the host, or use another folder",
    )


def _keys(path: str) -> Line:
    line = Line("keys", "Key file", Area.HOST, LineState.OK, "")
    try:
        ring = KeyRing.read(path)
    except FileNotFoundError:
        return replace(line, summary=f"{path}, created at the first start")
    except OSError as error:
        return _bad(line, f"{path} cannot be read: {error.strerror}", "make it readable for the user of the host")
    except InvalidInputError as error:
        return _bad(line, " ".join(str(error).split()), "restore the key file that was created with the database")
    number = len(ring.keys)
    return replace(line, summary=f"{path}, {number} key{'' if number == 1 else 's'}", details={"keys": number})


def _socket(settings: HostSettings) -> Line:
    """Check the length of the helper's socket path, with the longest possible process id."""
    path = socket_path(settings.os.helper_socket, settings.state_dir, _LONGEST_PID)
    line = Line("helper_socket", "Helper's socket", Area.HOST, LineState.OK, path)
    size = len(os.fsencode(path))
    if size > LONGEST_SOCKET_PATH:
        summary = f"{path} has {size} bytes; the limit for a socket path is {LONGEST_SOCKET_PATH}"
        return _bad(line, summary, "set sandbox.os.helper_socket to a shorter path, e.g. below /run")
    return line


def _bad(line: Line, summary: str, fix: str) -> Line:
    return replace(line, state=LineState.OFF, summary=summary, fix=fix)
