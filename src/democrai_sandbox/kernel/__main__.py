"""``python -m democrai_sandbox.kernel``: what this machine can enforce, found out by doing it.

The process puts itself under Landlock and seccomp, has a throw-away child try what is forbidden, and says what came
of it. It is there for nothing else, so that costs nothing. The packet filter is the machine's, and only looked for;
with ``--egress`` the helper is started and applies an empty allowlist to this process for a moment.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING

from democrai_sandbox.errors import HelperFailed, KernelLayerError

from .application import ApplicationPlaces, Kernel
from .egress.elevation import elevation
from .helper import printing
from .selftest_ground import cgroup_root
from .settings import LandlockSettings, OsSettings, SeccompSettings
from .states import ControlState, ControlStatus
from .status import EGRESS, HELPER, KernelStatus, without_helper

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS = "/usr/sbin:/sbin:/usr/bin:/bin"
_PRINTED = ("sudoers", "polkit", "systemd")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; 0 when everything is active or possible, 1 when something is not."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _PRINTED:
        return printing.main(given)
    options = _parser().parse_args(given)
    try:
        found = _tried(egress=options.egress, desktop=options.desktop)
    except KernelLayerError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command's answer
        return 1
    print(json.dumps(found.as_dict(), indent=2) if options.json else _text(found))  # noqa: T201 - the same
    return 0 if all(map(_is_well, found.controls)) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m democrai_sandbox.kernel",
        description="Try what this machine can enforce, and say what happened.",
        epilog="sudoers, polkit and systemd in the place of options print what an administrator installs.",
    )
    parser.add_argument("--json", action="store_true", help="plain data instead of text")
    parser.add_argument("--egress", action="store_true", help="start the helper too, and apply an empty allowlist")
    parser.add_argument("--desktop", action="store_true", help="as on a desktop: pkexec instead of sudo")
    return parser


def _tried(*, egress: bool, desktop: bool) -> KernelStatus:
    settings = OsSettings(
        enabled=egress,
        desktop=desktop,
        refresh_seconds=0,
        seccomp=SeccompSettings(enabled=True),
        landlock=LandlockSettings(enabled=True),
    )
    possible = _possible_egress(desktop=desktop)  # before no_new_privs shuts every way up
    with tempfile.TemporaryDirectory(prefix="democrai_os_sandbox_") as folder:
        places = ApplicationPlaces(f"{folder}/data", f"{folder}/state")
        for place in (places.data_dir, places.state_dir):
            os.mkdir(place, 0o700)  # noqa: PTH102 - a text
        with Kernel(settings, places) as kernel:
            found = kernel.status()
    if egress:
        return found
    kept = tuple(control for control in found.controls if control.name not in {EGRESS, HELPER})
    return KernelStatus((*kept, possible), found.attempts)


def _possible_egress(*, desktop: bool) -> ControlStatus:
    """Look for what the allowlist needs, without touching it."""
    missing = [name for name in ("iptables", "ip6tables") if shutil.which(f"{name}-restore", path=_COMMANDS) is None]
    if missing:
        error = HelperFailed(
            f"{' and '.join(missing)} cannot be found", fix="install the iptables package", reason="no_iptables"
        )
        return without_helper(EGRESS, error)
    if not cgroup_root():
        error = HelperFailed("no cgroup v2 is mounted", fix="mount cgroup2 at /sys/fs/cgroup", reason="no_cgroup2")
        return without_helper(EGRESS, error)
    try:
        way = elevation(desktop=desktop).way
    except HelperFailed as error:
        return without_helper(EGRESS, error)
    return ControlStatus(
        EGRESS,
        ControlState.OFF,
        f"possible, not tried: the helper would be started by way of {way}",
        fix="add --egress",
    )


def _is_well(control: ControlStatus) -> bool:
    is_only_looked_at = control.name == EGRESS and control.state is ControlState.OFF and control.fix == "add --egress"
    return control.state is ControlState.ACTIVE or is_only_looked_at


def _text(found: KernelStatus) -> str:
    lines = []
    for control in found.controls:
        abi = f" (ABI {control.details['abi']})" if "abi" in control.details else ""
        lines.append(f"{control.name:<14}{control.state.value:<13}{control.reason}{abi}".rstrip())
        if control.state is not ControlState.ACTIVE and control.fix:
            lines.append(f"{'':<14}to fix it: {control.fix}")
    lines += ["", "tried:"]
    for attempt in found.attempts:
        mark = "ok  " if attempt.ok else "HOLE"
        lines.append(f"  {mark} {attempt.where:<20}{attempt.act}: {attempt.outcome}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
