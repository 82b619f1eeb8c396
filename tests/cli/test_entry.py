"""Entry point: arguments, version and refusals."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from tests.cli.goldens import CHOICES, code_of, golden, piped, transcript, within
from tests.services import places


def command(*arguments, timeout=60, **environ):
    """Run ``democrai-sandbox`` to its end in a separate process."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DEMOCRAI_")}
    return subprocess.run(
        [sys.executable, "-m", "democrai_sandbox.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=clean | environ,
    )


def configured(folder, **config):
    """Write a configuration; by default a free port, and its state in the folder."""
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({"state_dir": str(folder / "state"), "server": {"port": 0}, **config}))
    file.chmod(0o600)
    return file


def refusal(*arguments, **environ):
    """Run it, expect a refusal without a traceback, and return standard error."""
    done = piped(arguments, environ)
    assert (done.status, done.out) == (1, "")
    assert "Traceback" not in done.err
    return "".join(line for line in done.err.splitlines(keepends=True) if not line.startswith("{"))  # that is the log


def test_it_says_its_version():
    """--version prints the name and the version."""
    done = command("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "democrai-sandbox")


WRONG = [
    ((), ""),
    (("sreve",), "'serve'"),
    (("--sreve",), "'--sreve'"),
    (("serve", "--conf", "x"), "--conf"),
    (("serve", "--confg", "x"), "--confg"),
    (("serve", "--log-format", "xml"), "'xml'"),
]
"""What is typed, and a value that the message has."""


def test_a_wrong_command_line_is_a_usage_error():
    """Unknown words end with status 2, the error, and nothing on standard output."""
    done = [within(arguments) for arguments, _ in WRONG]
    transcript("usage", zip((arguments for arguments, _ in WRONG), done, strict=True), also=[CHOICES])
    assert {(one.status, one.out) for one in done} == {(2, "")}
    assert [value for one, (_, value) in zip(done, WRONG, strict=True) if value not in one.err] == []
    assert {one.err.splitlines()[-1].count("--help") for one in done} == {1}
    fresh = command("sreve")
    assert (fresh.returncode, fresh.stdout, fresh.stderr) == done[1]


def test_what_is_wrong_with_a_configuration_is_said_all_at_once(tmp_path):
    """Each problem has its line, unknown keys the nearest name; no folder is created."""
    file = configured(tmp_path, sandbx={}, console={"idle_minutes": "long"})
    said = refusal("serve", "--config", file)
    assert code_of(said) == "config_invalid"
    assert "/sandbx: " in said and "'sandbox'" in said
    assert "/console/idle_minutes: " in said
    assert f"{file}:" in said
    assert not (tmp_path / "state").exists()


def test_a_configuration_that_is_not_there(tmp_path):
    """A missing configuration file is named."""
    said = refusal("serve", "--config", tmp_path / "none.yaml")
    assert code_of(said) == "config_invalid"
    assert f"{tmp_path}/none.yaml" in said


def test_a_port_that_is_taken(tmp_path):
    """The error names the address and the fix; the state is released."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        file = configured(tmp_path, server={"port": port})
        said = refusal("serve", "--config", file)
        assert code_of(said) == "host_address_taken"
        assert f"127.0.0.1:{port}: " in said and os.strerror(errno.EADDRINUSE) in said
        assert "server.port" in said
        golden("serve-address-taken", said)
        assert code_of(refusal("serve", "--config", file)) == "host_address_taken"


def test_an_address_of_another_machine(tmp_path):
    """An address of another machine is refused."""
    server = {"host": "192.0.2.1", "port": 0, "public_url": "https://sandbox.example.com"}
    said = refusal("serve", "--config", configured(tmp_path, server=server))
    assert code_of(said) == "host_address_taken"
    assert "192.0.2.1:0: " in said and os.strerror(errno.EADDRNOTAVAIL) in said


def test_a_state_folder_that_is_a_file(tmp_path):
    """A file in place of the state folder is named and stays."""
    (tmp_path / "state").write_text("mine")
    said = refusal("serve", "--config", configured(tmp_path))
    assert (code_of(said), f"{tmp_path}/state " in said) == ("host_state_unusable", True)
    assert (tmp_path / "state").read_text() == "mine"


def test_a_database_of_a_newer_version(tmp_path):
    """It is refused before any other step."""
    (tmp_path / "state").mkdir(mode=0o700)
    with sqlite3.connect(tmp_path / "state" / "sandbox.db") as database:
        database.execute("CREATE TABLE access_schema (version_num TEXT)")
        database.execute("INSERT INTO access_schema VALUES ('9999')")
    database.close()
    said = refusal("serve", "--config", configured(tmp_path))
    assert (code_of(said), " 9999" in said) == ("external_access_schema_outdated", True)


def test_a_control_that_is_required_and_cannot_be_had(tmp_path):
    """A required but incomplete kernel layer refuses the start, with the part and the reason."""
    (tmp_path / "file").touch()
    os_section = {"enabled": True, "require": True, "helper_socket": f"{tmp_path}/file/helper.sock"}
    said = refusal("serve", "--config", configured(tmp_path, sandbox={"os": os_section}))
    assert "os_sandbox" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_folder_that_cannot_be_written():
    """A user who may not write the state folder gets its name."""
    with tempfile.TemporaryDirectory(dir=places.SHORT) as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "state").mkdir(mode=0o500)
        file = configured(folder)
        for path in (folder / "state", file):
            os.chown(path, 65534, 65534)
        # The interpreter may lie where that user cannot read it: everything is imported before.
        program = (
            "import os, sys; from democrai_sandbox.host import directories, config; os.setgid(65534); os.setuid(65534)"
        )
        program += "; directories.prepare_directories(config.load(sys.argv[1], environ={}).settings)"
        done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, timeout=60)
        last = done.stderr.splitlines()[-1]
        assert "StateUnusable: state_dir: " in last
        assert f"{folder}/state" in last and os.strerror(errno.EACCES) in last
