"""``record`` with real libraries: what is said to be necessary is, and the proposal as a whole is enough."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from importlib.util import find_spec

import pytest

from tests.cli.local import configured, says

PATHS = """
import tempfile
from pathlib import Path
out = Path(place, "out")
out.mkdir(exist_ok=True)
with tempfile.NamedTemporaryFile("w", dir=out) as file:
    file.write("x")
(out / "report.txt").write_text(Path(place, "data.csv").read_text())
try:
    Path(place, "optional.toml").read_text()
except OSError:
    pass
"""
DATABASE = """
import sqlite3
from contextlib import closing
with closing(sqlite3.connect(place + "/rows.db")) as rows, rows:
    rows.execute("create table if not exists rows (number)")
    rows.execute("insert into rows values (1)")
"""
PAGE = """
import httpx
print(httpx.get(url + "/rates", trust_env=False).text)
"""
PLOT = """
import matplotlib
matplotlib.use("Agg")
from matplotlib import pyplot
pyplot.plot([1, 2, 3])
pyplot.savefig(place + "/plot.png")
"""
YAML = """
import yaml
with open(place + "/settings.yaml") as file:
    print(yaml.safe_load(file))
"""
PROGRAMS = {"pathlib": PATHS, "sqlite3": DATABASE, "httpx": PAGE, "matplotlib": PLOT, "yaml": YAML}


class Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"a rate")

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Place:
    """A folder for a program, as it is before each of its runs."""

    def __init__(self, folder, program, url):
        self.folder = folder
        self.script, self.place = folder / "program.py", folder / "place"
        (folder / "temp").mkdir()
        self.script.write_text(f"place, url = {str(self.place)!r}, {url!r}\n{program}")
        self.environ = {"TMPDIR": str(folder / "temp")}

    def restore(self):
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        (self.place / "data.csv").write_text("1,2")
        (self.place / "settings.yaml").write_text("a: 1")

    def record(self, *options):
        self.restore()
        options = ("--config", configured(self.folder), "--json", *options)
        return says("record", "script", *options, self.script, environ=self.environ)

    def runs(self, manifest, *, again=False):
        """Tell whether it ends well under a manifest: as before its first run, or over what it made."""
        (self.folder / "manifest.json").write_text(json.dumps(manifest))
        options = ("--config", configured(self.folder), "--no-kernel", "--manifest", self.folder / "manifest.json")
        self.restore()
        statuses = [says("run", "script", *options, self.script, environ=self.environ).status for _ in range(1 + again)]
        return statuses[-1] == 0


def without(manifest, use):
    """The manifest without one operation of an entry."""
    kept = []
    for entry in manifest["access"]:
        acts = [entry["operation"]] if isinstance(entry["operation"], str) else entry["operation"]
        if entry["target"] == use["target"]:
            acts = [act for act in acts if act != use["operation"]]
        kept += [{**entry, "operation": acts}] if acts else []
    return {**manifest, "access": kept}


@pytest.mark.parametrize("library", PROGRAMS)
def test_each_verified_entry_is_necessary(tmp_path, url, library):
    """Without it the run fails; with all of them it ends well, also over what it made."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    place = Place(tmp_path, PROGRAMS[library], url)
    done = place.record("--check")
    assert (done.status, done.data["check"], done.data["necessity"]["unverified"]) == (0, {"missing": []}, [])
    manifest = done.data["manifest"]
    assert place.runs(manifest, again=True)
    proposed = done.data["proposed"]
    assert {one["without_it"] for one in proposed} <= {"fails", "fails_again"}
    for one in proposed:
        assert not place.runs(without(manifest, one), again=one["without_it"] == "fails_again"), one
    if library == "pathlib":
        assert not any("optional" in one["target"] for one in proposed)


@pytest.mark.parametrize("library", ["pathlib", "sqlite3"])
def test_a_library_that_writes_is_not_repeated_by_itself(tmp_path, url, library):
    """Each entry is marked in the report and in the manifest, and the report says how to verify it."""
    place = Place(tmp_path, PROGRAMS[library], url)
    done = place.record()
    assert done.status == 0
    assert not any(one["verified"] for one in done.data["proposed"])
    assert len(done.data["manifest"]["review"]) >= len(done.data["proposed"]) > 0
    assert "--check" in done.data["necessity"]["fix"]


def test_the_files_of_the_first_run_are_kept(tmp_path, url, capfd):
    """Repetitions make their own, which are removed."""
    place = Place(tmp_path, "import os\nopen(place + '/pid', 'w').write(str(os.getpid()))\nprint(os.getpid())", url)
    done = place.record("--check")
    assert done.status == 0
    assert sorted(path.name for path in place.place.iterdir()) == ["data.csv", "pid", "settings.yaml"]
    assert place.place.joinpath("pid").read_text() in capfd.readouterr().err.split()
