"""The helper started by the real ``pkexec``, for an unprivileged user, with the printed polkit rule.

The test starts a separate message bus and polkit in a mount namespace that ends with them. The machine's own services
and rules, and parallel tests, are not affected.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kernel.appcase import (
    EVERYTHING,
    NOBODY,
    SOURCE,
    application,
    command,
    interpreter_for_all,
    needs_other_user,
    short_folder,
)
from tests.kernel.netlab import has_ended, needs_netlab, shared_lab, wait_until

RULES, BUS = Path("/etc/polkit-1/rules.d"), Path("/run/dbus")
POLKIT = next(
    (path for path in map(Path, ("/usr/lib/polkit-1/polkitd", "/usr/libexec/polkitd")) if path.exists()), None
)
HELPER = [interpreter_for_all() or "", "-B", "-m", "democrai_sandbox.cli", "helper"]
ENVIRONMENT = {"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]}


def _missing():
    lacking = [name for name in ("pkexec", "dbus-daemon", "dbus-send", "unshare") if shutil.which(name) is None]
    lacking += [] if POLKIT else ["polkitd"]
    lacking += [str(place) for place in (RULES, BUS) if not place.is_dir()]
    return f"not installed here: {', '.join(lacking)}" if lacking else ""


pytestmark = [needs_netlab, needs_other_user, pytest.mark.skipif(bool(_missing()), reason=_missing() or "-")]


@contextmanager
def polkit(here, rule):
    """Run a bus and a polkit with one rule; yield a function that starts a command there."""
    rules = here / "rules.d"
    rules.mkdir()
    (rules / "50-democrai.rules").write_text(rule)
    for path in (here, rules):
        path.chmod(0o755)
    (rules / "50-democrai.rules").chmod(0o644)
    alone = (
        f"mount --bind {rules} {RULES} && mount -t tmpfs tmpfs {BUS} && exec dbus-daemon --system --nofork --nopidfile"
    )
    with ExitStack() as stack:
        log = stack.enter_context(open(here / "polkit.log", "wb"))
        bus = subprocess.Popen(["unshare", "-m", "sh", "-c", alone], stdout=log, stderr=log)
        stack.callback(end, bus)
        inside = ["nsenter", "-m", "-t", str(bus.pid), "--"]
        wait_until(lambda: answers(inside, "ListNames"), "the bus")
        # Started directly: a process that the bus starts could not be stopped.
        stack.callback(end, subprocess.Popen([*inside, str(POLKIT)], stdout=log, stderr=log))
        wait_until(lambda: "org.freedesktop.PolicyKit1" in answers(inside, "ListNames"), "polkit")
        yield inside


def answers(inside, method):
    ask = [
        "dbus-send",
        "--system",
        "--print-reply",
        "--dest=org.freedesktop.DBus",
        "/",
        f"org.freedesktop.DBus.{method}",
    ]
    return subprocess.run([*inside, *ask], capture_output=True, text=True, timeout=30, check=False).stdout


def end(process):
    process.terminate()
    process.wait(30)


@pytest.fixture
def lab():
    with shared_lab() as lab:
        yield lab


@pytest.fixture
def here():
    with short_folder() as here:
        yield here


@pytest.fixture
def rule():
    """The rule as printed for an administrator."""
    argv = [*HELPER, "polkit", "--user", "nobody"]
    printed = subprocess.run(argv, env=ENVIRONMENT, cwd="/", capture_output=True, text=True, timeout=30, check=False)
    if printed.returncode:
        pytest.skip("the package lies where others than root can write, so the rule is not to be installed")
    return printed.stdout


def test_a_user_without_privileges_has_everything_with_the_rule_that_is_printed(lab, here, rule):
    """Every control is active, also with ``require``; packets are restricted, and nothing is left at the end."""
    server = lab.world.serve("tcp", lab.world.v4)
    lab.world.serve("tcp", lab.world.more_v4[0], server.port)
    with polkit(here, rule) as inside:
        told = application(
            here,
            f"""
            kernel = make({ {**EVERYTHING, "require": True, "desktop": True}!r}, "{lab.world.v4}:{server.port}")
            kernel.prepare()
            status = kernel.confine()
            tell(states=states(status), way=status["helper"].details["way"], user=os.getuid())
            def reach(host): return kind_of(lambda: socket.create_connection((host, {server.port}), 10).close())
            tell(met=reach("{lab.world.v4}"), refused=reach("{lab.world.more_v4[0]}"))
            kernel.stop()
            tell(left=[path.name for path in Path(HERE).glob("*/os_sandbox*")])
            """,
            user=NOBODY,
            within=inside,
            space=lab.inside,
        )
    assert told["user"] == NOBODY and told["way"] == "pkexec"
    assert set(told["states"].values()) == {"active"}
    assert (told["met"], told["refused"], told["left"]) == ("nothing", "ConnectionRefusedError", [])
    assert "DEMOCRAI" not in lab.inside.rules()


_WAITING = """
kernel = make({"enabled": True, "desktop": True}, "10.77.0.2:80")
kernel.prepare()
tell(helper=kernel.confine()["helper"].as_dict())
for _ in sys.stdin:
    tell(helper=kernel.status()["helper"].as_dict())
