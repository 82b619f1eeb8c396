"""``testing.module(..., observe=True)``: everything is allowed and recorded, and a manifest is proposed."""

from __future__ import annotations

import http.server
import io
import json
import os
import threading
import time

import pytest

from democrai_sandbox.errors import FilesystemDenied, GuardUsageError, InvalidInputError
from democrai_sandbox.manifests import make_manifest
from democrai_sandbox.runtime.extension_run import Recording
from democrai_sandbox.sdk import testing

READ = {"resource_type": "filesystem", "operation": "read"}
CODE = """
import ctypes
import functools
import importlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from democrai_sandbox import sdk


@sdk.action("work")
def work(place, url):
    found = {"native": ctypes.CDLL(None).getpid() == os.getpid()}
    importlib.import_module("_ctypes")
    found["files"] = sorted(item.name for item in Path(place, "in").iterdir())
    Path(place, "log.txt").write_text("done")
    with tempfile.NamedTemporaryFile("w", dir=Path(place, "out")) as file:
        file.write("x")
    found["missing"] = os.path.exists(Path(place, "missing"))
    with urllib.request.urlopen(url + "?page=1", timeout=30) as answer:
        found["page"] = answer.read().decode()
    return found


@sdk.action("never")
def never(protected):
    attempts = {
        "the host": lambda: Path(protected, "secret").read_text(),
        "its own code": lambda: Path(__file__).write_text(""),
        "a program": lambda: subprocess.run(["true"], check=True),
        "its rules": lambda: os.environ.update(DEMOCRAI_ACCESS="[]"),
        "the folder around": lambda: Path(protected).parent.rename(Path(protected).parent.with_name("away")),
        "variables of others": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    }
    return {name: tried(attempt) for name, attempt in attempts.items()}


@sdk.action("by_others")
def by_others(protected, place):
    # Other functions where whoever decides, outside of the guard, might look for its own.
    theft = functools.partial(shutil.copyfile, f"{protected}/secret")
    for number, (owner, name) in enumerate(((os.path, "lexists"), (os, "lstat"), (os, "fspath"), (sys, "_getframe"))):
        kept = getattr(owner, name)
        setattr(owner, name, theft)
        try:
            open(f"{place}/{number}").close()
        except (OSError, TypeError):
            pass
        setattr(owner, name, kept)


@sdk.action("programs")
async def programs(program):
    return (await sdk.tasks.run_subprocess([program])).text


def tried(attempt):
    try:
        attempt()
    except PermissionError as error:
        return type(error).__name__
    return "it worked"
"""


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"a page")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def url():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/page"
    server.shutdown()
    server.server_close()


@pytest.fixture
def world(tmp_path_factory, monkeypatch):
    """Make a module and its files. The module has a separate temp directory, because the usual one is open to all."""
    place = tmp_path_factory.mktemp("world")
    for name in ("in", "out", "shut", "temp", "module"):
        (place / name).mkdir()
    (place / "in" / "a.csv").write_text("1")
    (place / "shut" / "secret").write_text("x")
    (place / "module" / "module.py").write_text(CODE)
    declared = [{"resource_type": "filesystem", "operation": "read", "target": "/opt/old"}]
    (place / "module" / "manifest.json").write_text(json.dumps({"name": "demo", "version": "7", "access": declared}))
    (place / "tool").write_text("#!/bin/sh\necho tooled\n")
    (place / "tool").chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(place / "temp"))
    return place


def accesses(value):
    return {(item["target"], str(item["operation"])) for item in value["access"]}


def test_a_run_proposes_the_manifest_that_it_needs(world, url):
    """Files, HTTP requests and imports; under the proposal the same run succeeds, and nothing is denied."""
    with testing.module(world / "module", observe=True) as module:
        first = module.action("work", place=str(world), url=url)
        module.action("programs", program=str(world / "tool"))
        found = module.proposal()
    assert first == {"native": True, "files": ["a.csv"], "missing": False, "page": "a page"}
    assert found.value["version"] == "7"
    assert found.value["allowed_imports"] == ["ctypes"]
    assert accesses(found.value) == {
        (url, "receive"),
        (f"{world}/in", "read"),
        (f"{world}/log.txt", "['create', 'modify']"),
        (f"{world}/out", "['read', 'create', 'delete']"),
        (f"{world}/missing", "read"),
        (f"{world}/tool", "execute"),
    }
    assert [rule.normalized_target for rule in found.unused] == ["/opt/old"]
    notes = {entry.target: entry.notes for entry in found.proposal.entries}
    assert [bool(notes[f"{world}/{name}"]) for name in ("out", "in", "log.txt")] == [True, True, False]
    assert found.proposal.unverified == found.proposal.uses
    assert found.value["review"] == list(found.proposal.review)
    with testing.module(world / "module", manifest=found.manifest) as module:
        assert module.action("work", place=str(world), url=url) == first
        assert not module.denied


def test_the_lines_that_led_there_are_told(world, url):
    """Lines of the extension's own code, also if a library asks."""
    with testing.module(world / "module", observe=True) as module:
        module.action("work", place=str(world), url=url)
        lines = (world / "module" / "module.py").read_text().splitlines()
        seen = {one.target: one for one in module.recording.seen}
    for target, text in {url: "urlopen", f"{world}/in": "iterdir", "ctypes": "import ctypes"}.items():
        file, _, number = seen[target].place.rpartition(":")
        assert file == str(world / "module" / "module.py")
        assert text in lines[int(number) - 1]
    assert (seen[url].by, seen[f"{world}/in"].by) == ("library", "own")


