"""Files for an operator to install, and the warning if another user could become root with them."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from democrai_sandbox.kernel.helper.install_files import (
    ServicePaths,
    polkit_rule,
    sudoers_file,
    sudoers_rule,
    systemd_file,
    systemd_unit,
    weaknesses,
)
from democrai_sandbox.kernel.helper.protocol import helper_command
from tests.kernel.helper.helper_process import needs_root
from tests.services.rows import rows

COMMAND = ("/opt/python/bin/python3", "-I", "-S", "-B", "/opt/democrai/helper/__main__.py")
VISUDO = shutil.which("visudo", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
"""The tool is in a folder that is not in every user's PATH."""
needs_visudo = pytest.mark.skipif(VISUDO is None, reason="visudo is not installed")
needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def _visudo(path, text):
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o440)
    return subprocess.run([VISUDO, "-cf", str(path)], capture_output=True, text=True, check=False)


def test_the_rule_names_the_whole_command_up_to_the_helpers_own_arguments():
    """The star follows the script: options of the interpreter cannot match it."""
    rule = sudoers_rule("democrai", COMMAND)
    assert rule == f"democrai ALL=(root) NOPASSWD: {' '.join(COMMAND)} *"


@needs_visudo
def test_sudo_understands_the_rule_also_with_odd_paths_and_users(tmp_path):
    """Spaces, commas, colons and similar characters are escaped."""
    for number, command in enumerate(
        [COMMAND, ("/opt/my python,3:x=1#/bin/python", "-I", "-S", "-B", "/opt/a b,c:d=e/#/__main__.py")]
    ):
        for user in ("democrai", "svc democrai", "domain\\user"):
            done = _visudo(tmp_path / f"rule{number}", sudoers_rule(user, command) + "\n")
            assert done.returncode == 0, done.stdout + done.stderr


@rows("odd", ["/opt/*", "/opt/a?", "/opt/[a]", "/opt/a\\b", "/opt/a\nb ALL"])
def test_a_path_that_sudo_would_take_for_a_pattern_is_refused(odd):
    """No rule is better than one that permits too much."""
    with pytest.raises(ValueError, match=re.escape(ascii(odd))):
        sudoers_rule("democrai", (*COMMAND[:-1], odd))


def test_the_rule_for_polkit_names_the_whole_command_and_none_that_it_could_not_tell_apart():
    """The fixed words end with a space, so that no other script matches; words with spaces are refused."""
    rule = polkit_rule("democrai", COMMAND)
    assert f'.indexOf("{" ".join(COMMAND)} ") === 0' in rule and 'subject.user === "democrai"' in rule
    with pytest.raises(ValueError, match="'/opt/with space/__main__.py'"):
        polkit_rule("democrai", (*COMMAND[:-1], "/opt/with space/__main__.py"))


@needs_visudo
@pytest.mark.skipif(shutil.which("cvtsudoers") is None, reason="cvtsudoers is not installed")
def test_sudo_takes_the_rule_for_what_is_meant(tmp_path):
    """sudo parses it as one user, root, no password, and the command with its fixed words."""
    path = tmp_path / "rule"
    path.write_text(sudoers_rule("democrai", COMMAND) + "\n")
    done = subprocess.run(["cvtsudoers", "-f", "json", str(path)], capture_output=True, text=True, check=True)
    assert f'"command": "{" ".join(COMMAND)} *"' in done.stdout
    assert '"username": "democrai"' in done.stdout and '"authenticate": false' in done.stdout


@needs_visudo
@needs_root
def test_the_printed_rule_is_valid_as_it_is(tmp_path):
    """The output can be installed; its command is the one with which the application starts the helper."""
    text, warnings = sudoers_file("nobody")
    assert _visudo(tmp_path / "sudoers", text).returncode == 0
    assert " ".join(helper_command()) in text.replace("\\ ", " ")
    assert bool(warnings) is ("WARNING" in text)


@needs_analyze
def test_systemd_understands_the_unit(tmp_path):
    """The unit is valid as an instance for one process."""
    text, _ = systemd_file(ServicePaths("/run/democrai", "/var/lib/democrai"), 30)
    plain = systemd_unit(helper_command(), ServicePaths("/run/democrai", "/var/lib/democrai"), seconds=30)
    assert "--refresh-seconds 30" in text and "--parent-pid %i" in text
    unit = tmp_path / "democrai-os-helper@.service"
    unit.write_text(plain)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "democrai-os-helper@4711.service")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:/usr/lib/systemd/system:/lib/systemd/system"},
    )
    if "Failed to initialize manager" in done.stderr:
        pytest.skip(f"systemd-analyze cannot work here: {done.stderr.strip()}")
    complaints = [line for line in done.stderr.splitlines() if "democrai-os-helper" in line]
    assert not complaints and done.returncode == 0, done.stderr


