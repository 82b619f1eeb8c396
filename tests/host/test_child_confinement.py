"""Children and workers of a sandbox with the default configuration: confined wherever the kernel can do it."""

from __future__ import annotations

import os

import pytest

from tests.services.forks import HostCase as Case

EMBEDDED = os.path.join(os.path.dirname(__file__), "embedded.py")
MODULE = """
import os

@sdk.action("run")
async def run(argv):
    done = await sdk.tasks.run_subprocess(argv)
    return [done.returncode, done.text, done.stderr.decode(), list(done.unenforced)]

@sdk.action("process")
def process():
    return os.getpid()
"""
OUTER_FILTER = (444, 445, 446, {"x86_64": 317, "aarch64": 277}[os.uname().machine])
"""Landlock's calls, and seccomp."""


@pytest.fixture
def case(tmp_path):
    """A private folder in which a body runs in a separate process."""
    return Case(tmp_path)


def reads_with(world):
    """Let a module without rules read a file by a program, and report what the sandbox says about that."""
    config, environment, refused = world.args
    os.environ.update(environment)
    if refused:
        refuse(refused)
    app = world.load(EMBEDDED)["Embedded"](world.base)
    secret = app.base / "secret"
    secret.write_text("SECRET")
    app.module("demo", MODULE)

    async def story(app):
        import asyncio

        from democrai_sandbox.host.overview import subject_profile
        from democrai_sandbox.host.status import report
        from democrai_sandbox.policy import Subject
        from democrai_sandbox.runtime.access_environment import serving

        def looked():
            with serving(app.caller("ada")):
                profile = subject_profile(app.sandbox, Subject.parse("module:demo"))
            return report(app.sandbox).as_dict()["lines"], list(profile.unenforced)

        done = await app.action("demo", "run", argv=["cat", str(secret)])
        is_separate = await app.action("demo", "process") != os.getpid()
        lines, unenforced = await asyncio.to_thread(looked)
        rules = {"resource_type": "filesystem", "operation": "read", "target": str(secret)}
        decide = app.sandbox.access.administration.decide_unasked
        with serving(app.caller("ada")):
            decide(Subject.parse("module:demo"), effect="approval", **rules)
        approved = await app.action("demo", "run", argv=["cat", str(secret)])
        return {
            "done": done,
            "approved": approved[:2],
            "is_separate": is_separate,
            "lines": {line["name"]: line for line in lines},
            "subject": unenforced,
        }

    return app.play(story, sandbox={"poll_seconds": 0.1, **config})


def refuse(numbers):
    """Let the system refuse calls to this process and its children, as a container can."""
    import errno

    from democrai_sandbox.kernel import _native
    from democrai_sandbox.kernel.seccomp.filters import NUMBER, Assembler

    code = Assembler()
    code.load(NUMBER)
    for number in numbers:
        code.if_equal(number, "refused")
    code.give(0x7FFF0000)
    code.label("refused")
    code.give(0x00050000 | errno.EPERM)
    assert _native.seccomp_install(code.assemble(), 0) == 0


@pytest.mark.parametrize("isolation", ["auto", "in_process"])
def test_a_child_of_a_module_without_rules_cannot_read_an_undeclared_file(case, isolation):
    """Without any setting the kernel refuses it and nothing is unenforced; an approval opens it for the next child."""
    told = case.run(reads_with, {"isolation": {"default": isolation}}, {}, [])
    code, output, complaints, unenforced = told["done"]
    assert (code, output, unenforced) == (1, "", [])
    assert "Permission denied" in complaints
    assert told["approved"] == [0, "SECRET"]
    assert told["is_separate"] is (isolation == "auto")
    server = told["lines"]["spawn_server"]
    assert (server["state"], server["wanted"]) == ("ok", True)
    assert told["lines"]["workers"]["state"] == "ok"
    assert told["subject"] == []


def test_only_an_explicit_false_leaves_children_unconfined(case):
    """The result, the subject and the status name the setting, which is the operator's choice and not a problem."""
    told = case.run(reads_with, {"os": {"enabled": False}}, {}, [])
    code, output, _, unenforced = told["done"]
    assert (code, output) == (0, "SECRET")
    assert len(unenforced) == 1 and "sandbox.os.enabled is false" in unenforced[0]
    assert told["subject"] == unenforced
    server, workers = told["lines"]["spawn_server"], told["lines"]["workers"]
    assert (server["state"], server["wanted"]) == ("off", False)
    assert workers["state"] == "ok" and "sandbox.os.enabled" in workers["summary"]


def test_without_landlock_children_and_workers_are_reported_as_degraded(case):
    """They run, under the system call filter; result, subject and status say that files are not restricted."""
    told = case.run(reads_with, {}, {"DEMOCRAI_OS_SANDBOX_LANDLOCK_ABI": "0"}, [])
    code, output, _, unenforced = told["done"]
    assert (code, output) == (0, "SECRET")
    assert [text.partition(":")[0] for text in unenforced] == ["files"]
    assert told["subject"] == unenforced
    for name in ("spawn_server", "workers"):
        line = told["lines"][name]
        assert line["state"] == "degraded" and line["fix"], line


def test_where_a_container_refuses_both_controls_everything_runs_and_is_reported(case):
    """Without Landlock and seccomp, children start without the spawn server; a fix is named everywhere."""
    told = case.run(reads_with, {}, {}, list(OUTER_FILTER))
    code, output, _, unenforced = told["done"]
    assert (code, output) == (0, "SECRET")
    assert len(unenforced) == 1 and "seccomp" in unenforced[0] and "container" in unenforced[0]
    assert told["subject"] == unenforced
    server, workers = told["lines"]["spawn_server"], told["lines"]["workers"]
    assert server["state"] == "unsupported" and server["fix"]
    assert workers["state"] == "degraded" and workers["fix"]


def test_where_a_container_refuses_filters_alone_landlock_still_confines_files(case):
    """Children get no filter, which the result names; the file stays closed."""
    told = case.run(reads_with, {}, {}, list(OUTER_FILTER[3:]))
    code, output, _, unenforced = told["done"]
    assert (code, output) == (1, "")
    assert [text.partition(":")[0] for text in unenforced] == ["system calls and sockets"]
    assert told["lines"]["spawn_server"]["state"] == "degraded"
