"""``record``: the proposals for the example extensions are sufficient and minimal."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import sys
import threading
from pathlib import Path

import pytest

from democrai_sandbox.errors import SandboxDenied
from democrai_sandbox.manifests import make_manifest
from democrai_sandbox.sdk.testing import Extension
from tests.cli.goldens import CHOICES, golden, piped, terminal, transcript
from tests.cli.local import configured, says

EXAMPLES = Path(__file__).parents[2] / "examples" / "extensions"


class Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"a word")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def url():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Copies of the examples, a configuration, and a separate temporary directory."""
    for name in ("temp", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "may.csv").write_text("1,2")
    shutil.copytree(EXAMPLES, tmp_path / "extensions")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temp"))
    return tmp_path


def record(world, *arguments, environ=None):
    options = ("--config", configured(world), "--json")
    return says(
        "record", arguments[0], *options, *arguments[1:], environ={"TMPDIR": str(world / "temp"), **(environ or {})}
    )


def without(value, pointer, place):
    """The manifest without one of its entries."""
    copy = json.loads(json.dumps(value))
    section = copy[pointer] if pointer else copy
    del section["access"][place]
    return copy


def declared(value, folder):
    return set(make_manifest(value, "module", folder=str(folder)).access)


def each_entry_is_needed(kind, folder, value, run, *, pointer="", **options):
    """Run it under the proposal, and without each entry in turn."""
    entries = (value[pointer] if pointer else value)["access"]
    with Extension(kind, folder, manifest=make_manifest(value, kind, folder=folder), **options) as whole:
        run(whole)
        assert not whole.denied
    for place in range(len(entries)):
        less = make_manifest(without(value, pointer, place), kind, folder=folder)
        with pytest.raises(SandboxDenied), Extension(kind, folder, manifest=less, **options) as extension:
            run(extension)
    return [(entry["operation"], entry["target"]) for entry in entries]


def test_a_module_with_files_and_requests(world, url):
    """reports reads one file of a folder, and one page."""
    folder = str(world / "extensions/modules/reports")
    params = {"month": "may", "sales": str(world / "data"), "rates": url}
    done = record(world, "module", "--check", "--action", "write", "--params", json.dumps(params), folder)
    assert (done.status, done.data["check"]) == (0, {"missing": []}), done.err
    found = each_entry_is_needed(
        "module", folder, done.data["manifest"], lambda module: module.action("write", **params)
    )
    assert found == [("receive", f"{url}/may"), ("read", f"{world}/data/may.csv")]
    assert [rule["target"] for rule in done.data["not_used"]] == [
        "/srv/democrai/sales",
        "https://api.example.com/v1/rates",
    ]
    assert done.data["manifest"]["description"].startswith("Writes a report")


def test_a_module_that_asks_before_it_requests(world, url):
    """weather declares nothing and asks for approval, which is also observed."""
    folder = str(world / "extensions/modules/weather")
    done = record(world, "module", "--check", "--action", "fetch", "--param", f"url={url}/today?x=1", folder)
    assert (done.status, done.data["check"]) == (0, {"missing": []}), done.err
    found = each_entry_is_needed(
        "module", folder, done.data["manifest"], lambda module: module.action("fetch", url=f"{url}/today?x=1")
    )
    assert found == [("receive", f"{url}/today")]
    [place] = done.data["observed"][0]["places"][-1:]
    assert place.startswith(f"{folder}/module.py:")


def test_a_module_that_starts_a_program(world):
    """converter runs a program through the SDK."""
    folder = str(world / "extensions/modules/converter")
    done = record(world, "module", "--check", "--action", "shout", "--param", "text=ho", folder)
    assert (done.status, done.data["check"]) == (0, {"missing": []}), done.err
    assert done.data["manifest"]["access"] == [
        {"resource_type": "filesystem", "operation": "execute", "target": "bin/shout"}
    ]
    less = make_manifest(without(done.data["manifest"], "", 0), "module", folder=folder)
    extension = Extension("module", folder, manifest=less)
    extension.start_by(None, None)
    with pytest.raises(SandboxDenied), extension:
        extension.action("shout", text="ho")