def test_the_unit_leaves_the_helper_what_it_needs():
    """Attributes of the kind ``trusted`` on its cgroups need CAP_SYS_ADMIN."""
    unit = systemd_unit(COMMAND, ServicePaths("/run/d", "/var/lib/d"), seconds=0)
    lines = (line.partition("=") for line in unit.splitlines())
    left = {word for name, _, words in lines if name == "CapabilityBoundingSet" for word in words.split()}
    assert {"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_KILL"} <= left


def test_the_application_waits_for_the_helper_that_systemd_starts(tmp_path):
    """As in the unit's comment: a shell becomes the application when the socket with its process id exists."""
    state = tmp_path / "odd 'state"
    state.mkdir()
    unit = systemd_unit(COMMAND, ServicePaths(str(state), "/var/lib/d"), seconds=0)
    (line,) = (line for line in unit.splitlines() if "/bin/sh -c" in line)
    words = [word.replace("$$", "$") for word in shlex.split(line.partition("ExecStart=")[2])]
    assert words[:2] == ["/bin/sh", "-c"] and words[-2:] == ["APPLICATION", "ARGUMENTS"]
    with subprocess.Popen([*words[:-2], "/bin/sh", "-c", "echo $$"], stdout=subprocess.PIPE, text=True) as process:
        with socket.socket(socket.AF_UNIX) as helper:
            assert process.poll() is None
            with contextlib.chdir(state):  # the absolute path may be too long for a socket
                helper.bind(f"os_sandbox_helper_{process.pid}.sock")
            assert process.communicate(timeout=60)[0] == f"{process.pid}\n"


@rows("user", ["%wheel", "+net", "ALL", "&all"])
def test_a_user_whom_sudo_would_take_for_several_is_refused(user):
    """A group, a netgroup, all users: such a name is refused."""
    with pytest.raises(ValueError, match=re.escape(ascii(user))):
        sudoers_rule(user, COMMAND)


def test_paths_that_systemd_would_change_are_escaped():
    """Percent and dollar signs are doubled, and values with spaces are quoted."""
    unit = systemd_unit(COMMAND, ServicePaths("/run/50% of $HOME", "/var/lib/d"), seconds=0)
    assert '--socket "/run/50%% of $$HOME/os_sandbox_helper_%i.sock"' in unit
    assert "--policy-file /var/lib/d/os_sandbox_allowlist_%i.json --refresh-seconds 0" in unit


@needs_root
def test_what_others_can_change_is_told_and_turns_the_rule_off(tmp_path, monkeypatch):
    """If another user can write the interpreter, library or helper, the rule would make that user root."""
    place = Path("/opt") if os.access("/opt", os.W_OK) else Path("/usr/local")
    folder = place / f"democrai-test-{os.getpid()}"
    helper = folder / "helper"
    helper.mkdir(parents=True, mode=0o755)
    try:
        main_file, library = helper / "__main__.py", folder / "os.py"
        for path in (main_file, library, folder / "python"):
            path.write_text("")
            path.chmod(0o644)
        command = (str(folder / "python"), "-I", "-S", "-B", str(main_file))
        known = {each.path for each in weaknesses(command, standard_library=str(library))}
        assert not {path for path in known if path.startswith(str(folder))}
        for path, change in (
            (folder / "python", lambda path: os.chown(path, 65534, 65534)),
            (main_file, lambda path: path.chmod(0o666)),
            (helper, lambda path: path.chmod(0o777)),
            (library, lambda path: (os.chown(path, 0, 65534), path.chmod(0o664))),
        ):
            change(path)
            found = {each.path: each for each in weaknesses(command, standard_library=str(library))}
            assert "/opt" in found[str(path)].fix and found[str(path)].fix in str(found[str(path)])
        monkeypatch.setattr("democrai_sandbox.kernel.helper.install_files.helper_command", lambda: command)
        text, warnings = sudoers_file("nobody")
        assert all(line.startswith("#") for line in text.splitlines()) and warnings
    finally:
        shutil.rmtree(folder)


def test_the_helper_imports_nothing_of_the_package():
    """The script imports only modules of its folder and the standard library."""
    code = (
        "import runpy, sys\n"
        f"found = runpy.run_path({helper_command()[-1]!r}, run_name='looked_at')\n"
        "import os; os.setsid = lambda: None; sys.argv[1:] = ['--nonsense']\n"
        "status = found['_start']()\n"
        "print(status, sorted(name for name in sys.modules if name.startswith('democrai_sandbox')))\n"
        "print('site' in sys.modules, 'ctypes' in sys.modules)"
    )
    done = subprocess.run([*helper_command()[:4], "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["2 []", "False False"]
