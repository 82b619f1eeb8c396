"""Command line of the helper, and the user that it serves."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from .processes import HIGHEST_PID, Handle, owners
from .protocol import RequestRefused
from .user_files import User

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LONGEST_SOCKET_PATH = 107
"""Size of the path in a unix socket address, without the terminating zero."""
_LONGEST_PAUSE = 24 * 3600
_LONGEST_PATH = 4096
_GIVEN_BY = ("SUDO_UID", "PKEXEC_UID")


class Arguments(NamedTuple):
    """Parsed command line."""

    socket: str
    policy_file: str
    refresh_seconds: int
    parent_pid: int
    debug: bool = False


def helper_command() -> tuple[str, ...]:
    """Return the fixed start of the helper's command line, which a ``sudo`` rule permits.

    It names the interpreter itself instead of the link in a virtual environment, which is not needed.
    """
    interpreter = getattr(sys, "_base_executable", "") or sys.executable
    return (str(Path(interpreter).resolve()), "-I", "-S", "-B", str(Path(__file__).resolve().with_name("__main__.py")))


def parse(words: Sequence[str]) -> Arguments:
    """Parse the command line."""
    parser = _HelperParser(prog="democrai-os-helper", description=__doc__, allow_abbrev=False)
    parser.add_argument("--socket", required=True, metavar="PATH", help="path of the helper's socket")
    parser.add_argument("--policy-file", required=True, metavar="PATH", help="allowlist that the application writes")
    parser.add_argument(
        "--refresh-seconds", default="0", metavar="N", help="resolve names again every N seconds; 0 disables it"
    )
    parser.add_argument("--parent-pid", required=True, metavar="PID", help="the application")
    parser.add_argument("--debug", action="store_true", help="print each step")
    found = parser.parse_args(words)
    arguments = Arguments(
        _path("--socket", found.socket),
        _path("--policy-file", found.policy_file),
        _number("--refresh-seconds", found.refresh_seconds, 0, _LONGEST_PAUSE),
        _number("--parent-pid", found.parent_pid, 2, HIGHEST_PID),
        found.debug,
    )
    if len(os.fsencode(arguments.socket)) > LONGEST_SOCKET_PATH:
        error = f"the path of the socket is longer than {LONGEST_SOCKET_PATH} bytes: {arguments.socket}"
        raise RequestRefused(
            "socket_path_too_long", error, "set sandbox.os.helper_socket to a shorter path, e.g. below /run"
        )
    return arguments


def expected_user(parent: Handle, environment: Mapping[str, str]) -> User:
    """Return the user that the helper serves: the user who called sudo or pkexec, if any.

    Otherwise a user with the right to start the helper could pass another user's process as the application.
    """
    found = owners(parent.pid)
    uid = found.users[0]
    for name in _GIVEN_BY:
        text = environment.get(name)
        if text is None:
            continue
        if _number(name, text, 0, 2**32 - 2) != uid:
            error = f"{name} is user {text}, but the application (process {parent.pid}) belongs to user {uid}"
            raise RequestRefused("foreign_uid", error, "start the helper as the user of the application")
        break
    if set(found.users) != {uid}:
        error = f"process {parent.pid} has several user ids, like a setuid program"
        raise RequestRefused("foreign_uid", error, "run the application with a single user id")
    parent.check()
    return User(uid, found.groups[0], found.further)


class _HelperParser(argparse.ArgumentParser):
    """Parser that raises ``RequestRefused`` instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise RequestRefused("bad_arguments", message, "see --help")


def _path(name: str, text: str) -> str:
    if not text.startswith("/") or "\0" in text or len(text) > _LONGEST_PATH:
        raise RequestRefused("bad_arguments", f"{name} is not an absolute path: {text[:80]!a}", "pass an absolute path")
    return text


def _number(name: str, text: str, lowest: int, highest: int) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= len(str(highest)) and lowest <= int(text) <= highest:
        return int(text)
    raise RequestRefused(
        "bad_arguments", f"{name} is not a number from {lowest} to {highest}: {text[:80]!a}", "correct it"
    )