def test_an_extractor(world):
    """plaintext reads the given file; its other phase stays unchanged."""
    folder = str(world / "extensions/extractors/plaintext")
    file = str(world / "data/may.csv")
    done = record(world, "extractor", "--check", "--method", "extract_file", "--param", f"path={file}", folder)
    assert (done.status, done.data["check"]) == (0, {"missing": []}), done.err
    run = lambda extractor: extractor.method("extract_file", path=file)  # noqa: E731 - short
    found = each_entry_is_needed("extractor", folder, done.data["manifest"], run, pointer="runtime")
    assert found == [("read", file)]
    assert done.data["manifest"]["install"] == {"requirements": []}


def test_an_engine(world, url):
    """wordcount uses a URL of its settings, which needs an entry only if no key allows it."""
    folder = world / "extensions/engines/wordcount"
    packages = world / f"env/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    packages.mkdir(parents=True)
    shutil.copy(folder / "wordtools/wordtools.py", packages)
    given = ("--environment", world / "env", "--setting", f"dictionary_url={url}", "--method", "look_up")
    done = record(world, "engine", "--check", *given, "--param", "word=tree", folder)
    assert (done.status, done.data["check"]) == (0, {"missing": []}), done.err
    assert "access" not in done.data["manifest"]["runtime"]
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "runtime": {}}))
    done = record(world, "engine", "--check", *given, "--param", "word=tree", folder)
    assert (done.status, done.data["check"]) == (0, {"missing": []}), done.err
    found = each_entry_is_needed(
        "engine",
        str(folder),
        done.data["manifest"],
        lambda engine: engine.method("look_up", word="tree"),
        pointer="runtime",
        environment=str(world / "env"),
        services={"engines.settings": lambda _view: {"dictionary_url": url}},
    )
    assert found == [("receive", f"{url}/tree")]


@pytest.mark.slow
def test_an_installation(world):
    """HTTP requests of the install phase are observed; wordcount makes none."""
    folder = world / "extensions/engines/wordcount"
    (world / "wheels").mkdir()
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(world / "wheels"), "PIP_CONFIG_FILE": "/dev/null"}
    # A process of its own: installing enters a guard, after which nobody settles another in that process.
    done = piped(
        ["record", "engine", "--config", configured(world), "--json", "--phase", "install", folder],
        {**offline, "TMPDIR": str(world / "temp")},
    )
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert (found["schema"], found["observed"], found["denied"]) == ("democrai-sandbox/record.engine/1", [], [])
    assert found["manifest"]["install"] == {"requirements": ["./wordtools"]}


# ---- scripts ---------------------------------------------------------------------------------------------------------

SCRIPT = """
import ctypes
import sys
import helper
print(helper.rows(sys.argv[1]))
with open(sys.argv[1] + "/out.txt", "w") as file:
    file.write("x")
"""


@pytest.fixture
def script(world):
    (world / "work").mkdir()
    (world / "work" / "script.py").write_text(SCRIPT)
    (world / "work" / "helper.py").write_text("def rows(place):\n    return open(place + '/may.csv').read()\n")
    return world / "work" / "script.py"


def test_a_script_is_recorded_and_runs_under_what_is_proposed(world, script):
    """Imports from its folder are included; the trace has the same content, and run accepts the file."""
    trace, manifest = world / "trace.jsonl", world / "manifest.json"
    environ = {"TMPDIR": str(world / "temp")}
    options = ("--config", configured(world), "--check", "--trace", trace, "--output", manifest)
    done = says("record", "script", *options, script, world / "data", environ=environ)
    assert done.status == 0, done.err
    golden("record-script", done.out, folder=world)
    golden("record-script.checked", done.err, folder=world)
    seen = terminal(("record", "script", *options[:2], script, world / "data"), environ, columns=300)
    golden("record-script.terminal", seen.text, folder=world)
    proposed = json.loads(manifest.read_text())
    assert {entry["target"] for entry in proposed["access"]} == {
        f"{world}/data/may.csv",
        f"{world}/data/out.txt",
        f"{world}/work",
    }
    assert proposed["allowed_imports"] == ["ctypes"]
    again = says("record", "suggest", "--manifest", manifest, trace)
    assert declared(json.loads(again.out), world) == declared(proposed, world)
    ran = piped(
        ["run", "script", "--config", configured(world), "--manifest", manifest, script, world / "data"], environ
    )
    assert (ran.status, ran.out) == (0, "1,2\n")
    for place in range(len(proposed["access"])):
        (world / "less.json").write_text(json.dumps(without(proposed, "", place)))
        options = ("--config", configured(world), "--no-kernel", "--manifest", world / "less.json")
        assert says("run", "script", *options, script, world / "data", environ=environ).status == 1


