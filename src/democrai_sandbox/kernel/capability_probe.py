"""Test the kernel controls of this machine in a separate process.

``python -P -m democrai_sandbox.kernel.capability_probe`` applies Landlock and seccomp to itself, runs the self-test
in a temporary child, and prints the results as JSON. It only checks whether the packet filter is available, because the
whole machine shares it. With ``--egress`` it starts the helper and applies an empty allowlist to itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile

from democrai_sandbox.errors import HelperFailed, KernelLayerError

from .application import Kernel
from .egress.helper_process import Way, elevation, no_way_up
from .helper.protocol import helper_command
from .selftest import SelfTestAttempt, cgroup_root
from .settings import ApplicationPlaces, LandlockSettings, OsSettings, SeccompSettings
from .status import EGRESS, HELPER, ControlState, ControlStatus, KernelStatus, without_helper

_COMMANDS = "/usr/sbin:/sbin:/usr/bin:/bin"
_WITHIN = 120.0
_ASKED_WITHIN = 10.0
_EGRESS, _DESKTOP = "--egress", "--desktop"
NOT_TESTED_FIX = "add --egress"
"""Fix of a control that was found but not tested."""
_HOW = {Way.DIRECT: "directly (already root)", Way.SUDO: "with sudo", Way.PKEXEC: "with pkexec"}


def probe_in_child_process(*, egress: bool, desktop: bool) -> KernelStatus:
    """Run the test in a separate process; raise ``KernelLayerError`` when that fails."""
    words = [word for word, wanted in ((_EGRESS, egress), (_DESKTOP, desktop)) if wanted]
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter with fixed arguments
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
            f"the kernel controls could not be tested: {error}", fix="check that this user can start processes"
        ) from None
    if "error" in found:
        raise KernelLayerError(str(found["error"]), fix=str(found["fix"]))
    controls = (
        ControlStatus(name, ControlState(each["state"]), each["reason"], each["fix"], each["details"])
        for name, each in found["controls"].items()
    )
    return KernelStatus(tuple(controls), tuple(SelfTestAttempt(**each) for each in found["selftest"]))


def main() -> int:
    """Run the test and print the results."""
    try:
        found = _tried(egress=_EGRESS in sys.argv, desktop=_DESKTOP in sys.argv).as_dict()
    except KernelLayerError as error:
        found = {"error": error.what, "fix": error.fix}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _tried(*, egress: bool, desktop: bool) -> KernelStatus:
    settings = OsSettings(
        enabled=egress,
        desktop=desktop,
        refresh_seconds=0,
        seccomp=SeccompSettings(enabled=True),
        landlock=LandlockSettings(enabled=True),
    )
    possible = _possible_egress(desktop=desktop)  # before no_new_privs, which disables sudo and pkexec
    with tempfile.TemporaryDirectory(prefix="democrai_os_sandbox_") as folder:
        places = ApplicationPlaces(f"{folder}/data", f"{folder}/state")
        for place in (places.data_dir, places.state_dir):
            os.mkdir(place, 0o700)  # noqa: PTH102 - a str path
        with Kernel(settings, places) as kernel:
            found = kernel.status()
    if egress:
        return found
    kept = tuple(control for control in found.controls if control.name not in {EGRESS, HELPER})
    return KernelStatus((*kept, possible), found.attempts)


def _possible_egress(*, desktop: bool) -> ControlStatus:
    """Check for the requirements of the allowlist without changing anything."""
    try:
        way = _way_up(desktop=desktop)
    except HelperFailed as error:
        return without_helper(EGRESS, error)
    return ControlStatus(
        EGRESS, ControlState.OFF, f"available, not tested; the helper would run {_HOW[way]}", fix=NOT_TESTED_FIX
    )


def _way_up(*, desktop: bool) -> Way:
    missing = [name for name in ("iptables", "ip6tables") if shutil.which(f"{name}-restore", path=_COMMANDS) is None]
    if missing:
        what = f"{' and '.join(missing)} cannot be found"
        raise HelperFailed(what, fix="install the iptables package", reason="no_iptables")
    if not cgroup_root():
        raise HelperFailed("no cgroup v2 is mounted", fix="mount cgroup2 at /sys/fs/cgroup", reason="no_cgroup2")
    way, prefix = elevation(desktop=desktop)
    if way is Way.SUDO and not _is_permitted(prefix[0]):
        raise no_way_up("sudo does not permit it without a password")
    return way


def _is_permitted(sudo: str) -> bool:
    """Ask sudo whether it would start the helper, without starting it."""
    try:
        asked = subprocess.run(  # noqa: S603 - a program from fixed folders
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
