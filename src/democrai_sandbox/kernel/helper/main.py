"""Start, run and stop the helper: its command line, the user that it serves, and its log on standard error."""

from __future__ import annotations

import argparse
import errno
import json
import os
import resource
import select
import threading
import time
import traceback
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from .cgroups import find_tree, step_out
from .iptables import FilterChangeListener
from .processes import HIGHEST_PID, Handle, ProcessFamily, owners
from .protocol import LONGEST_SOCKET_PATH, RequestRefused
from .server import Actions, EventWait, HelperEvent, HelperServer
from .user_files import User, UserFiles

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from .enforcer import Enforcer

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


def parse(words: Sequence[str]) -> Arguments:
    """Parse the command line."""
    parser = _HelperParser(
        prog="democrai-os-helper",
        description="Keep the egress allowlist of an application in force.",
        allow_abbrev=False,
    )
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


_STDERR = 2
_LONGEST = select.PIPE_BUF - 1
"""Maximum size of an atomic write to a pipe."""


class HelperLog:
    """Output lines. A reader that has ended must never stop the helper from cleaning up."""

    def __init__(self, *, debug: bool = False) -> None:
        self.debug = debug
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Write one line for the operator."""
        self._write(f"democrai-os-helper[{os.getpid()}]: {text}")

    def flow(self, event: str, **details: object) -> None:
        """Write one debug line, if enabled."""
        if self.debug:
            parts = (f"{name}={value!r}" for name, value in details.items())
            self._write(" ".join(("[OS_SANDBOX_FLOW]", f"helper.{event}", *parts)))

    def last_word(self, refused: RequestRefused) -> None:
        """Write the reason for the helper's end: as a sentence, and in the last line as JSON."""
        self.say(str(refused))
        self._write(json.dumps(refused.answer()))

    def _write(self, text: str) -> None:
        line = text.replace("\r", " ").replace("\n", " ").encode("utf-8", "backslashreplace")[:_LONGEST] + b"\n"
        with self._lock, suppress(OSError):
            # A reader that does not empty its pipe must not block the helper.
            poll = select.poll()
            poll.register(_STDERR, select.POLLOUT)
            if poll.poll(0):
                os.write(_STDERR, line)


_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_ATTEMPTS = 5
_BETWEEN_ATTEMPTS = 1.0
_PATIENCE = 30.0
_LINGER = 2.0
"""Seconds to wait for the application's end: a service manager stops all processes of a service together."""
EXIT_ENDED, EXIT_REFUSED, EXIT_BAD_ARGUMENTS, EXIT_PARENT_GONE, EXIT_LEFT_BEHIND = 0, 1, 2, 3, 4


def run(words: Sequence[str], environment: Mapping[str, str], new_enforcer: Callable[[int, int], Enforcer]) -> int:
    """Run the helper and return its exit status. Errors are written to standard error."""
    log = HelperLog()
    try:
        arguments = parse(words)
        log.debug = arguments.debug
        return _live(arguments, environment, new_enforcer, log)
    except RequestRefused as error:
        refused = error
    except Exception as error:  # noqa: BLE001 - the program that started the helper needs a readable last line
        log.say(traceback.format_exc())
        refused = RequestRefused("failed", f"{type(error).__name__}: {error}", "see the lines before this one")
    log.last_word(refused)
    return {"bad_arguments": EXIT_BAD_ARGUMENTS, "gone": EXIT_PARENT_GONE}.get(refused.reason, EXIT_REFUSED)


