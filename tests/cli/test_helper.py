"""``democrai-sandbox helper``: installation files, dry run, and a real helper."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from democrai_sandbox.kernel.helper.protocol import helper_command
from tests.cli.goldens import CHOICES, COMMAND, PATIENCE, environment, golden, piped, transcript
from tests.cli.local import configured, says
from tests.kernel.appcase import short_folder
from tests.kernel.netlab import Lab, needs_netlab, wait_until
from tests.services.rows import rows

POLICY = {
    "version": 1,
    "endpoints": [
        {"host": "10.1.2.3", "port": 443, "protocol": "tcp", "source": "module:reports"},
        {"host": "fd00::7", "port": 53, "protocol": "udp"},
        {"host": "nowhere.invalid", "port": 80},
    ],
}


@pytest.fixture
def policy(tmp_path):
    """Write a policy file."""

    def write(content):
        file = tmp_path / "policy.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        file.chmod(0o600)
        return file

    return write


def test_what_would_be_applied(policy):
    """Rules for both IP versions, each closed at its end; unresolved names are reported."""
    words = ("helper", "apply", policy(POLICY), "--dry-run", "--parent-pid", "4194303")
    found = says(*words)
    first, second = found.out.split("# ip6tables-restore --noflush\n")
    assert found.status == 0
    assert "-A DEMOCRAI_OS_4194303_A -d 10.1.2.3 -p tcp --dport 443 -j RETURN" in first.splitlines()
    assert "-A DEMOCRAI_OS_4194303_A -d fd00::7 -p udp --dport 53 -j RETURN" in second.splitlines()
    for text in (first, second):
        assert text.splitlines()[-1] == "COMMIT"
        assert "-A DEMOCRAI_OS_4194303_A -j REJECT" in text.splitlines()
        assert [line for line in text.splitlines() if line.startswith("-I OUTPUT 1 -m cgroup")]
    assert "nowhere.invalid " in found.err and len(found.err.splitlines()) == 1
    data = says(*words, "--json").data
    assert (data["schema"], data["unresolved"]) == ("democrai-sandbox/helper.apply/1", ["nowhere.invalid"])
    assert [each["family"] for each in data["transactions"]] == ["ipv4", "ipv6"]


@rows(
    ("content", "said"),
    [
        ("{", "JSON"),
        ({"version": 2, "endpoints": []}, "version"),
        ({"version": 1, "endpoints": [{"host": "a b", "port": 0}]}, "/endpoints/0/port"),
    ],
)
def test_a_policy_that_the_helper_would_refuse(policy, content, said):
    """The command refuses the same policy files, and prints no rules."""
    found = says("helper", "apply", policy(content), "--dry-run")
    assert (found.status, found.out) == (1, "")
    assert said in found.err


WRONG = [
    (("apply", "x.json"), "--dry-run"),
    (("apply", "x.json", "--dry-run", "--parent-pid", "-1"), "--parent-pid"),
    (("run",), "--parent-pid"),
    (("run", "--parent-pid", "x\x1b[2J"), "--parent-pid"),
    (("sudoers", "--user", "no-such-user"), "'no-such-user'"),
    (("polkit", "--user", "no\0user"), "user"),
    (("systemd", "--state-dir", "relative"), "'relative'"),
    (("systemd", "--refresh-seconds", "-1"), "--refresh-seconds"),
    (("launchd",), "'launchd'"),
    ((), "verb"),
]
"""What is typed, and the argument or value that the message has."""


def test_a_wrong_command_line():
    """Unknown words end with status 2 and the error, and nothing on standard output."""
    done = [says("helper", *words) for words, _ in WRONG]
    transcript("helper-misused", zip((words for words, _ in WRONG), done, strict=True), also=[CHOICES])
    assert {(one.status, one.out) for one in done} == {(2, "")}
    assert [value for one, (_, value) in zip(done, WRONG, strict=True) if value not in one.err] == []
    assert "\x1b" not in "".join(one.err for one in done)


def test_what_an_administrator_installs():
    """Rule and unit name the helper command; a dangerous place ends with 1."""
    for words in (("sudoers", "--user", "nobody"), ("polkit", "--user", "nobody"), ("systemd",)):
        found = says("helper", *words)
        if words[0] == "polkit" and any(" " in word for word in helper_command()):
            assert (found.status, found.out) == (1, "")
            continue
        # Sudo has a backslash before a space, systemd has quotes around the word.
        assert " ".join(helper_command()) in found.out.replace("\\ ", " ").replace('"', "")
        data = says("helper", *words, "--json")
        assert data.data["text"].rstrip("\n") == found.out.rstrip("\n")
        assert found.status == data.status == (1 if data.data["warnings"] else 0)
    if os.geteuid() == 0:
        assert says("helper", "sudoers").status == 2


def test_the_unit_has_the_paths_of_the_configuration(tmp_path):
    """The unit has the paths that the application and ``helper run`` use; options override them."""
    own = {"helper_socket": "/run/own_{pid}.sock", "policy_file": "/srv/own_{pid}.json", "refresh_seconds": 7}
    state = f"{tmp_path}/state"
    for settings, words, socket, policy in (
        ({}, (), f"{state}/os_sandbox_helper_%i.sock", f"{state}/data/os_sandbox_allowlist_%i.json"),
        ({"data_dir": "/srv/d"}, (), f"{state}/os_sandbox_helper_%i.sock", "/srv/d/os_sandbox_allowlist_%i.json"),
        ({"sandbox": {"os": own}}, (), "/run/own_%i.sock", "/srv/own_%i.json"),
        ({}, ("--state-dir", "/s"), "/s/os_sandbox_helper_%i.sock", "/s/data/os_sandbox_allowlist_%i.json"),
        (
            {"data_dir": "/srv/d"},
            ("--data-dir", "/d/"),
            f"{state}/os_sandbox_helper_%i.sock",
            "/d/os_sandbox_allowlist_%i.json",
        ),
    ):
        file = configured(tmp_path, **settings)
        unit = says("helper", "systemd", *words, "--config", file).out
        seconds = 7 if "sandbox" in settings else 60
        assert f"--socket {socket} --policy-file {policy} --refresh-seconds {seconds} " in unit
        assert f"sh {socket.removesuffix('%i.sock')} APPLICATION" in unit
    alone = configured(tmp_path, sandbox={"os": {"helper_socket": "/run/one.sock"}})
    assert says("helper", "systemd", "--config", alone).status == 1


def test_nothing_runs(tmp_path):
    """Without a helper, the command fails only if the configuration enables it."""
    found = says("helper", "status", "--config", configured(tmp_path))
    wanted = configured(tmp_path, sandbox={"os": {"enabled": True}})
    missing = says("helper", "status", "--config", wanted)
    assert (found.status, missing.status) == (0, 1)
    transcript("helper-status-none", [(("not wanted",), found), (("wanted",), missing)], folder=tmp_path)
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "os_sandbox_helper_77.sock").write_text("left")
    left = piped(["helper", "status", "--config", wanted])
    assert (left.status, "77: " in left.err) == (1, True)
    golden("helper-status.piped", left.out.replace("visible to root only", "none"), folder=tmp_path)


@needs_netlab
def test_a_helper_that_runs():
    """It is found by its socket, reports its process and its rules, and ends with that process."""
    with short_folder() as here, Lab() as lab:
        config = configured(here, sandbox={"os": {"enabled": True}})
        for folder in ("state", "state/data"):
            (here / folder).mkdir(mode=0o700)
        asleep = [sys.executable, "-c", "input()"]
        application = lab.inside.popen(asleep, stdin=subprocess.PIPE)
        pid = str(application.pid)
        socket = here / "state" / f"os_sandbox_helper_{pid}.sock"
        helper = lab.inside.popen(
            [*COMMAND, "helper", "run", "--parent-pid", pid, "--config", str(config)], env=environment()
        )
        wait_until(socket.exists, "the helper")
        (here / "state" / "data" / f"os_sandbox_allowlist_{pid}.json").write_text(json.dumps(POLICY))
        words = [*COMMAND, "helper", "status", "--json", "--config", str(config)]
        asked = lab.inside.run(words, env=environment(), check=False, timeout=PATIENCE)
        (found,) = json.loads(asked.stdout)["helpers"]
        assert (found["application"], found["answers"], len(found["endpoints"])) == (application.pid, True, 3)
        # It was asked to apply nothing yet, and root sees that.
        assert (asked.returncode, json.loads(asked.stdout)["chains"]) == (1, [])
        application.communicate(b"\n", timeout=60)
        assert helper.wait(60) == 0
        assert not socket.exists()
