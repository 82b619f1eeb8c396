"""Files that permit starting the helper: a rule for sudo or polkit, or a systemd unit.

``democrai-sandbox helper`` prints them. A file is commented out if another user than root could change the programs
that it starts. Without a polkit rule, ``pkexec`` asks the user at the machine.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .protocol import helper_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_TOLD = 8
_NOT_LOADED = frozenset({"site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo"})
"""Folders of the standard library from which an isolated interpreter (-I -S) or the helper does not load code."""


class Weakness(NamedTuple):
    """File or folder through which another user than root could change the helper's code."""

    path: str
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path} {self.why}; to fix it: {self.fix}"


def weaknesses(command: Sequence[str], *, standard_library: str = os.__file__) -> list[Weakness]:
    """Check the interpreter, its library, the helper's folder, and all their ancestor folders."""
    interpreter, helper = Path(command[0]), Path(command[-1]).parent
    library = Path(standard_library).resolve().parent
    found: dict[str, Weakness] = {}
    for path in _all(interpreter, library, helper):
        weakness = _weakness(path)
        if weakness is not None:
            found.setdefault(weakness.path, weakness)
        if len(found) >= _MOST_TOLD:
            break
    return list(found.values())


def _all(interpreter: Path, library: Path, helper: Path) -> Iterator[Path]:
    shared = sysconfig.get_config_var("LDLIBRARY") if sysconfig.get_config_var("Py_ENABLE_SHARED") else None
    extra = [Path(sysconfig.get_config_var("LIBDIR") or "/") / shared] if shared else []
    for start in (interpreter, library, helper, *(path.resolve() for path in extra if path.exists())):
        yield from reversed([start, *start.parents])
    for folder in (library, helper):
        for place, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if name not in _NOT_LOADED]
            yield from (Path(place, name) for name in (*folders, *files))


def _weakness(path: Path) -> Weakness | None:
    try:
        found = path.stat()
    except OSError as error:
        return Weakness(str(path), f"cannot be read ({error.strerror})", "run this as root")
    if found.st_uid != 0:
        return Weakness(str(path), f"belongs to user {found.st_uid}", _INSTALL)
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        return None  # sticky: other users can add files, but not move those of root
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid != 0):
        return Weakness(str(path), f"is writable for other users (mode {stat.S_IMODE(found.st_mode):04o})", _INSTALL)
    return None


_INSTALL = "install Python and this package as root into a folder that only root can write, such as /opt"


_UNIT = "democrai-os-helper@.service"
_PID = "{pid}"
_SOCKET_END = f"{_PID}.sock"
_SPECIAL_TO_SUDO = re.compile(r"([\\,:=\s!\"'()#])")
_NOT_FOR_SUDO = re.compile(r"[\\*?\[\]\"'()!\n\r]")
"""Characters that sudo treats as a pattern, or that cannot occur in a path."""
_SUDOERS = """\
# Permits {user} to start the privileged helper of democrai-sandbox as root, and nothing else.
# Install it as a file in /etc/sudoers.d with mode 0440. Check it first with: visudo -cf FILE
# Only root may own and write the interpreter, its standard library and the helper's folder: with this rule, every user
# who can change one of them can become root. The command that prints this file checks them.
{rule}
"""
_POLKIT = """\
// Permits {user} to start the privileged helper of democrai-sandbox as root with pkexec, without a password, and
// nothing else. Install it as a file in /etc/polkit-1/rules.d with the suffix .rules and mode 0644; polkitd loads it
// automatically. Only root may own and write the interpreter, its standard library and the helper's folder: with this
// rule, every user who can change one of them can become root. The command that prints this file checks them.
polkit.addRule(function (action, subject) {{
    if (action.id === "org.freedesktop.policykit.exec" &&
        subject.user === {subject} &&
        action.lookup("user") === "root" &&
        action.lookup("program") === {program} &&
        action.lookup("command_line").indexOf({front}) === 0) {{
        return polkit.Result.YES;
    }}
}});
"""
_SYSTEMD = """\
# /etc/systemd/system/{unit}
# Each instance serves one process, named by its process id, and ends with it. The application's unit starts the
# instance, with the lines below in a drop-in. The shell waits up to 30 seconds for the socket and then becomes the
# application, which looks for the socket once. Do not use Type=notify: the helper would start only after the
# application is ready. The application leaves the cgroup of its unit: find its log lines with
# "journalctl --identifier".
#   [Service]
#   Type=exec
#   ExecStart=
#   ExecStart=/bin/sh -c '{wait}' sh {front} APPLICATION ARGUMENTS
#   ExecStartPost=+systemctl start --no-block democrai-os-helper@${{MAINPID}}.service
# The paths below are for an application with state_dir {state} and data_dir {data}.

[Unit]
Description=Egress allowlist of process %i

[Service]
Type=exec
ExecStart={command} --socket {socket} --policy-file {policy} --refresh-seconds {seconds} --parent-pid %i
# If the helper is killed, its rules stay in force; the next one takes them over.
Restart=on-failure
RestartSec=1
RestartPreventExitStatus=2 3
KillMode=mixed
NoNewPrivileges=yes
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_SETUID CAP_SETGID CAP_KILL CAP_DAC_OVERRIDE CAP_SYS_PTRACE
# For marking the owner of a cgroup in a trusted extended attribute.
CapabilityBoundingSet=CAP_SYS_ADMIN
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
LockPersonality=yes
ProtectSystem=full
SystemCallArchitectures=native
"""
_WAIT = 'n=0; until test -S "$$1$$$$.sock" || test $$n -ge 300; do n=$$((n+1)); sleep 0.1; done; shift; exec "$$@"'
"""Shell command for a unit, where dollar signs are doubled. After 30 seconds the application reports the problem."""
_SEVERAL = re.compile(r"[%+&].*|ALL", re.DOTALL)
"""Names that sudo treats as a group, a netgroup or all users."""


