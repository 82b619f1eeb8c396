"""What is in deploy/: each file is checked with the tool that will read it, or by doing what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from democrai_sandbox.host.config import load
from tests.console.serving import ROOT

DEPLOY = ROOT / "deploy"
SYSTEMD = DEPLOY / "systemd"
INSTALLED = "/opt/democrai/bin/democrai-sandbox"
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def verify(*units):
    done = subprocess.run(["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def settings_of(text):
    """The settings of a unit's text: names and their last values."""
    return dict(line.partition("=")[::2] for line in text.splitlines() if re.match(r"[A-Z]\w+=", line))


@needs_systemd
@pytest.mark.parametrize("drop_ins", [(), ("20-no-sudo.conf",), ("20-no-sudo.conf", "30-helper.conf")])
def test_systemd_takes_the_unit(tmp_path, drop_ins):
    """Nothing in it is unknown, misspelt or doubtful to systemd itself."""
    unit = tmp_path / "democrai-sandbox.service"
    unit.write_text((SYSTEMD / unit.name).read_text().replace(INSTALLED, f'"{sys.executable}"'))
    (tmp_path / f"{unit.name}.d").mkdir()
    for name in drop_ins:
        shutil.copy(SYSTEMD / name, tmp_path / f"{unit.name}.d")
    status, said = verify(unit)
    assert status == 0 and said == "", said
    unit.write_text(unit.read_text().replace("UMask=", "UMasc="))
    assert "UMasc" in verify(unit)[1]


@needs_systemd
def test_systemd_takes_the_unit_of_the_helper(tmp_path):
    """The one that the command prints, for the folders of the unit; whether it is safe here is said beside it."""
    command = [sys.executable, "-m", "democrai_sandbox.cli", "helper", "systemd"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # Turned off where the interpreter could be changed by others, as in a home folder.
    text = re.sub(r"^# ?", "", done.stdout, flags=re.MULTILINE) if done.returncode else done.stdout
    unit = tmp_path / "democrai-os-helper@.service"
    unit.write_text(text[text.index("[Unit]") :])
    status, said = verify(unit)
    assert status == 0, said


def test_the_unit_is_as_the_program_behaves():
    """It says when it is ready, its refusals are not tried again, and nothing keeps sudo from starting the helper."""
    from democrai_sandbox.cli.output import Exit

    unit = settings_of((SYSTEMD / "democrai-sandbox.service").read_text())
    assert unit["Type"] == "notify"
    assert unit["RestartPreventExitStatus"].split() == [str(int(Exit.FAILED)), str(int(Exit.USAGE))]
    implied = {"NoNewPrivileges", "SystemCallFilter", "SystemCallArchitectures", "RestrictAddressFamilies"}
    implied |= {"RestrictNamespaces", "PrivateDevices", "RestrictSUIDSGID", "LockPersonality", "RestrictRealtime"}
    implied |= {"MemoryDenyWriteExecute", "ProtectClock", "ProtectHostname", "ProtectKernelLogs", "DynamicUser"}
    assert implied & set(unit) == set()


def test_no_unit_takes_away_what_the_guard_needs():
    """With RestrictSUIDSGID systemd refuses openat2, and the package could not even be imported."""
    for file in SYSTEMD.iterdir():
        assert "RestrictSUIDSGID" not in settings_of(file.read_text()), file.name


def test_the_drop_in_for_the_helper_is_what_the_command_prints():
    """For the folders and the command of the unit: the shell waits for the socket that the helper will have."""
    from democrai_sandbox.kernel.helper.install_files import ServicePaths, systemd_unit

    state = "/var/lib/democrai-sandbox"
    printed = systemd_unit(["/usr/bin/python3"], ServicePaths(state, f"{state}/data"), seconds=60)
    lines = re.findall(r"^#   (\S.*)", printed, re.MULTILINE)
    serve = settings_of((SYSTEMD / "democrai-sandbox.service").read_text())["ExecStart"]
    wanted = [line.replace("APPLICATION ARGUMENTS", serve) for line in lines]
    text = (SYSTEMD / "30-helper.conf").read_text()
    assert [line for line in text.splitlines() if line and not line.startswith("#")] == wanted
    assert "helper systemd --config /etc/democrai-sandbox/config.yaml" in text
    assert f"\nstate_dir: {state}\n" in (SYSTEMD.parent / "node.yaml").read_text()


def test_the_first_login_is_looked_for_where_the_journal_has_it():
    """By the name that the unit gives: the node leaves the control group by which the journal knows its unit."""
    name = settings_of((SYSTEMD / "democrai-sandbox.service").read_text())["SyslogIdentifier"]
    page = (ROOT / "docs" / "deployment.md").read_text()
    assert f"journalctl --identifier {name} | grep 'first login'" in page


def test_the_configuration_of_a_node_is_read(tmp_path):
    """Every key is known, and what it says is what a node of several needs."""
    text = (DEPLOY / "node.yaml").read_text()
    for name in ("modules", "engines", "extractors"):
        (tmp_path / name).mkdir()
        text = text.replace(f"/srv/democrai/{name}", str(tmp_path / name))
    file = tmp_path / "config.yaml"
    file.write_text(text)
    file.chmod(0o640)
    settings = load(file, environ={}).settings
    assert settings.stream_type == "redis" and settings.database.startswith("postgresql://")
    assert settings.os.enabled and settings.os.require and settings.server.public_url.startswith("https://")


def test_the_nodes_of_the_compose_file_have_settings_that_are_read(tmp_path):
    """With the variables of the image under them; passwords come from outside, and stand in no command."""
    services = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())["services"]
    image = dict(re.findall(r"(DEMOCRAI_CONFIG__\w+)=(\S+)", (DEPLOY / "container" / "Containerfile").read_text()))
    assert "PASSWORD}" not in json.dumps([service.get("command") for service in services.values()])
    for name in ("one", "two"):
        environ = image | services[name]["environment"] | {"DEMOCRAI_CONFIG__MODULES_PATH": str(tmp_path)}
        environ = {key: re.sub(r"\$\{\w+\}", "secret", value) for key, value in environ.items()}
        settings = load(None, environ=environ).settings
        assert settings.stream_type == "redis" and settings.server.host == "0.0.0.0"
        assert settings.os.landlock.enabled and settings.os.seccomp.enabled and not settings.os.enabled