def test_a_script_that_only_reads_is_repeated_without_each_entry(world):
    """Unneeded entries are removed; the repetitions show no output."""
    place = world / "data"
    (world / "reads.py").write_text(
        f"import linecache\nlinecache.getline({str(world / 'config.yaml')!r}, 1)\n"
        f"linecache.getline({str(world / 'extensions')!r}, 1)\nprint(open({str(place / 'may.csv')!r}).read())\n"
    )
    done = record(world, "script", "--check", world / "reads.py")
    assert (done.status, done.data["necessity"]["tried"]) == (0, True)
    assert [entry["target"] for entry in done.data["manifest"]["access"]] == [str(place / "may.csv")]


def test_a_script_that_needs_input_is_not_repeated_for_each_entry(world):
    """It fails without input, which does not count against the proposal."""
    (world / "asks.py").write_text(f"input()\nprint(open({str(world / 'data' / 'may.csv')!r}).read())\n")
    found = piped(
        ("record", "script", "--config", configured(world), "--json", "--check", world / "asks.py"), {}, "x\ny\n"
    )
    assert json.loads(found.out)["necessity"]["tried"] is False


def test_a_check_that_fails_says_what_is_missing(world):
    """A script that differs in each run is not covered by one observation."""
    file = world / "odd.py"
    file.write_text(
        "import os\n"
        f"other = {str(world / 'data')!r} + '/' + str(len(os.listdir({str(world / 'temp')!r})))\n"
        f"open({str(world / 'temp')!r} + '/' + str(os.getpid()), 'w').close()\n"
        "open(other, 'a').close()\n"
    )
    done = record(world, "script", "--check", file)
    assert done.status == 1
    assert done.data["check"]["missing"] == [f"sandbox_filesystem_denied:odd:{world}/data/1"]


def test_what_fails_by_itself_is_not_said_to_run(world):
    """The same failure under the proposal is not a success."""
    (world / "fails.py").write_text("raise SystemExit(3)\n")
    done = says("record", "script", "--config", configured(world), "--check", world / "fails.py")
    assert done.status == 1
    golden("record-script-fails.checked", done.err, folder=world)


def test_a_policy_file_stays_one(world, script):
    """A file with only declarations gets declarations, without a name."""
    policy = world / "policy.json"
    policy.write_text('{"access": [], "allowed_imports": []}')
    done = record(world, "script", "--manifest", policy, script, world / "data")
    assert (done.status, set(done.data["manifest"])) == (0, {"access", "allowed_imports", "review"})


LOOKING = """
import filecmp
import gettext
import linecache
import os
from pathlib import Path

from democrai_sandbox import sdk


@sdk.action("look")
def look(place):
    return os.path.isdir(place + "/in")


@sdk.action("read")
def read(place):
    os.path.isdir(place), os.path.isdir(place + "/in")
    return Path(place, "in", "a.csv").read_text()


@sdk.action("library")
def library(place):
    gettext.find("app", place + "/locale", ["de"])
    return Path(place, "in", "a.csv").read_text()


@sdk.action("strict")
def strict(place):
    return filecmp.cmp(place + "/in/a.csv", place + "/in/a.csv")


@sdk.action("tolerant")
def tolerant(place):
    linecache.getline(place + "/in/b.csv", 1)
    try:
        open(place + "/in/c.csv").close()
    except OSError:
        pass
    return Path(place, "in", "a.csv").read_text()


@sdk.action("result")
def result(place):
    return linecache.getline(place + "/in/b.csv", 1)


@sdk.action("program")
async def program(place):
    linecache.getline(place + "/in/b.csv", 1)
    return (await sdk.tasks.run_subprocess(["true"])).returncode


@sdk.action("write")
def write(place):
    linecache.getline(place + "/in/b.csv", 1)
    Path(place, "out.txt").write_text("x")
"""


