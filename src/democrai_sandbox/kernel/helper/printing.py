"""What an operator installs so that the helper may be started: a rule for sudo or polkit, or a systemd unit.

Without a rule for polkit ``pkexec`` asks the person at the machine. ``democrai-sandbox helper`` prints them.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from .arguments import helper_command
from .trust import weaknesses

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNIT = "democrai-os-helper@.service"
_PID = "{pid}"
_SOCKET_END = f"{_PID}.sock"
_SPECIAL_TO_SUDO = re.compile(r"([\\,:=\s!\"'()#])")
_NOT_FOR_SUDO = re.compile(r"[\\*?\[\]\"'()!\n\r]")
"""What sudo takes for a pattern, or cannot be told in a path at all."""
_SUDOERS = """\
# Lets {user} start the privileged helper of democrai-sandbox as root, and nothing else.
# It belongs into a file of /etc/sudoers.d, mode 0440, looked at first with: visudo -cf FILE
# The interpreter, its standard library and the helper's folder must be root's and writable by nobody else:
# whoever can change one of them is root with this rule. The command that prints this looks whether they are.
{rule}
"""
_POLKIT = """\
// Lets {user} start the privileged helper of democrai-sandbox as root by pkexec, unasked, and nothing else.
// It belongs into a file of /etc/polkit-1/rules.d whose name ends in .rules, mode 0644; polkitd notices it by itself.
// The interpreter, its standard library and the helper's folder must be root's and writable by nobody else:
// whoever can change one of them is root with this rule. The command that prints this looks whether they are.
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
# One instance serves one process, whose number is the instance's name; it ends with that process. The application's own
# unit starts it, by these lines in a drop-in. The shell waits for it, half a minute at most, and then becomes the
# application, which looks for it once. Not Type=notify: then the helper would be started after the application has said
# that it is ready. The application leaves the control group of its unit: find its lines by "journalctl --identifier".
#   [Service]
#   Type=exec
#   ExecStart=
#   ExecStart=/bin/sh -c '{wait}' sh {front} APPLICATION ARGUMENTS
#   ExecStartPost=+systemctl start --no-block democrai-os-helper@${{MAINPID}}.service
# The paths below are those which the application has with state_dir {state} and data_dir {data}.

[Unit]
Description=Egress allowlist of process %i

[Service]
Type=exec
ExecStart={command} --socket {socket} --policy-file {policy} --refresh-seconds {seconds} --parent-pid %i
# Killed, its rules stay in force; the next one takes them over.
Restart=on-failure
RestartSec=1
RestartPreventExitStatus=2 3
KillMode=mixed
NoNewPrivileges=yes
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_SETUID CAP_SETGID CAP_KILL CAP_DAC_OVERRIDE CAP_SYS_PTRACE
# It notes on its control groups whose they are, where nobody else can change it.
CapabilityBoundingSet=CAP_SYS_ADMIN
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
LockPersonality=yes
ProtectSystem=full
SystemCallArchitectures=native
"""
_WAIT = 'n=0; until test -S "$$1$$$$.sock" || test $$n -ge 300; do n=$$((n+1)); sleep 0.1; done; shift; exec "$$@"'
"""For a shell, in a unit: dollar signs are doubled there. After half a minute the application says what is missing."""
_SEVERAL = re.compile(r"[%+&].*|ALL", re.DOTALL)
"""What sudo takes for a group, a netgroup or everybody."""


def sudoers_rule(user: str, command: Sequence[str]) -> str:
    """Return the rule that lets a user start the helper with whatever arguments of its own.

    The star comes after the script, so that it can stand for nothing that the interpreter would take for itself. What
    the arguments name is looked at by the helper: a process of the same user, and paths with that user's own rights.
    """
    odd = next((word for word in command if _NOT_FOR_SUDO.search(word)), None)
    if odd is not None:
        raise ValueError(f"sudo would take {odd!a} for something else; install it at a path of plain characters")
    if _SEVERAL.fullmatch(user):
        raise ValueError(f"sudo would take {user!a} for several users; give the application a user of another name")
    who, *words = (_SPECIAL_TO_SUDO.sub(r"\\\1", word) for word in (user, *command))
    return f"{who} ALL=(root) NOPASSWD: {' '.join(words)} *"


def polkit_rule(user: str, command: Sequence[str]) -> str:
    """Return the rule that lets a user start the helper through ``pkexec`` without a question.

    polkit is shown the words of the command joined by spaces. None of the front's has one, and the interpreter takes no
    option with one, so that only these words, in this order, begin like that; the space at its end ends the script's.
    """
    odd = next((word for word in command if re.search(r"\s", word)), None)
    if odd is not None:
        raise ValueError(f"polkit could not tell where {odd!a} ends; install it at a path without spaces")
    texts = {"subject": user, "program": command[0], "front": f"{' '.join(command)} "}
    return _POLKIT.format(user=user, **{name: json.dumps(text) for name, text in texts.items()})


class ServicePaths(NamedTuple):
    """Where a service has its files: its folders, and what ``sandbox.os`` says otherwise (empty for nothing)."""

    state: str
    data: str
    helper_socket: str = ""
    policy_file: str = ""

    @property
    def socket(self) -> str:
        """The socket of the helper, with ``{pid}`` for the process that it serves."""
        return self.helper_socket or f"{self.state}/os_sandbox_helper_{_SOCKET_END}"

    @property
    def policy(self) -> str:
        """The policy file, with ``{pid}`` for the process."""
        return self.policy_file or f"{self.data}/os_sandbox_allowlist_{_PID}.json"

    @property
    def has_socket_per_process(self) -> bool:
        """Whether the shell of the unit can find the socket of its own process."""
        return self.socket.endswith(_SOCKET_END) and self.socket.count(_PID) == 1


def systemd_unit(command: Sequence[str], paths: ServicePaths, *, seconds: int) -> str:
    """Return a template unit of which one instance serves one process of the application."""
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
    """A file for an administrator. Where it would be dangerous to install it, all of it is a comment."""

    text: str
    warnings: tuple[str, ...] = ()


def sudoers_file(user: str) -> Installable:
    """Return the file with the rule for ``sudo``; raises ``ValueError`` where none could be written."""
    command = helper_command()
    return _safe(_SUDOERS.format(user=user, rule=sudoers_rule(user, command)), command, "#")


def polkit_file(user: str) -> Installable:
    """Return the file with the rule for polkit; raises ``ValueError`` where none could be written."""
    command = helper_command()
    return _safe(polkit_rule(user, command), command, "//")


def systemd_file(paths: ServicePaths, seconds: int) -> Installable:
    """Return the unit for an application with these paths."""
    command = helper_command()
    return _safe(systemd_unit(command, paths, seconds=seconds), command, "#")


def _safe(text: str, command: Sequence[str], mark: str) -> Installable:
    """Turn a file off that would be a way to become root: whoever can change what is started could use it."""
    found = weaknesses(command)
    if not found:
        return Installable(text)
    warnings = [f"WARNING: {weakness}" for weakness in found]
    warnings.append("WARNING: with this installed, that would be a way to become root; what follows is turned off")
    return Installable("".join(f"{mark} {line}\n" for line in [*warnings, *text.splitlines()]), tuple(warnings))


def _for_systemd(text: str) -> str:
    """Return a word for ExecStart: with what systemd would replace doubled, and quoted where it would be split.

    ``{pid}`` becomes the name of the instance.
    """
    word = text.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"').replace(_PID, "%i")
    return f'"{word}"' if re.search(r"[\s\"'\\;]", word) else word