def test_the_health_check_of_the_nodes_is_that_of_the_image():
    """Which an image in the OCI format does not have."""
    nodes = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())["services"]
    (words,) = re.findall(r"^    CMD (\[.*\])$", (DEPLOY / "container" / "Containerfile").read_text(), re.MULTILINE)
    for name in ("one", "two"):
        assert nodes[name]["healthcheck"]["test"] == ["CMD", *json.loads(words)]


def test_a_builder_is_given_what_the_container_file_copies():
    """And nothing compiled on this machine, which would be older than the source."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    copies = re.findall(
        r"^COPY (?!--from)(.*) \S+$", (DEPLOY / "container" / "Containerfile").read_text(), re.MULTILINE
    )
    assert {line[1:] for line in lines if line.startswith("!")} == {word for copy in copies for word in copy.split()}
    assert lines[1] == "*" and "**/*.so" in lines


COMPILER = """#!/bin/sh
exec gcc "$@" -O0 -g0 -w
"""
"""Does not optimize, which would take most of the time."""


@pytest.mark.slow
def test_the_steps_of_the_container_file_build_the_package(tmp_path):
    """From what it copies and nothing else: the wheel is built, has both compiled parts, and its command starts."""
    lines = (DEPLOY / "container" / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    copied = [shlex.split(line)[1:] for line in lines if line.startswith("COPY ") and "--from" not in line]
    for *sources, target in copied:
        for source in sources:
            place = tmp_path / target.lstrip("/")
            place = place / source if target.endswith("/") else place
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
                shutil.copytree(ROOT / source, place, ignore=ignored)
            else:
                shutil.copy(ROOT / source, place)
    (step,) = [line for line in lines if line.startswith("RUN ") and "pip wheel" in line]
    words = [word.replace("/build", str(tmp_path / "build")) for word in shlex.split(step)[1:]]
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    build(sys.executable, *words[1:], "--no-index", "--quiet", CC=compiler)
    (wheel,) = (tmp_path / "build" / "dist").glob("*.whl")
    build(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--target",
        tmp_path / "in",
        wheel,
    )
    imported = "import democrai_sandbox.guard._core, democrai_sandbox.kernel._native, democrai_sandbox; "
    code = imported + "print(democrai_sandbox.__file__)"
    assert build(sys.executable, "-c", code, PYTHONPATH=tmp_path / "in").startswith(str(tmp_path))
    said = build(sys.executable, "-m", "democrai_sandbox.cli", "--version", PYTHONPATH=tmp_path / "in")
    assert said.startswith("democrai-sandbox ")
    requirements = (tmp_path / "build" / "requirements" / "product.txt").read_text()
    assert all("--hash=" in block for block in re.findall(r"^\w[^#]*?(?=^\w|\Z)", requirements, re.MULTILINE))


def build(*words, **environ):
    environ = os.environ | {name: str(value) for name, value in environ.items()}
    done = subprocess.run(list(map(str, words)), env=environ, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_in_the_container_runs_as_root():
    """The last stage ends as a user, and every other one is only there to build."""
    stages = re.split(r"^FROM ", Path(DEPLOY / "container" / "Containerfile").read_text(), flags=re.MULTILINE)[1:]
    users = re.findall(r"^USER (\S+)", stages[-1], re.MULTILINE)
    assert len(stages) == 2 and users == ["10001:10001"]
    assert stages[-1].index("USER ") > stages[-1].rindex("RUN ")
