"""``run``: a single run under a policy, with the streams and the exit status of the code."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys

import pytest

from democrai_sandbox.kernel.landlock.rights import landlock_support
from tests.cli.goldens import CTRL_C, golden, in_terminal, piped, transcript, within
from tests.cli.local import configured, says
from tests.services.environments import Environment

held = pytest.mark.skipif(landlock_support().abi < 4, reason="needs Landlock with TCP ports")


@pytest.fixture
def world(tmp_path):
    """A folder outside of the temporary directory."""
    (tmp_path / "temp").mkdir()
    (tmp_path / "notes.txt").write_text("a note\n")
    return tmp_path


def run(world, *arguments, stdin=""):
    words = ("run", arguments[0], "--config", configured(world), *arguments[1:])
    return piped(words, {"TMPDIR": str(world / "temp")}, stdin)


def written(world, text, name="script.py"):
    (world / name).write_text(text)
    return world / name


def policy(world, **declared):
    (world / "policy.json").write_text(json.dumps(declared))
    return world / "policy.json"


def entry(operation, target):
    kind = "network" if operation in {"connect", "receive", "send"} else "filesystem"
    return {"resource_type": kind, "operation": operation, "target": str(target)}


def test_a_script_has_the_streams_the_arguments_and_the_status(world):
    """As if started directly; messages of the command go to standard error."""
    script = written(
        world,
        "import sys\nprint(__name__, sys.argv[1:], sys.stdin.read())\nprint('oh', file=sys.stderr)\nsys.exit(7)\n",
    )
    done = run(world, "script", script, "--json", "-x", stdin="given")
    assert (done.status, done.out) == (7, "__main__ ['--json', '-x'] given\n")
    assert "guard" in done.err.splitlines()[0]
    assert "oh" in done.err.splitlines()


def test_a_denial_ends_it_with_what_would_allow_it(world):
    """Without a manifest nothing is declared; other failures have a Python traceback and status 1."""
    script = written(world, "import sys\nprint(open(sys.argv[1]).read())\n")
    done = run(world, "script", "--no-kernel", script, world / "notes.txt")
    assert (done.status, done.out) == (1, "")
    golden("run-script-denied", done.err, folder=world)
    allowed = run(
        world, "script", "--manifest", policy(world, access=[entry("read", "notes.txt")]), script, world / "notes.txt"
    )
    assert (allowed.status, allowed.out) == (0, "a note\n\n")
    broken = run(world, "script", "--no-kernel", written(world, "print(1\n", "broken.py"))
    assert broken.status == 1
    assert "SyntaxError" in broken.err


def test_a_script_is_told_from_what_it_catches(world):
    """With --json, the last line on standard error lists all denials, caught or not."""
    script = written(
        world,
        "import os, subprocess\n"
        "for attempt in (lambda: open('/etc/shadow'), lambda: subprocess.run(['true']), lambda: os.fork()):\n"
        "    try:\n        attempt()\n        print('it worked')\n    except PermissionError:\n        print('no')\n",
    )
    done = run(world, "script", "--json", "--no-kernel", script)
    assert (done.status, done.out) == (0, "no\nno\nno\n")
    told = json.loads(done.err.splitlines()[-1])
    assert (told["schema"], told["status"], told["layers"]["held"]) == ("democrai-sandbox/run.script/1", 0, ["guard"])
    assert told["denied"][0] == "sandbox_filesystem_denied:script:/etc/shadow"
    assert len(told["denied"]) == 3


@held
def test_the_kernel_holds_what_the_guard_lets_by(world):
    """Declared native code reads an undeclared file; only the kernel refuses it."""
    script = written(
        world,
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"print(libc.open({str(world / 'notes.txt').encode()!r}, 0) >= 0)\n",
    )
    declared = policy(world, allowed_imports=["ctypes"])
    without = run(world, "script", "--no-kernel", "--manifest", declared, script)
    assert (without.status, without.out) == (0, "True\n")
    under = run(world, "script", "--kernel", "--manifest", declared, script)
    assert (under.status, under.out) == (0, "False\n")
    assert "Landlock" in under.err


def test_without_the_kernel_layer_it_says_so_or_refuses(world):
    """Without kernel support: a note by default, a refusal with --kernel and for programs."""
    script = written(world, "print('here')\n")
    environ = {"DEMOCRAI_OS_SANDBOX_LANDLOCK_ABI": "0"}
    words = ("--config", configured(world))
    usual = piped(("run", "script", *words, script), environ)
    assert (usual.status, usual.out) == (0, "here\n")
    golden("run-script-unheld", usual.err)
    for words_of in (("script", *words, "--kernel", script), ("program", *words, "--", "true")):
        refused = piped(("run", *words_of), environ)
        assert (refused.status, refused.out) == (1, "")
        assert "os_sandbox_unsupported" in refused.err


@held
def test_a_program_is_held_by_the_kernel_alone(world):
    """It reads declared files only; unenforced rules are reported."""
    declared = policy(world, access=[entry("read", "notes.txt"), entry("receive", "https://api.example.com/v1")])
    read = run(world, "program", "--manifest", declared, "--", "cat", world / "notes.txt")
    assert (read.status, read.out) == (0, "a note\n")
    golden("run-program", read.err.replace(f"ABI {landlock_support().abi}", "ABI N"))
    other = run(world, "program", "--json", "--manifest", declared, "--", "cat", world / "config.yaml")
    assert (other.status, other.out) == (1, "")
    told = json.loads(other.err.splitlines()[-1])
    assert (told["schema"], told["status"]) == ("democrai-sandbox/run.program/1", 1)
    assert "guard" not in told["layers"]["held"]
    assert run(world, "program", "--", "sh", "-c", "kill -TERM $$").status == 128 + signal.SIGTERM


def test_time_is_limited(world):
    """After the timeout it is killed with its children, and the status says so."""
    script = written(world, "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n")
    done = run(world, "script", "--timeout", "3", script)
    assert done.status == 1
    assert "3 s" in done.err.splitlines()[-1]
    golden("run-script-timeout", done.err.splitlines()[-1])


def test_an_interrupt_reaches_it(world):
    """The command waits for its end, with and without the kernel layer."""
    script = written(
        world,
        "import time\n"
        "try:\n    print('ready', flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('tidied up', flush=True)\n    raise\n",
    )
    words = ("run", "script", "--config", configured(world), script)
    with in_terminal(words, {"TMPDIR": str(world / "temp")}) as (process, screen):
        screen.read_until("ready")
        screen.type(CTRL_C)
        screen.read_until("tidied up")
        assert process.wait(60) == 130


def test_variables_are_given_by_name(world, monkeypatch):
    """A script gets a few variables; others on request, and those of the runtime never."""
    script = written(world, "import os\nprint(os.environ.get('SECRET'), os.environ.get('GIVEN'))\n")
    monkeypatch.setenv("SECRET", "s")
    assert run(world, "script", "--no-kernel", script).out == "None None\n"
    given = run(world, "script", "--no-kernel", "--env", "SECRET", "--env", "GIVEN=g", script)
    assert given.out == "s g\n"
    refused = run(world, "script", "--no-kernel", "--env", "DEMOCRAI_ACCESS=[]", script)
    assert (refused.status, refused.out) == (1, "")
    assert "\ninvalid_input: " in refused.err and "/env: DEMOCRAI_ACCESS " in refused.err


MODULE = """
from pathlib import Path
from democrai_sandbox import sdk

