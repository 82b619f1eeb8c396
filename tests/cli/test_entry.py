"""The command line: what it takes, and how it says no."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from tests.cli.goldens import piped


def command(*arguments, timeout=60, **environ):
    """Run ``democrai-sandbox`` to its end, in a process that was started for it."""
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
    """Run it, expect a refusal, and return what it says: on standard error, without a traceback."""
    done = piped(arguments, environ)
    assert (done.status, done.out) == (1, "")
    assert "Traceback" not in done.err
    return done.err


def test_it_says_its_version():
    """--version prints the name and the version."""
    done = command("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "democrai-sandbox")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "a command is missing"),
        (("sreve",), "there is no command 'sreve': did you mean 'serve'?"),
        (("--sreve",), "'--sreve' is no option"),
        (("serve", "--conf", "x"), "unrecognized arguments: --conf"),
        (("serve", "--confg", "x"), "unrecognized arguments: --confg"),
        (("serve", "--log-format", "xml"), "invalid choice: 'xml'"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(arguments, said):
    """Exit status 2, what is wrong, and where to read on; nothing on standard output."""
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "--help says what it takes" in done.stderr or "--help lists the commands" in done.stderr


def test_what_is_wrong_with_a_configuration_is_said_all_at_once(tmp_path):
    """Each problem with its line, unknown keys with the nearest name; no folder is made."""
    file = configured(tmp_path, sandbx={}, console={"idle_minutes": "long"})
    said = refusal("serve", "--config", file)
    assert "did you mean 'sandbox'" in said
    assert "/console/idle_minutes" in said
    assert f"{file}:" in said
    assert not (tmp_path / "state").exists()


def test_a_configuration_that_is_not_there(tmp_path):
    """The file is named."""
    done = command("serve", "--config", tmp_path / "none.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{tmp_path}/none.yaml" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken(tmp_path):
    """The address is named, and what to do; the state is let go for the next one."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        file = configured(tmp_path, server={"port": port})
        said = refusal("serve", "--config", file)
        assert f"host_address_taken: 127.0.0.1:{port} cannot be listened at: Address already in use" in said
        assert "set server.port to another one" in said
        assert "host_address_taken" in refusal("serve", "--config", file)


def test_an_address_of_another_machine(tmp_path):
    """An address that this machine does not have cannot be served at."""
    server = {"host": "192.0.2.1", "port": 0, "public_url": "https://sandbox.example.com"}
    said = refusal("serve", "--config", configured(tmp_path, server=server))
    assert "192.0.2.1:0 cannot be listened at: Cannot assign requested address" in said


def test_a_state_folder_that_is_a_file(tmp_path):
    """One message, and the file stays."""
    (tmp_path / "state").write_text("mine")
    assert "is not a folder" in refusal("serve", "--config", configured(tmp_path))
    assert (tmp_path / "state").read_text() == "mine"


def test_a_database_of_a_newer_version(tmp_path):
    """It is refused before anything else is done with it."""
    (tmp_path / "state").mkdir(mode=0o700)
    with sqlite3.connect(tmp_path / "state" / "sandbox.db") as database:
        database.execute("CREATE TABLE access_schema (version_num TEXT)")
        database.execute("INSERT INTO access_schema VALUES ('9999')")
    database.close()
    assert "has the schema 9999" in refusal("serve", "--config", configured(tmp_path))


def test_a_control_that_is_required_and_cannot_be_had(tmp_path):
    """A kernel layer that is required but not whole refuses the start, and says which part and why."""
    (tmp_path / "file").touch()
    os_section = {"enabled": True, "require": True, "helper_socket": f"{tmp_path}/file/helper.sock"}
    said = refusal("serve", "--config", configured(tmp_path, sandbox={"os": os_section}))
    assert "os_sandbox" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_folder_that_cannot_be_written():
    """A user who may not write the state folder is told which one."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "state").mkdir(mode=0o500)
        file = configured(folder)
        for path in (folder / "state", file):
            os.chown(path, 65534, 65534)
        # The interpreter may lie where that user cannot read it: everything is imported before.
        program = "import os, sys; from democrai_sandbox.host import places, config; os.setgid(65534); os.setuid(65534)"
        program += "; places.prepare_places(config.load(sys.argv[1], environ={}).settings)"
        done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, timeout=60)
        assert f"state_dir: nothing can be written in {folder}/state: Permission denied" in done.stderr