"""


def test_a_helper_by_pkexec_comes_back_when_it_is_killed_and_ends_with_the_application(lab, here, rule):
    """The application cannot kill root's helper: it ends automatically, with its rules and files."""
    with polkit(here, rule) as inside:
        app = lab.inside.popen(
            [*inside, *command(here, _WAITING, user=NOBODY)],
            env=ENVIRONMENT,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

        def helper():
            return json.loads(app.stdout.readline())["helper"]["details"].get("pid")

        def again():
            app.stdin.write(b"\n")
            app.stdin.flush()
            return {helper()} - {None, first}

        with app.stdin, app.stdout:
            first = helper()
            keeper = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
            assert os.stat(f"/proc/{first}").st_uid == 0 and os.stat(f"/proc/{keeper}").st_uid == NOBODY
            os.kill(first, signal.SIGKILL)
            second = wait_until(again, "another helper").pop()
            assert "DEMOCRAI" in lab.inside.rules()
            app.kill()
            wait_until(lambda: has_ended(second) and has_ended(keeper), "the end of both")
    assert "DEMOCRAI" not in lab.inside.rules()
    assert list(here.glob("*/os_sandbox*")) == []


def test_without_the_rule_and_with_nobody_to_ask_the_rule_is_the_fix(lab, here):
    """The message of pkexec is reported, with the command that prints the rule."""
    with polkit(here, "") as inside:
        told = application(here, _WAITING, user=NOBODY, within=inside, space=lab.inside)["helper"]
    assert (told["state"], told["details"]["reason"]) == ("unsupported", "no_way_up")
    # wording: of pkexec itself, here and below
    assert "authentication agent" in told["reason"]
    assert "helper polkit --user nobody" in told["fix"]


def test_the_rule_is_for_the_helper_and_for_nothing_else(here, rule):
    """The same interpreter with other arguments, another program, user or target user: all refused."""
    helper = next(line for line in rule.splitlines() if "indexOf" in line).split('"')[3].split()
    with polkit(here, rule) as inside:

        def asked(*words, uid=NOBODY):
            who = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
            argv = [*inside, *who, "pkexec", "--disable-internal-agent", *words]
            return subprocess.run(argv, capture_output=True, text=True, cwd="/", timeout=30, check=False).stderr

        assert "bad_arguments" in asked(*helper, "--nonsense")
        for words, uid in (
            ([helper[0], "-c", "1"], NOBODY),
            ([*helper[:-1], "-c", "1"], NOBODY),
            ([*helper[:-1], helper[-1] + "c", "x"], NOBODY),
            (["/bin/true"], NOBODY),
            (["--user", "daemon", *helper, "--nonsense"], NOBODY),
            ([*helper, "--nonsense"], 1),
        ):
            assert "No authentication agent" in asked(*words, uid=uid), words
        # Arguments that only look like the fixed words when joined are meaningless to the interpreter.
        assert "nknown option" in asked(helper[0], " ".join(helper[1:]) + " ")
