"""``democrai-sandbox doctor``: tests what is possible, and changes nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
from contextlib import closing
from pathlib import Path

import pytest

from democrai_sandbox.access.keyring import KeyRing
from democrai_sandbox.access.store import migrations, open_store
from democrai_sandbox.access.store.database import Database
from democrai_sandbox.access.store.database_location import parse_url
from democrai_sandbox.access.store.schema import HEAD
from democrai_sandbox.host.config import load
from democrai_sandbox.host.doctor import service_lines
from tests.cli.goldens import COMMAND, PATIENCE, code_of, environment, golden, piped, terminal
from tests.cli.local import configured, says
from tests.kernel.appcase import NOBODY, SOURCE, interpreter_for_all, needs_other_user, short_folder
from tests.kernel.netlab import Lab, needs_netlab

KERNEL = ("landlock", "seccomp", "spawn_server", "egress")
EVERYTHING = {"os": {"enabled": True, "landlock": {"enabled": True}, "seccomp": {"enabled": True}}}
PACKAGES = Path(sysconfig.get_paths()["purelib"])


def _everybody_reads(folder):
    return all(place.stat().st_mode & 0o001 for place in (folder, *folder.parents))


def lines_of(text):
    return {line["name"]: line for line in json.loads(text)["lines"]}


def everything_in(folder):
    """The files of a folder, with attributes that reveal a change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns)
    return found


def test_a_fresh_installation(tmp_path):
    """Nothing exists and nothing is created; the report says so. A terminal shows progress."""
    config = configured(tmp_path)
    before = everything_in(tmp_path)
    found = piped(["doctor", "--config", config])
    seen = terminal(["doctor", "--attempts", "--config", config])
    assert everything_in(tmp_path) == before
    assert (found.status, found.err, seen.status) == (0, "", 0)
    golden("doctor.piped", _settled(found.out), folder=tmp_path)
    (seccomp,) = [line for line in found.out.splitlines() if line.split()[1:2] == ["seccomp"]]
    golden("doctor-seccomp.piped", re.sub(r" +", " ", seccomp))
    golden("doctor.terminal", seen.text.splitlines()[-1])
    assert "\r" in seen.text and "\r" not in found.out
    assert "\x1b[32mok" in seen.text
    assert re.search(r"process: execve: .*SIGSYS", seen.text)


def _settled(text):
    """Return a report without the parts that differ between machines: interpreter, user and kernel layer."""
    kept, area = [], ""
    for line in text.splitlines():
        area = line if not line.startswith(" ") else area
        if area != "kernel":
            kept.append(re.sub(r"(?<=  )(CPython .*|root: .*|\w+: can use .*)$", "…", line))
    return re.sub(r"works: \d+", "works: 100", "\n".join(kept)) + "\n"


