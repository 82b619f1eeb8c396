"""Oracle: its tracer detects calls, sampled hostile calls find nothing, and every native callable is classified."""

from __future__ import annotations

import sys

import pytest

from tests.oracle import callables, classification
from tests.oracle.accepted import Accepted
from tests.oracle.tracing import NoContainment

# A few of each kind: paths, descriptors, processes, addresses, and files that C libraries open directly.
SAMPLE = (
    "posix.open posix.stat posix.kill posix.rename posix.read posix.pread posix.waitpid _io.open_code _sqlite3.connect "
    "_socket.socket.connect _socket.socket.sendto fcntl.fcntl _posixsubprocess.fork_exec mmap.mmap "
    "_signal.pthread_kill marshal.loads zlib.compress _io.open _io.FileIO.__init__ posix.dup2 posix.ftruncate "
    "_socket.dup select.epoll.fromfd _ssl._SSLContext.load_cert_chain _thread._local.__delattr__"
).split()


def traced(tmp_path, **spec):
    """Run calls under the tracer; skip if the machine provides no namespaces to contain them."""
    try:
        return callables.Run(sys.executable, tmp_path, **spec)
    except NoContainment as error:
        pytest.skip(f"the oracle needs namespaces: {error}")


def holes(run):
    return {(run.name_of(one.window), one.call, one.object) for one in run.findings() if one.kind == "hole"}


@pytest.mark.every
def test_every_native_callable_is_classified(case):
    """A native callable that tests/oracle/callables-*.txt does not list fails: run the oracle."""
    names = case.run(all_names, str(classification.FOLDER))
    known = classification.read(classification.this_minor())
    unknown = sorted(set(names) - set(known))
    assert not unknown, f"{len(unknown)} unclassified, run `python -m tests.oracle --classify`: {unknown[:20]}"


def all_names(world):
    """Return every callable of the native modules that guarded code may load."""
    sys.path.append(world.args[0])
    import inventory

    from democrai_sandbox import process_guard_context
    from democrai_sandbox.guard.configuration import allowed_modules

    guard = {"subject": "demo", "allowed_paths": [world.root]}
    modules, _ = inventory.load(allowed_modules(), lambda *call: process_guard_context(**guard).run(*call))
    return list(inventory.targets(modules))


def test_sample_of_hostile_calls_stays_inside_the_policy(tmp_path):
    """Hostile arguments to a few callables reach nothing outside, and nothing inside is refused."""
    run = traced(tmp_path, only=SAMPLE, calls=20)
    accepted, minor = Accepted(), classification.this_minor()
    open_ = [
        key
        for key in callables.unique(run)
        if accepted.reason(minor, kind=key[1], callable=key[0], call=key[2], object=key[3]) is None
    ]
    assert open_ == []
    assert run.calls > 500


def test_tracer_reports_a_call_without_a_guard(tmp_path):
    """Without a guard the same calls are holes: file, descriptor, connection, priority and deletion."""
    names = ["posix.stat", "posix.read", "_socket.socket.connect", "posix.setpriority", "posix.unlink"]
    found = holes(traced(tmp_path, only=names, unguarded=True, calls=10))
    assert names and {name for name, _, _ in found} == set(names)
    assert any(
        call == "newfstatat" or call == "stat" for _, call, text in found if text.endswith("/outside/secret.txt")
    )


def test_guard_with_a_wider_policy_is_noticed(tmp_path):
    """A guard that allows more than the judging policy is a hole for every path that it allows."""
    found = holes(traced(tmp_path, only=["posix.stat", "_io.open"], wide=True, calls=5))
    assert {name for name, _, _ in found} == {"posix.stat", "_io.open"}


def test_refusal_inside_the_policy_is_a_bug():
    """A refused path that the policy allows is reported; one outside is not."""
    from tests.oracle.judge import Policy, judge_refusal

    policy = Policy([("/granted", 15), ("/read", 1)])
    assert judge_refusal(policy, "sandbox_filesystem_denied", "modify", "/granted/a")
    assert judge_refusal(policy, "sandbox_filesystem_denied", "read", "/read/a")
    assert not judge_refusal(policy, "sandbox_filesystem_denied", "modify", "/read/a")
    assert not judge_refusal(policy, "sandbox_filesystem_denied", "read", "/elsewhere")


def test_accepted_entries_need_a_reason_and_a_use(tmp_path):
    """An entry without a reason is rejected, and one that matches nothing is reported."""
    path = tmp_path / "accepted.toml"
    path.write_text('[[accept]]\nkind = "hole"\ncallable = "posix.*"\nreason = "because"\n')
    accepted = Accepted(path)
    assert len(accepted.unused(["3.11"])) == 1
    assert accepted.reason("3.11", kind="hole", callable="posix.stat", call="x", object="y") == "because"
    assert accepted.reason("3.11", kind="hole", callable="_io.open", call="x", object="y") is None
    assert accepted.unused(["3.11"]) == []
    path.write_text('[[accept]]\nkind = "hole"\n')
    with pytest.raises(ValueError, match="reason"):
        Accepted(path)