def reset_environment() -> None:
    """Reset the environment that the starting user controls."""
    os.environ.clear()
    os.environ["PATH"] = _PATH
    os.umask(0o077)
    os.chdir("/")
    with suppress(PermissionError):  # already the leader of a process group
        os.setsid()  # ignore signals of the terminal, because the helper must end after the application
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # the soft limit comes from the starting process
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _HelperRun:
    """State of a running helper: its application, the enforcer, and the process for file operations."""

    def __init__(self, arguments: Arguments, parent: Handle, user: User, enforcer: Enforcer, log: HelperLog) -> None:
        self._arguments = arguments
        self._family = ProcessFamily(parent, user.uid)
        self._enforcer = enforcer
        self._log = log
        self._took_over = False
        self._user_files = UserFiles(user)  # before any threads

    def live(self) -> int:
        try:
            for warning in self._enforcer.probe():
                self._log.say(f"warning: {warning}")
            swept = self._enforcer.sweep()
            self._took_over = swept.get("took_over") is True
            self._log.flow("sweep", found=swept)
            with _listen(self._arguments.socket, self._user_files) as listener:
                return self._serve(listener)
        finally:
            self._user_files.close()

    def _serve(self, listener: socket.socket) -> int:
        arguments, parent, log = self._arguments, self._family.parent, self._log
        watch = EventWait(parent, listener)
        watch.heed_signals()
        actions = Actions(self._enforcer, self._family, arguments, self._user_files, log)
        work = partial(_keep_up, actions, arguments.refresh_seconds, log, resume=self._took_over)
        threading.Thread(target=work, daemon=True).start()
        threading.Thread(target=_keep_whole, args=(actions, log), daemon=True).start()
        log.say(f"serving process {parent.pid} of user {self._family.user} at {arguments.socket}")
        event = HelperServer(listener, self._family, actions, watch, log).run()
        self._remove(self._user_files.remove_socket, arguments.socket)  # first: later it may be another helper's
        actions.close(_PATIENCE)
        if event is HelperEvent.PARENT_GONE or (actions.in_force and watch.parent_ends_within(_LINGER)):
            log.say(f"process {parent.pid} has ended; removing its rules")
            self._remove(self._user_files.remove_file, arguments.policy_file)
            return EXIT_ENDED if _removed(self._enforcer, log) else EXIT_LEFT_BEHIND
        log.say("stopping; applied rules stay in force")
        return EXIT_ENDED

    def _remove(self, act: Callable[[str], None], path: str) -> None:
        try:
            act(path)
        except (OSError, RequestRefused) as error:
            self._log.say(f"{path} could not be removed: {error}")


def _live(
    arguments: Arguments, environment: Mapping[str, str], new_enforcer: Callable[[int, int], Enforcer], log: HelperLog
) -> int:
    try:
        parent = Handle.of(arguments.parent_pid)
    except RequestRefused:
        # Restarted after the application and the first helper have ended: clean up after them.
        log.flow("sweep", found=new_enforcer(arguments.parent_pid, 0).sweep())
        raise
    user = expected_user(parent, environment)
    # A helper that a process inside the application's cgroup starts is in it too. There its rules would block it, and
    # it would kill itself when it cleans up after the application.
    with suppress(RequestRefused):  # the enforcer reports the problem next
        tree = find_tree()
        step_out(tree, tree.application(parent.pid))
    return _HelperRun(arguments, parent, user, new_enforcer(parent.pid, parent.start_time), log).live()


def _listen(path: str, user_files: UserFiles) -> socket.socket:
    try:
        return user_files.place_socket(path)
    except OSError as error:
        text = f"the socket {path} cannot be created: {error.strerror}"
        if error.errno in {errno.EEXIST, errno.EADDRINUSE}:
            fix = "set sandbox.os.helper_socket to a path that only this application uses, or stop the process there"
            raise RequestRefused("socket_taken", text, fix) from None
        fix = "create its folder, and make it writable for the application's user"
        raise RequestRefused("socket_refused", text, fix) from None


def _keep_up(actions: Actions, seconds: int, log: HelperLog, *, resume: bool) -> None:
    """Take over a predecessor's work, then renew the rules periodically; 0 disables that."""
    if resume:
        _try(actions.resume, "taking over from the previous helper failed; its rules stay", log)
    while seconds:
        time.sleep(seconds)
        _try(actions.refresh, "the refresh failed; the rules stay unchanged", log)


def _keep_whole(actions: Actions, log: HelperLog) -> None:
    """Restore the rules whenever another program has changed the packet filter."""
    notices = FilterChangeListener()
    while notices.wait():
        _try(actions.repair, "checking the rules after a packet filter change failed", log)


def _try(act: Callable[[], None], otherwise: str, log: HelperLog) -> None:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - the next run may succeed
        log.say(f"{otherwise}: {type(error).__name__}: {error}")


def _removed(enforcer: Enforcer, log: HelperLog) -> bool:
    for attempt in range(_ATTEMPTS):
        try:
            enforcer.remove()
        except Exception as error:  # noqa: BLE001 - retry, so that no rules stay because of one failure
            log.say(f"the rules could not be removed (attempt {attempt + 1}): {error}")
            time.sleep(_BETWEEN_ATTEMPTS)
        else:
            return True
    return False
