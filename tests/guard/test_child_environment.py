"""The guard is passed to a child process through DEMOCRAI_*, completely or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import pytest

from tests.guard.harness import Case

GRANDCHILD = """
import json, os, sys
from democrai_sandbox import current_guard, process_guard_context_from_env

places = json.loads(sys.argv[1])

def attempt(path, mode):
    try:
        open(path, mode).close()
    except Exception as error:
        return type(error).__name__
    return "ok"

def look():
    view = current_guard()
    return {
        "read": [attempt(path, "r") for path in places],
        "append": [attempt(path, "a") for path in places],
        "chain": [str(subject) for subject in view.subject_chain],
        "subject": [view.subject, str(view.subject_kind)],
        "identity": [view.user_id, view.organization_id, view.session_key],
        "process": view.allow_subprocess,
    }

with process_guard_context_from_env():
    seen = look()
print(json.dumps(seen))
"""


def start(world, environment, places):
    """Run the grandchild with this environment and return its output."""
    command = [sys.executable, "-P", "-c", GRANDCHILD, json.dumps(places)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DEMOCRAI_")}
    done = subprocess.run(command, env={**kept, **environment}, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def nested(world, probe):
    """Enter a task inside the module as runtime code."""
    from democrai_sandbox import process_guard_context

    with process_guard_context(subject="job", subject_kind="task"):
        return probe()


def started_otherwise(world):
    """Start processes from guarded code without subprocess; return the subject that each found."""
    from democrai_sandbox import process_guard_context

    tell = [sys.executable, "-S", "-c", "import os; print(os.environ['DEMOCRAI_NETWORK_SUBJECT'])"]

    def read_all(number, child):
        text = b""
        with contextlib.suppress(OSError):  # a terminal ends with an error
            while part := os.read(number, 1000):
                text += part
        os.close(number)
        return [text.decode().strip(), os.waitpid(child, 0)[1]]

    def on_terminal():
        child, number = os.forkpty()
        if child == 0:
            os.execv(tell[0], tell)
        return read_all(number, child)

    def handle():
        child = os.spawnv(os.P_NOWAIT, tell[0], [tell[0], "-c", ""])
        os.close(os.pidfd_open(child))
        return os.waitpid(child, 0)[1]

    guard = process_guard_context(subject="demo", allowed_paths=[world.root], allow_subprocess=True)
    return [*guard.run(on_terminal), guard.run(handle)]


def round_trip(world):
    """Return environments created inside guards, and the rights of children that use them."""
    from democrai_sandbox import child_environment, configure_guard, process_guard_context

    for path in (world.inside("f"), world.out("shown")):
        write(path)
    places = [world.inside("f"), world.out("shown"), world.secret]
    configure_guard(runtime_code=[nested])
    access = [
        {"resource_type": "filesystem", "operation": ["read", "create", "modify", "delete"], "target": world.root},
        {"resource_type": "filesystem", "operation": "read", "target": world.out("shown")},
        {"resource_type": "network", "operation": "receive", "target": "https://api.example.com/v1"},
    ]
    plain = process_guard_context(subject="demo", access=access).run(child_environment)
    named = process_guard_context(
        subject="whisper",
        subject_kind="engine",
        allowed_paths=[world.root],
        user_id="u1",
        organization_id="o1",
        session_key="s1",
    ).run(child_environment)
    odd = process_guard_context(subject='a "quoted" näme:x', allowed_paths=[world.inside("söme dir\udcff")]).run(
        child_environment
    )
    chained = process_guard_context(subject="outer", access=access).run(nested, world, child_environment)
    return {
        "plain": [plain, start(world, plain, places)],
        "named": [named, start(world, named, places)],
        "chained": [chained, start(world, chained, places)],
        "odd": [odd, start(world, odd, [world.inside("söme dir\udcff", "f")])],
        "outside": describe(caught(child_environment)) if caught(child_environment) else child_environment(),
    }


def malformed(world):
    """Return the errors for each malformed environment; none yields a guard."""
    from democrai_sandbox import child_environment, process_guard_context, process_guard_context_from_env

    good = process_guard_context(subject="demo", allowed_paths=[world.root], user_id="u").run(child_environment)
    changes = {
        "no subject": {"DEMOCRAI_NETWORK_SUBJECT": None},
        "empty subject": {"DEMOCRAI_NETWORK_SUBJECT": ""},
        "no kind": {"DEMOCRAI_NETWORK_SUBJECT_KIND": None},
        "unknown kind": {"DEMOCRAI_NETWORK_SUBJECT_KIND": "wizard"},
        "no access": {"DEMOCRAI_ACCESS": None},
        "empty access": {"DEMOCRAI_ACCESS": ""},
        "no JSON": {"DEMOCRAI_ACCESS": "[{"},
        "truncated": {"DEMOCRAI_ACCESS": good["DEMOCRAI_ACCESS"][:-1]},
        "no list": {"DEMOCRAI_ACCESS": "{}"},
        "null": {"DEMOCRAI_ACCESS": "null"},
        "number": {"DEMOCRAI_ACCESS": "[1]"},
        "unknown key": {
            "DEMOCRAI_ACCESS": '[{"resource_type":"filesystem","operation":"read","target":"/x","extra":1}]'
        },
        "unknown operation": {"DEMOCRAI_ACCESS": '[{"resource_type":"filesystem","operation":"look","target":"/x"}]'},
        "relative target": {"DEMOCRAI_ACCESS": '[{"resource_type":"filesystem","operation":"read","target":"x"}]'},
        "empty target": {"DEMOCRAI_ACCESS": '[{"resource_type":"filesystem","operation":"read","target":""}]'},
    }
    seen = {}
    for name, change in changes.items():
        environment = {key: value for key, value in {**good, **change}.items() if value is not None}
        error = caught(process_guard_context_from_env, environment)
        seen[name] = [describe(error) if error else "accepted", str(error)]
    seen["nothing at all"] = [describe(caught(process_guard_context_from_env, {})), ""]
    seen["good"] = [describe(error) if (error := caught(process_guard_context_from_env, good)) else "accepted", ""]
    empty = {**good, "DEMOCRAI_ACCESS": "[]"}
    seen["empty list"] = [process_guard_context_from_env(empty).run(world.can_read, world.inside("f")), ""]
    return seen


def under_a_guard(world):
    """Rebuild a guard from a forged environment in guarded code; it gains nothing."""
    from democrai_sandbox import process_guard_context, process_guard_context_from_env

    forged = {
        "DEMOCRAI_NETWORK_SUBJECT": "admin",
        "DEMOCRAI_NETWORK_SUBJECT_KIND": "core",
        "DEMOCRAI_ACCESS": json.dumps([{"resource_type": "filesystem", "operation": "read", "target": "/"}]),
    }

    def subject():
        return world.verdict(lambda: process_guard_context_from_env(forged).run(world.can_read)), (
            caught(lambda: process_guard_context_from_env(forged).run(read, world.secret)) is not None
        )

    return process_guard_context(subject="demo", allowed_paths=[world.root]).run(subject)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Results of the round trips, computed once."""
    return Case(tmp_path_factory.mktemp("round")).run(round_trip)