@pytest.fixture
def looking(world):
    """A module that probes paths; returns a function that records one of its actions."""
    folder = world / "looking"
    folder.mkdir()
    (folder / "module.py").write_text(LOOKING)
    (folder / "manifest.json").write_text("{}")
    catalogue = world / "place" / "locale" / "de" / "LC_MESSAGES"
    catalogue.mkdir(parents=True)
    (catalogue / "app.mo").touch()
    (world / "place" / "in").mkdir()
    for name in ("a.csv", "b.csv", "c.csv"):
        (world / "place" / "in" / name).write_text(name)

    def record_action(action, *options):
        place = world / "place"
        done = record(world, "module", *options, "--action", action, "--param", f"place={place}", folder)
        found = done.data["manifest"].get("access", [])
        return done, [(entry["operation"], os.path.relpath(entry["target"], place)) for entry in found]

    return record_action


def test_a_folder_above_what_is_read_needs_no_entry(looking):
    """It can be probed once the file is declared."""
    done, found = looking("read", "--check")
    assert found == [("read", "in/a.csv")]
    assert done.data["necessity"] == {"tried": True, "reason": "", "fix": "", "left_out": [], "unverified": []}


def test_an_entry_for_a_folder_that_is_only_looked_at_says_so(looking):
    """The module's code needs the entry, and no narrower one exists."""
    done, found = looking("look", "--check")
    assert found == [("read", "in")]
    assert [note["target"] for note in done.data["notes"]] == [done.data["manifest"]["access"][0]["target"]]
    assert done.data["necessity"]["tried"]


def test_what_libraries_only_look_at_is_left_out(looking):
    """The paths look absent to libraries; the report lists them."""
    done, found = looking("library")
    assert found == [("read", "in/a.csv")]
    assert [one["target"].rpartition("/")[2] for one in done.data["only_looked_at"]] == ["app.mo"]
    assert done.data["necessity"]["tried"]


def test_what_a_library_cannot_do_without_is_found_by_trying(looking):
    """The first proposal fails; the one with the probes works, with a note."""
    done, found = looking("strict", "--check")
    assert (done.status, found) == (0, [("read", "in/a.csv")])
    assert done.data["notes"]


def test_what_it_runs_without_is_left_out(looking):
    """Tolerated failures do not become entries."""
    done, found = looking("tolerant", "--check")
    assert (done.status, found) == (0, [("read", "in/a.csv")])
    assert len(done.data["necessity"]["left_out"]) == 2


def test_what_changes_the_result_is_needed(looking):
    """Without the entry the run succeeds with another result."""
    done, found = looking("result", "--check")
    assert (done.status, found) == (0, [("read", "in/b.csv")])


@pytest.mark.parametrize(("action", "reason"), [("write", "create"), ("program", "programs")])
def test_a_run_that_may_change_something_is_not_repeated_for_each_entry(looking, action, reason):
    """Whether each entry is needed is then not known: each is marked, in the report and in the manifest."""
    done, found = looking(action)
    assert done.status == 0
    assert ("read", "in/b.csv") in found
    necessity = done.data["necessity"]
    assert (necessity["tried"], necessity["left_out"], done.data["check"]) == (False, [], None)
    assert reason in necessity["reason"] and "--check" in necessity["fix"]
    assert [one["verified"] for one in done.data["proposed"]] == [False] * len(necessity["unverified"])
    assert len(necessity["unverified"]) == len(done.data["manifest"]["review"]) > 0