def test_what_is_wrong_is_said_with_its_fix(tmp_path):
    """Folders, keys, port, events, schema and extensions are in one report and in the exit status."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        state = tmp_path / "state"
        state.mkdir()
        state.chmod(0o777)
        KeyRing.open(state / "keys")
        (state / "keys").chmod(0o644)
        open_store(f"sqlite:///{state}/sandbox.db").close()
        with closing(Database(parse_url(f"sqlite:///{state}/sandbox.db"))) as database:
            database.act(lambda connection: migrations.downgrade(connection, "0002"))
        broken = tmp_path / "modules" / "broken"
        broken.mkdir(parents=True)
        (broken / "manifest.json").write_text("{}")
        config = configured(
            tmp_path,
            server={"port": taken.getsockname()[1]},
            network={"stream": {"type": "redis", "url": "redis://:s3cret@127.0.0.1:1/0"}},
            modules_path=str(tmp_path / "modules"),
            data_dir=str(tmp_path / "config.yaml"),
            sandbox={"os": {**EVERYTHING["os"], "helper_socket": f"/tmp/{'x' * 120}"}},
        )
        before = everything_in(tmp_path)
        found = piped(["doctor", "--config", config, "--json"], {"DEMOCRAI_OS_SANDBOX_LANDLOCK_ABI": "0"})
    assert everything_in(tmp_path) == before
    assert (found.status, "s3cret" in found.out) == (1, False)
    lines = lines_of(found.out)
    expected = {
        "state_dir": ("off", f"{state} ", f"chmod 700 {state}"),
        "data_dir": ("off", f"{tmp_path}/config.yaml ", ""),
        "keys": ("off", f"{state}/keys", ""),
        "address": ("off", os.strerror(errno.EADDRINUSE), "server.port"),
        "store": ("off", "0002", "db upgrade"),
        "events": ("off", "127.0.0.1:1", "network.stream"),
        "helper_socket": ("off", "107", "helper_socket"),
        "extensions": ("degraded", "module:broken", "manifest check"),
        "landlock": ("unsupported", "", ""),
    }
    for name, (found_state, summary, fix) in expected.items():
        line = lines[name]
        assert (line["state"], line["wanted"]) == (found_state, True), line
        assert summary in line["summary"], line
        assert fix in line["fix"], line
    told = "".join(f"{name}: {lines[name]['summary']}\n  {lines[name]['fix']}\n" for name in expected)
    golden("doctor-wrong", told, folder=tmp_path, also=[(HEAD, "9999"), (r"(?<=answer: ).*", "...")])
    assert lines["seccomp"]["state"] == "ok"


@needs_netlab
def test_the_helper_is_tried_when_asked_to():
    """With ``--egress`` all five controls are applied to a process, and nothing remains."""
    with short_folder() as here, Lab() as lab:
        words = [*COMMAND, "doctor", "--egress", "--json", "--config", str(configured(here, sandbox=EVERYTHING))]
        found = lab.inside.run(words, env=environment(), check=False, timeout=PATIENCE)
        assert "DEMOCRAI" not in lab.inside.rules()
    lines = lines_of(found.stdout)
    assert {name: lines[name]["state"] for name in (*KERNEL, "helper")} == dict.fromkeys((*KERNEL, "helper"), "ok")
    assert found.returncode == 0


@needs_other_user
@pytest.mark.skipif(not _everybody_reads(PACKAGES), reason="other users cannot read the packages installed here")
def test_a_user_who_is_not_root_is_told_what_only_root_can_have():
    """Everything but the packet filter works; the fix is the file to install."""
    with short_folder() as here:
        here.chmod(0o755)
        home = here / "home"
        home.mkdir()
        config = configured(here)
        config.write_text(f"{{state_dir: {home}/state, server: {{port: 0}}, sandbox: {{os: {{enabled: true}}}}}}")
        config.chmod(0o644)
        os.chown(home, NOBODY, NOBODY)
        found = subprocess.run(
            [interpreter_for_all(), "-B", "-m", "democrai_sandbox.cli", "doctor", "--json", "--config", str(config)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd="/",
            env=environment({"PYTHONPATH": f"{SOURCE}:{PACKAGES}", "HOME": str(home)}),
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
        )
        assert list(home.iterdir()) == []
    lines = lines_of(found.stdout)
    assert (found.returncode, lines["user"]["details"]["uid"]) == (1, NOBODY)
    assert (lines["egress"]["state"], lines["egress"]["wanted"]) == ("unsupported", True)
    assert "helper sudoers --user nobody" in lines["egress"]["fix"]
    assert {lines[name]["state"] for name in ("guard", "landlock", "seccomp", "state_dir")} == {"ok"}


@needs_other_user
def test_a_state_folder_that_this_user_cannot_enter():
    """The line of the database has the error, and the other lines still work."""
    with short_folder() as here:
        here.chmod(0o755)
        (here / "state").mkdir(0o700)
        settings = load({"state_dir": str(here / "state"), "server": {"port": 0}}, environ={}).settings
        os.seteuid(NOBODY)
        try:
            store, *others = service_lines(settings)
        finally:
            os.seteuid(0)
    assert (store.state, [line.name for line in others]) == ("off", ["events", "address"])
    assert os.strerror(errno.EACCES) in store.summary


def test_a_configuration_that_is_wrong(tmp_path):
    """An invalid configuration is refused as by serve, with every problem."""
    found = says("doctor", "--config", configured(tmp_path, sandbx={}))
    assert (found.status, found.out, code_of(found.err)) == (1, "", "config_invalid")
    assert "/sandbx: " in found.err and "'sandbox'" in found.err


@pytest.mark.parametrize(("isolation", "found"), [({}, []), ({"module:feeds": "in_process"}, ["module:feeds"])])
def test_native_packages_in_process_are_pointed_out(tmp_path, isolation, found):
    """A module in process that imports an unguarded native package is a note, not a failure."""
    folder = tmp_path / "modules" / "feeds"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"name": "feeds"}))
    (folder / "module.py").write_text("import lxml.etree\n")
    config = configured(tmp_path, modules_path=str(folder.parent), sandbox={"isolation": isolation})
    done = piped(("doctor", "--json", "--config", config))
    line = lines_of(done.out)["native"]
    assert (sorted(line["details"]), line["state"]) == (found, "ok")


def test_settings_of_extensions_are_checked(tmp_path):
    """A missing key file and an unknown engine are reported before a start fails."""
    model = {"endpoint": "https://models.example.com/v1", "model": "small", "api_key_file": str(tmp_path / "key")}
    engines = {"whisper": {"install": True}}
    for section, part in (({"models": {"default": model}}, "api_key_file"), ({"engines": engines}, "whisper")):
        config = configured(tmp_path, extensions=section)
        done = piped(["doctor", "--config", config, "--json"])
        line = lines_of(done.out)["configured"]
        assert (done.status, line["state"]) == (1, "off")
        assert part in line["summary"]
        assert line["fix"]