def sudoers_rule(user: str, command: Sequence[str]) -> str:
    """Return the rule that permits a user to start the helper with any arguments.

    The star follows the script, so that it cannot match options of the interpreter. The helper checks its arguments:
    the process must belong to the same user, and paths are opened with that user's rights.
    """
    odd = next((word for word in command if _NOT_FOR_SUDO.search(word)), None)
    if odd is not None:
        raise ValueError(f"sudo would misread {odd!a}; install it at a path without special characters")
    if _SEVERAL.fullmatch(user):
        raise ValueError(f"sudo would treat {user!a} as several users; use a user with another name")
    who, *words = (_SPECIAL_TO_SUDO.sub(r"\\\1", word) for word in (user, *command))
    return f"{who} ALL=(root) NOPASSWD: {' '.join(words)} *"


def polkit_rule(user: str, command: Sequence[str]) -> str:
    """Return the rule that permits a user to start the helper through ``pkexec`` without a password.

    polkit gets the words of the command joined by spaces. The fixed words contain no spaces, and the interpreter has no
    option with one, so only these words in this order match; the space at the end marks the end of the script's path.
    """
    odd = next((word for word in command if re.search(r"\s", word)), None)
    if odd is not None:
        raise ValueError(f"polkit cannot find the end of {odd!a}; install it at a path without spaces")
    texts = {"subject": user, "program": command[0], "front": f"{' '.join(command)} "}
    return _POLKIT.format(user=user, **{name: json.dumps(text) for name, text in texts.items()})


class ServicePaths(NamedTuple):
    """Paths of a service: its folders, and the paths from ``sandbox.os`` (empty for the defaults)."""

    state: str
    data: str
    helper_socket: str = ""
    policy_file: str = ""

    @property
    def socket(self) -> str:
        """Socket of the helper, with ``{pid}`` for the process that it serves."""
        return self.helper_socket or f"{self.state}/os_sandbox_helper_{_SOCKET_END}"

    @property
    def policy(self) -> str:
        """Policy file, with ``{pid}`` for the process."""
        return self.policy_file or f"{self.data}/os_sandbox_allowlist_{_PID}.json"

    @property
    def has_socket_per_process(self) -> bool:
        """Whether the shell in the unit can derive the path of the socket from its process id."""
        return self.socket.endswith(_SOCKET_END) and self.socket.count(_PID) == 1


def systemd_unit(command: Sequence[str], paths: ServicePaths, *, seconds: int) -> str:
    """Return a template unit whose instances each serve one process of the application."""
    return _SYSTEMD.format(
        unit=_UNIT,
        state=paths.state,
        data=paths.data,
        seconds=seconds,
        command=" ".join(map(_for_systemd, command)),
        wait=_WAIT,
        front=_for_systemd(paths.socket.removesuffix(_SOCKET_END)),
        socket=_for_systemd(paths.socket),
        policy=_for_systemd(paths.policy),
    )


class Installable(NamedTuple):
    """File for an administrator. If installing it would be dangerous, its whole content is commented out."""

    text: str
    warnings: tuple[str, ...] = ()


def sudoers_file(user: str) -> Installable:
    """Return the file with the rule for ``sudo``; raise ``ValueError`` if sudo cannot express the rule."""
    command = helper_command()
    return _safe(_SUDOERS.format(user=user, rule=sudoers_rule(user, command)), command, "#")


def polkit_file(user: str) -> Installable:
    """Return the file with the rule for polkit; raise ``ValueError`` if polkit cannot express the rule."""
    command = helper_command()
    return _safe(polkit_rule(user, command), command, "//")


def systemd_file(paths: ServicePaths, seconds: int) -> Installable:
    """Return the unit for an application with these paths."""
    command = helper_command()
    return _safe(systemd_unit(command, paths, seconds=seconds), command, "#")


def _safe(text: str, command: Sequence[str], mark: str) -> Installable:
    """Comment out a file with which another user could become root by changing the started programs."""
    found = weaknesses(command)
    if not found:
        return Installable(text)
    warnings = [f"WARNING: {weakness}" for weakness in found]
    warnings.append("WARNING: other users could become root with this file, so its content is commented out")
    return Installable("".join(f"{mark} {line}\n" for line in [*warnings, *text.splitlines()]), tuple(warnings))


def _for_systemd(text: str) -> str:
    """Return a word for ExecStart, escaped and quoted for systemd; ``{pid}`` becomes the name of the instance."""
    word = text.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"').replace(_PID, "%i")
    return f'"{word}"' if re.search(r"[\s\"'\\;]", word) else word