@pytest.mark.parametrize(("action", "left"), [("write", [(["create", "modify"], "out.txt")]), ("program", [])])
def test_a_run_that_changes_something_is_repeated_if_the_user_says_so(looking, action, left):
    """``--check`` is the user's word that a repetition does no harm."""
    done, found = looking(action, "--check")
    assert (done.status, found, done.data["necessity"]["unverified"]) == (0, left, [])
    assert "review" not in done.data["manifest"]


def test_a_run_is_not_repeated_with_no_check(looking):
    """Not even one that only reads."""
    done, found = looking("tolerant", "--no-check")
    assert (done.status, len(found), done.data["check"]) == (0, 3, None)
    assert len(done.data["necessity"]["unverified"]) == 3


def test_a_run_that_only_reads_is_repeated_by_default(looking):
    """Failures that a library or the module itself tolerates do not become entries, without any option."""
    done, found = looking("tolerant")
    assert (done.status, found, done.data["check"]) == (0, [("read", "in/a.csv")], {"missing": []})
    assert [one["without_it"] for one in done.data["proposed"]] == ["fails"]


def test_what_changes_the_result_is_not_said_to_fail(looking):
    """The proposal says what happens without it."""
    done, _ = looking("result")
    [proposed] = done.data["proposed"]
    assert (proposed["verified"], proposed["without_it"]) == (True, "differs")
    assert len(done.data["manifest"]["review"]) == 1


BAD = [
    (("script", "none.py"), 1, "none.py"),
    (("module", "/nowhere"), 1, "manifest.json"),
    (("module", "{0}/extensions/modules/reports", "--action", "no"), 1, "no"),
    (("module", "{0}/extensions/modules/reports", "--param", "x"), 2, "--param"),
    (("module", "{0}/extensions/modules/reports", "--params", "{{"), 2, "--params"),
    (("module", "{0}/extensions/modules/reports", "--params", "[]"), 2, "--params"),
    (("module", "{0}/extensions/modules/reports", "--timeout", "0"), 2, "--timeout"),
    (("engine", "{0}/extensions/engines/wordcount", "--environment", "{0}"), 2, "{0}"),
    (("suggest", "{0}/extensions/modules/reports/module.py"), 1, "/1"),
    (("suggest", "/nowhere"), 1, "/nowhere"),
    (("script", "--output", "{0}/config.yaml", "{0}/config.yaml"), 2, "--yes"),
    (("script", "--trace", "{0}/config.yaml", "{0}/config.yaml"), 2, "--yes"),
    (("script", "--yes", "--output", "{0}/link", "{0}/config.yaml"), 1, "{0}/link"),
    (("script", "--yes", "--trace", "{0}/pipe", "{0}/config.yaml"), 1, "{0}/pipe"),
    (("script", "--yes", "--trace", "{0}/temp", "{0}/config.yaml"), 1, "{0}/temp"),
    ((), 2, "verb"),
]
"""What is typed, the status, and a value that the message has."""


def test_bad_input_is_one_clear_line(world):
    """Wrong input is one line with the documented status; nothing runs or is written."""
    (world / "link").symlink_to(world / "not there")
    os.mkfifo(world / "pipe")
    steps, wrong = [], []
    for arguments, status, value in BAD:
        config = () if not arguments or arguments[0] == "suggest" else ("--config", configured(world))
        words = [text.format(world) for text in arguments]
        done = says("record", *words[:1], *config, *words[1:])
        steps.append((("record", *words), done))
        if (done.status, done.out, value.format(world) in done.err) != (status, "", True):
            wrong.append(steps[-1])
        assert len(done.err.splitlines()) <= 3
        assert (world / "link").is_symlink() and (world / "pipe").is_fifo() and not (world / "not there").exists()
    of_python = [(r"(?i)(?<=python) ?3\.\d+", "3"), (r"(?<=no JSON: ).*", "...")]
    transcript("record-refused", steps, folder=world, also=[CHOICES, *of_python])
    assert wrong == []