@sdk.action("total")
def total(numbers, place=""):
    print("adding")
    if place:
        return Path(place).read_text()
    return sum(numbers)

@sdk.command("fail")
def fail():
    raise RuntimeError("\\x1b[31mred")
"""


def test_a_module_is_called_and_its_answer_printed(world):
    """The result is JSON; its output goes to standard error. Without a call its functions are listed."""
    folder = world / "demo"
    folder.mkdir()
    (folder / "module.py").write_text(MODULE)
    (folder / "manifest.json").write_text('{"name": "demo"}')
    words = ("run", "module", "--config", configured(world), "--no-kernel")
    assert says(*words, folder).out.split() == ["KIND", "NAME", "action", "total", "command", "fail"]
    called = says(*words, folder, "--action", "total", "--param", "numbers=[1, 2]")
    assert (called.status, called.out) == (0, "3\n")
    assert "adding" in called.err
    data = says(*words, "--json", folder, "--action", "total", "--params", '{"numbers": [3]}').data
    assert (data["schema"], data["subject"], data["value"]) == ("democrai-sandbox/run.module/1", "module:demo", 3)
    denied = says(*words, folder, "--action", "total", "--param", "numbers=[]", "--param", "place=/etc/group")
    assert (denied.status, denied.out) == (1, "")
    assert '"target": "/etc/group"' in denied.err
    failed = within((*words, folder, "--command", "fail"))
    assert failed.status == 1
    assert "\x1b" not in failed.err
    assert "\\x1b[31mred" in failed.err


PARTS = """
from pathlib import Path
from democrai_sandbox import sdk

