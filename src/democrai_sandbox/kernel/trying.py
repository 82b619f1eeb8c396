"""What this machine can enforce, found out by doing it, in a process that is there for nothing else.

``python -P -m democrai_sandbox.kernel.trying`` puts itself under Landlock and seccomp, has a throw-away child try what
is forbidden, and prints what came of it as JSON. The packet filter is the machine's, and only looked for; with
``--egress`` the helper is started and applies an empty allowlist to this process for a moment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import HelperFailed, KernelLayerError

from .application import ApplicationPlaces, Kernel
from .egress.elevation import Way, elevation, no_way_up
from .helper.arguments import helper_command
from .selftest import Attempt
from .selftest_ground import cgroup_root
from .settings import LandlockSettings, OsSettings, SeccompSettings
from .states import ControlState, ControlStatus
from .status import EGRESS, HELPER, KernelStatus, without_helper

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS = "/usr/sbin:/sbin:/usr/bin:/bin"
_WITHIN = 120.0
_ASKED_WITHIN = 10.0
_EGRESS, _DESKTOP = "--egress", "--desktop"
UNTRIED = "add --egress"
"""The fix of a control that was only looked for."""


def try_apart(*, egress: bool, desktop: bool) -> KernelStatus:
    """Try everything in a process of its own; raises ``KernelLayerError`` when that cannot be done."""
    words = [word for word, wanted in ((_EGRESS, egress), (_DESKTOP, desktop)) if wanted]
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, and no word of anybody else's
            [sys.executable, "-P", "-m", __name__, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_WITHIN,
            check=False,
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise KernelLayerError(
            f"what this machine can enforce could not be tried: {error}", fix="see that processes can be started here"
        ) from None
    if "error" in found:
        raise KernelLayerError(str(found["error"]), fix=str(found["fix"]))
    return _read(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try it, and print what happened."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        found = _tried(egress=_EGRESS in given, desktop=_DESKTOP in given).as_dict()
    except KernelLayerError as error:
        found = {"error": error.what, "fix": error.fix}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _read(found: dict[str, Any]) -> KernelStatus:
    controls = (
        ControlStatus(name, ControlState(each["state"]), each["reason"], each["fix"], each["details"])
        for name, each in found["controls"].items()
    )
    return KernelStatus(tuple(controls), tuple(Attempt(**each) for each in found["selftest"]))


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
        found = elevation(desktop=desktop)
        if found.way is Way.SUDO and not _is_permitted(found.prefix[0]):
            raise no_way_up("sudo does not permit it without a question")
        way = found.way
    except HelperFailed as error:
        return without_helper(EGRESS, error)
    return ControlStatus(
        EGRESS,
        ControlState.OFF,
        f"possible, not tried: the helper would be started by way of {way}",
        fix=UNTRIED,
    )


def _is_permitted(sudo: str) -> bool:
    """Ask sudo whether it would start the helper; nothing is started."""
    try:
        asked = subprocess.run(  # noqa: S603 - a program of the fixed places
            [sudo, "-n", "-l", "--", *helper_command(), "--socket"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASKED_WITHIN,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
