"""By which way the helper gets the privileges that it needs."""

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
"""Where ``sudo`` and ``pkexec`` are looked for: not in a PATH that may be anybody's."""
NO_WAY_UP = "no_way_up"
_STATUS = Path("/proc/self/status")


class Way(StrEnum):
    """How the helper came to run."""

    ATTACH = "attach"
    """It was running already, started by somebody else for this application."""
    DIRECT = "direct"
    PKEXEC = "pkexec"
    SUDO = "sudo"


class Elevation(NamedTuple):
    """A way, and the words that come before the helper's command."""

    way: Way
    prefix: tuple[str, ...] = ()


def elevation(*, desktop: bool = False, programs: str = PROGRAMS) -> Elevation:
    """Return the way up for this process; raises ``HelperFailed`` with the reason ``no_way_up`` when there is none."""
    if is_privileged():
        return Elevation(Way.DIRECT)
    if _gains_nothing():
        raise no_way_up("this process can gain no privileges any more (no_new_privs is set)")
    if desktop and (pkexec := shutil.which("pkexec", path=programs)):
        return Elevation(Way.PKEXEC, (pkexec, "--disable-internal-agent"))
    if sudo := shutil.which("sudo", path=programs):
        return Elevation(Way.SUDO, (sudo, "-n", "--"))
    raise no_way_up("neither sudo nor pkexec is there" if desktop else "there is no sudo")


def is_privileged() -> bool:
    """Whether a child of this process can make cgroups and packet filter rules.

    A user with capabilities is not enough: the cgroup is made at the top of the tree, and ``iptables`` has a lock file
    of root's. Where root lacks something all the same, the helper knows best what.
    """
    return os.geteuid() == 0


def no_way_up(why: str, way: Way = Way.SUDO) -> HelperFailed:
    """Return the error, with the command that prints what an administrator has to install."""
    rule = "polkit" if way is Way.PKEXEC else "sudoers"
    return HelperFailed(
        f"the helper cannot be started with the privileges it needs: {why}",
        fix=f"let an administrator install what this prints: {_program()} helper {rule} "
        f"--user {shlex.quote(_user())} (or systemd in the place of {rule})",
        reason=NO_WAY_UP,
    )


def _program() -> str:
    """Return how the command line of this installation is typed, also where it is in nobody's PATH."""
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