@sdk.tool("add")
def add(first: int, second: int) -> int:
    return first + second

@sdk.tool("read")
def read(path: str) -> str:
    return Path(path).read_text()

@sdk.tool("closed", access=[])
def closed(path: str) -> str:
    return Path(path).read_text()

@sdk.task("work")
def work():
    sdk.tasks.progress(0.5, "half\\x1b")
    return "done"
"""


@pytest.fixture
def parts(world):
    """A module with tools and a task that may read one file, and the words that run it."""
    folder = world / "parts"
    folder.mkdir()
    (folder / "module.py").write_text(PARTS)
    (folder / "manifest.json").write_text(json.dumps({"name": "parts", "access": [entry("read", world / "notes.txt")]}))

    def call(*words, kernel="--no-kernel"):
        return run(world, "module", kernel, folder, *words)

    return call


def test_the_plain_result_of_a_tool_is_printed(parts):
    done = parts("--tool", "add", "--param", "first=1", "--param", "second=2")
    assert (done.status, done.out) == (0, "3\n")


def test_a_denial_in_a_tool_ends_with_the_status_of_a_denial(parts):
    done = parts("--tool", "read", "--param", "path=/etc/passwd")
    assert (done.status, done.out) == (1, "")
    assert '"target": "/etc/passwd"' in done.err


@pytest.mark.parametrize("kernel", ["--no-kernel", pytest.param("--kernel", marks=held)])
def test_a_tool_is_held_to_its_own_list(parts, world, kernel):
    path = f"path={world / 'notes.txt'}"
    assert parts("--tool", "read", "--param", path, kernel=kernel).out == '"a note\\n"\n'
    done = parts("--tool", "closed", "--param", path, kernel=kernel)
    assert (done.status, done.out) == (1, "")
    assert "sandbox_filesystem_denied:parts.closed:" in done.err


def test_the_progress_of_a_task_is_said(parts):
    done = parts("--task", "work")
    assert (done.status, done.out) == (0, '"done"\n')
    assert "progress: 50% half\\x1b" in done.err.splitlines()


@held
def test_a_module_runs_under_the_kernel_as_well(world):
    """Its data folder, packages and programs are available."""
    folder = world / "demo"
    folder.mkdir()
    (folder / "module.py").write_text(
        "from democrai_sandbox import sdk\n"
        "@sdk.action('go')\nasync def go():\n"
        "    (sdk.data_dir() / 'x').write_text('kept')\n"
        "    done = await sdk.tasks.run_subprocess(['cat', str(sdk.data_dir() / 'x')])\n"
        "    return [done.text, done.returncode]\n"
    )
    (folder / "manifest.json").write_text('{"name": "demo"}')
    done = says("run", "module", "--config", configured(world), "--kernel", folder, "--action", "go")
    assert (done.status, json.loads(done.out or "null")) == (0, ["kept", 0]), done.err


@held
def test_what_the_kernel_keeps_shut_is_said(world):
    """Landlock allows existing paths only: the host creates the new file, and the message names its folder."""
    folder, target = world / "demo", world / "made" / "out.txt"
    for place in (folder, target.parent):
        place.mkdir()
    (folder / "module.py").write_text(
        "from democrai_sandbox import sdk\n"
        f"@sdk.action('go')\ndef go():\n    return open({str(target)!r}, 'w').write('x')\n"
        f"@sdk.action('make')\ndef make():\n    import os\n    os.mkdir({str(target)!r})\n"
    )

    def declaring(place, action="go"):
        words = ("run", "module", "--config", configured(world), folder, "--action", action)
        access = [{**entry("create", place), "operation": ["create", "modify"]}]
        (folder / "manifest.json").write_text(json.dumps({"name": "demo", "access": access}))
        return piped(words, {"TMPDIR": str(world / "temp")})

    alone = declaring(target, "make")
    assert alone.status == 1
    assert str(target) in alone.err
    opened = declaring(target)
    assert (opened.status, opened.out) == (0, "1\n"), opened.err
    target.unlink()
    whole = declaring(target.parent)
    assert (whole.status, whole.out) == (0, "1\n")
    assert str(target) not in whole.err
    abi = [(r"ABI \d+", "ABI N")]
    golden("run-module-kept-shut", _without_traceback(alone.err), folder=world, also=abi)


def _without_traceback(text):
    """Return the output without traceback lines, which depend on the version of Python."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(("  ", "Traceback")))


