"""Ways to start the helper with the required privileges."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from democrai_sandbox.errors import HelperFailed

PROGRAMS = "/usr/bin:/bin:/usr/sbin:/sbin"
"""Folders with ``sudo`` and ``pkexec``. PATH is not used, because other users may control it."""
NO_WAY_UP = "no_way_up"
_STATUS = Path("/proc/self/status")


class Way(StrEnum):
    """Way in which the helper was started."""

    ATTACH = "attach"
    """It was already running for this application."""
    DIRECT = "direct"
    PKEXEC = "pkexec"
    SUDO = "sudo"


class Elevation(NamedTuple):
    """Way to start the helper, with the words in front of its command."""

    way: Way
    prefix: tuple[str, ...] = ()


def elevation(*, desktop: bool = False, programs: str = PROGRAMS) -> Elevation:
    """Return the way for this process; raise ``HelperFailed`` with the reason ``no_way_up`` without one."""
    if is_privileged():
        return Elevation(Way.DIRECT)
    if _gains_nothing():
        raise no_way_up("this process cannot gain privileges (no_new_privs is set)")
    if desktop and (pkexec := shutil.which("pkexec", path=programs)):
        return Elevation(Way.PKEXEC, (pkexec, "--disable-internal-agent"))
    if sudo := shutil.which("sudo", path=programs):
        return Elevation(Way.SUDO, (sudo, "-n", "--"))
    raise no_way_up("sudo and pkexec are not installed" if desktop else "sudo is not installed")


def is_privileged() -> bool:
    """Whether a child of this process can create cgroups and packet filter rules.

    Capabilities of another user are not enough: the cgroup is created at the top of the tree, and the lock file of
    ``iptables`` belongs to root. If root lacks a permission, the helper reports it.
    """
    return os.geteuid() == 0


def no_way_up(why: str, way: Way = Way.SUDO) -> HelperFailed:
    """Return the error, with the command that prints the rule to install."""
    rule = "polkit" if way is Way.PKEXEC else "sudoers"
    return HelperFailed(
        f"the helper cannot be started with root privileges: {why}",
        fix=f"as an administrator, install the output of: {_program()} helper {rule} "
        f"--user {shlex.quote(_user())} (or use systemd instead of {rule})",
        reason=NO_WAY_UP,
    )


def _program() -> str:
    """Return the command of this installation, also when it is not in PATH."""
    interpreter = Path(sys.executable or "python3")
    beside = interpreter.with_name("democrai-sandbox")
    return shlex.quote(str(beside)) if beside.exists() else f"{shlex.quote(str(interpreter))} -m democrai_sandbox.cli"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"#{os.getuid()}"


def _gains_nothing() -> bool:
    return "NoNewPrivs:\t1" in _STATUS.read_text("utf-8", "replace").splitlines()