class TestRoundTrip:
    def test_the_variables_have_their_documented_names(self, seen):
        """Subject, kind and access always; user, organization and session only if they exist."""
        plain, named = seen["plain"][0], seen["named"][0]
        assert plain["DEMOCRAI_NETWORK_SUBJECT"] == "demo"
        assert plain["DEMOCRAI_NETWORK_SUBJECT_KIND"] == "module"
        assert isinstance(json.loads(plain["DEMOCRAI_ACCESS"]), list)
        assert not {"DEMOCRAI_USER_ID", "DEMOCRAI_ORGANIZATION_ID", "DEMOCRAI_SESSION_KEY"} & set(plain)
        assert [named[f"DEMOCRAI_{key}"] for key in ("USER_ID", "ORGANIZATION_ID", "SESSION_KEY")] == ["u1", "o1", "s1"]
        assert all(name.startswith("DEMOCRAI_") and isinstance(value, str) for name, value in named.items())

    def test_a_child_rebuilds_the_same_policy(self, seen):
        """Paths and operations apply in the child as in the parent."""
        assert seen["plain"][1]["read"] == ["ok", "ok", "FilesystemDenied"]
        assert seen["plain"][1]["append"] == ["ok", "FilesystemDenied", "FilesystemDenied"]
        assert seen["plain"][1]["subject"] == ["demo", "module"]
        assert seen["plain"][1]["identity"] == [None, None, None]
        assert seen["plain"][1]["process"] is False

    def test_identity_and_chain_are_carried(self, seen):
        """Kind, user, organization, session and the whole chain arrive."""
        assert seen["named"][1]["subject"] == ["whisper", "engine"]
        assert seen["named"][1]["identity"] == ["u1", "o1", "s1"]
        assert seen["named"][1]["read"] == ["ok", "FilesystemDenied", "FilesystemDenied"]
        assert seen["chained"][1]["chain"] == ["module:outer", "task:job"]
        assert seen["chained"][1]["read"] == ["ok", "ok", "FilesystemDenied"]

    def test_odd_names_survive(self, seen):
        """Quotes, colons, non-ASCII letters and bytes that are not UTF-8 pass unchanged."""
        assert seen["odd"][1]["subject"] == ['a "quoted" näme:x', "module"], seen["odd"]
        assert seen["odd"][1]["read"] == ["FileNotFoundError"]

    def test_without_a_guard_there_is_nothing_to_hand_on(self, seen):
        """Outside a guard no environment is created: an error, or nothing at all."""
        assert seen["outside"] in ({}, "GuardUsageError")


class TestMalformed:
    def test_it_reaches_programs_that_are_started_without_subprocess(self, case):
        """By exec, and on a separate terminal; a handle of such a process can be closed."""
        assert case.run(started_otherwise) == ["demo", 0, 0]

    def test_a_malformed_value_is_an_error_never_an_empty_guard(self, case):
        """Every malformed variable is rejected with an InvalidInputError that names it."""
        seen = case.run(malformed)
        assert seen.pop("good")[0] == "accepted"
        assert seen.pop("empty list")[0] == "FilesystemDenied"
        assert seen.pop("nothing at all")[0] == "InvalidInputError"
        for name, (verdict, text) in seen.items():
            assert verdict == "InvalidInputError", (name, text)
            assert "DEMOCRAI_" in text, (name, text)

    def test_a_forged_environment_gives_guarded_code_nothing(self, case):
        """Rebuilding from an environment narrows, like every guard that guarded code opens."""
        assert case.run(under_a_guard) == ["ok", True]