@held
def test_a_temp_folder_with_files_of_the_host_in_it(world):
    """The kernel blocks it, so scripts and programs get a separate one for the run."""
    text = "import tempfile\ntempfile.TemporaryFile().close()\nprint(tempfile.gettempdir())\n"
    script, config = written(world, text), configured(world)
    for words in (
        ("script", "--config", config, script),
        ("program", "--config", config, "--", "sh", "-c", "echo $TMPDIR"),
    ):
        done = piped(("run", *words), {"TMPDIR": str(world)})
        assert (done.status, done.out.startswith(f"{world}/run-")) == (0, True), done.err
    assert not list(world.glob("run-*"))


def test_the_time_of_a_module_is_limited(world):
    """Even a very short timeout is reported."""
    folder = world / "demo"
    folder.mkdir()
    (folder / "module.py").write_text(
        "import time\nfrom democrai_sandbox import sdk\n@sdk.action('go')\ndef go():\n    time.sleep(600)\n"
    )
    (folder / "manifest.json").write_text('{"name": "demo"}')
    done = says(
        "run", "module", "--config", configured(world), "--no-kernel", "--timeout", "1", folder, "--action", "go"
    )
    assert (done.status, done.out) == (1, "")
    assert "worker_timeout:module:demo: " in done.err


BAD = [
    (("script", "none.py"), 1, "none.py"),
    (("script", "--manifest", "none.json", "{0}/notes.txt"), 1, "none.json"),
    (("script", "--manifest", "{0}/notes.txt", "{0}/notes.txt"), 1, "line 1, column 1"),
    (("script", "--env", "NO_SUCH", "{0}/notes.txt"), 2, "NO_SUCH"),
    (("script", "--kernel", "--no-kernel", "{0}/notes.txt"), 2, "argument --no-kernel: "),
    (("script", "--timeout", "soon", "{0}/notes.txt"), 2, "argument --timeout: "),
    (("program", "--", "no-such-program"), 1, "no-such-program"),
    (("program",), 2, "ARGV"),
    (("module", "{0}"), 1, "manifest.json"),
]
"""What is typed, the status, and a value that the message has."""


def test_bad_input_is_one_clear_line(world):
    """Wrong input is a few lines with the documented status, and nothing runs."""
    steps, wrong = [], []
    for arguments, status, value in BAD:
        words = [text.format(world) for text in arguments]
        done = says("run", words[0], "--config", configured(world), *words[1:])
        steps.append((("run", *words), done))
        if (done.status, done.out, value in done.err) != (status, "", True):
            wrong.append(steps[-1])
        assert len(done.err.splitlines()) <= 4
    transcript("run-refused", steps, folder=world, also=[(re.escape(os.getcwd()), "/here")])
    assert wrong == []


def test_the_interpreter_of_a_script_is_this_one(world):
    """It has the packages of this interpreter, but not the folder beside it."""
    (world / "beside.py").write_text("x = 1\n")
    script = written(world, "import sys, yaml\nprint(sys.version_info[:2])\nimport beside\n")
    done = run(world, "script", "--no-kernel", script)
    assert (done.status, done.out) == (1, f"{sys.version_info[:2]}\n")
    assert "ModuleNotFoundError" in done.err and "'beside'" in done.err


WRITES = """
import os, sys
for path in (*sys.argv[1:], os.environ.get("TMPDIR", "/tmp") + "/new"):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
        print("done")
    except OSError as error:
        print(error.errno)
"""


@held
@pytest.mark.parametrize("place", ["granted", "temp"])
def test_the_kernel_keeps_the_environment_of_the_command(tmp_path, place):
    """A program writes beside the environment of the command, not into it."""
    folder = tmp_path / "my work"
    made = Environment(folder / "env")
    (folder / "out").mkdir()
    (tmp_path / "temp").mkdir()
    acts = ("read", "create", "modify", "delete") if place == "granted" else ()
    rules = policy(tmp_path, access=[entry(act, folder) for act in acts])
    paths = [made.packages / "new.py", made.folder / "pyvenv.cfg", made.folder / "new", folder / "out" / "new"]
    done = made.command(
        *("run", "program", "--json", "--config", configured(tmp_path), "--manifest", rules, "--"),
        *(os.path.realpath(sys.executable), "-S", "-c", WRITES, *paths),
        cwd=tmp_path,
        TMPDIR=str(folder if place == "temp" else tmp_path / "temp"),
    )
    report = json.loads(done.stderr.splitlines()[-1])
    refused = str(errno.EACCES)
    assert done.stdout.split() == [refused, refused, refused, "done" if acts else refused, "done"]
    assert report["layers"]["closed"] == ([str(folder)] if acts else [])
    assert not list(made.packages.glob("new*"))