def test_the_limits_of_the_host_stay(world):
    """Protected paths, its own sources, programs it starts directly, DEMOCRAI_*: refused, and not proposed."""
    with testing.module(world / "module", observe=True, protected=[str(world / "shut")]) as module:
        assert module.action("never", protected=str(world / "shut")) == {
            "the host": "FilesystemDenied",
            "its own code": "FilesystemDenied",
            "a program": "SubprocessDenied",
            "its rules": "EnvironmentDenied",
            "the folder around": "FilesystemDenied",
            "variables of others": "FilesystemDenied",
        }
        assert (world / "module" / "module.py").read_text() == CODE
        assert module.proposal().value["access"] == []
        assert {type(denial).__name__ for denial in module.recording.denied.values()} == {
            "FilesystemDenied",
            "SubprocessDenied",
            "EnvironmentDenied",
        }


def test_who_decides_calls_nothing_that_is_not_its_own(world):
    """The recorder reads files outside the guard, where it must not call code of the subject."""
    with testing.module(world / "module", observe=True, protected=[str(world / "shut")]) as module:
        module.action("by_others", protected=str(world / "shut"), place=str(world / "out"))
        assert len(module.recording.accesses) == 4
    assert list((world / "out").iterdir()) == []


def test_without_observe_nothing_is_proposed(world):
    """A proposal would lack denied accesses; and a sensitive import is refused as usual."""
    (world / "module" / "module.py").write_text("from democrai_sandbox import sdk\n")
    with testing.module(world / "module") as module, pytest.raises(GuardUsageError):
        module.proposal()
    (world / "module" / "module.py").write_text("open('/etc/group').read()\n")
    with pytest.raises(FilesystemDenied), testing.module(world / "module"):
        pass


def test_a_trace_is_read_back_and_odd_ones_are_refused():
    """With everything that counts; the error names a malformed line."""
    first = Recording()
    for _ in range(3):
        first.notice(("filesystem", "read", "/srv/\x1b[31m", "own", "/x.py:1", True))
    first.notice(("import", "use", "ctypes"))
    again = Recording()
    again.read(first.lines())
    assert again.seen == first.seen
    good = next(first.lines())
    odd = [good.replace('"times": 3', f'"times": {times}') for times in ("NaN", "1.5", "-1", "0", "true", '"3"')]
    odd += [good.replace('"own"', "7"), good.replace('"exists"', '"is"'), "[" * 100_000]
    for line in ("", "[]", "{}", '{"times": 1}', "null", "{", *odd):
        with pytest.raises(InvalidInputError, match="/2"):
            Recording().read([good, line])
    with pytest.raises(InvalidInputError):
        Recording().read(io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"))
    found = again.suggestion(make_manifest({"name": "demo"}, "module"))
    assert found.value == {"name": "demo", "allowed_imports": ["ctypes"], "review": list(found.proposal.review)}
    with pytest.raises(ValueError, match="observation"):
        first.notice([1, 2])


def test_many_things(monkeypatch):
    """The cost grows linearly with the number of accesses; beyond the limit, nothing is proposed."""
    few, many = ([suggested(number) for _ in range(3)] for number in (300, 2400))
    recording = many[0][1]
    # Quadratic cost would be 64 times as much.
    assert min(seconds for seconds, _ in many) < 24 * min(seconds for seconds, _ in few)
    monkeypatch.setattr("democrai_sandbox.runtime.extension_run._MOST", 2400)
    recording.notice(("filesystem", "read", "/srv/b"))
    with pytest.raises(InvalidInputError, match="2,400"):
        recording.suggestion(MANY)


MANY = make_manifest({"name": "demo", "access": [READ | {"target": "/srv/a/1"}]}, "module")


def suggested(number):
    """Record that many accesses and propose a manifest; return the processor time, and the recording."""
    recording = Recording()
    begun = time.process_time()
    for each in range(number):
        recording.notice(("filesystem", "read", f"/srv/a/{each % 7}/{each}", "own", f"/x.py:{each % 3}", True))
    found = recording.suggestion(MANY, most=5)
    declared = [one for one in recording.accesses if found.is_declared(one)]
    assert {(recording.times(one), len(recording.places(one))) for one in recording.accesses} == {(1, 1)}
    seconds = time.process_time() - begun
    assert len(declared) == len(range(1, number, 7))
    assert (found.unused, found.value["access"]) == ((), [READ | {"target": "/srv/a"}])
    return seconds, recording


def test_what_libraries_look_for_in_vain_is_not_needed():
    """Missing files look absent to libraries; files they read, and questions of the subject's own code, are needed."""
    recording = Recording()
    seen = {
        ("/opt/none", "library", False): False,
        ("/opt/none", "own", False): True,
        ("/opt", "library", True): True,
        ("/opt/lib", "import", True): False,
        (os.path.dirname(__file__), "import", True): True,
        (__file__, "import", True): True,
    }
    for target, by, exists in seen:
        recording.notice(("filesystem", "read", target, by, "", exists))
    assert {one.target for one in recording.accesses} == {target for (target, *_), kept in seen.items() if kept}
    assert {one.target for one in recording.idle} == {"/opt/lib"}
