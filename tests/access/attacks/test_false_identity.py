"""Attacks on identity and expiry: guarded code with a false identity, and approvals after their end."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.services.forks import AccessCase as Case


@pytest.fixture
def case(tmp_path, prepared_file):
    """Private world in which a body runs in a separate process; its database has its schema already."""
    (tmp_path / "state").mkdir()
    shutil.copy(prepared_file, tmp_path / "state" / "access.db")
    return Case(tmp_path)


def open_access(world, **more):
    """Return the service as a host sets it up, as the guard's decider."""
    from democrai_sandbox import access_changed, configure_guard
    from democrai_sandbox.access import Access, AccessSettings
    from democrai_sandbox.runtime.access_environment import GuardSurroundings

    folder = os.path.join(world.base, "state")
    settings = AccessSettings(
        database=f"sqlite:///{folder}/access.db", key_file=f"{folder}/keys", poll_seconds=0.1, **more
    )
    access = Access(settings, GuardSurroundings())
    configure_guard(decider=access.service, protected_paths=[folder])
    access.node.on_change(access_changed)
    return access


def test_the_service_reads_the_fields_of_the_guard_in_their_order():
    """A field at another place would be read as the identity of another user."""
    from democrai_sandbox import AccessQuestion
    from democrai_sandbox.access.checks import GuardQuestion

    assert GuardQuestion._fields == AccessQuestion.__match_args__


def outcome(action):
    """Return the result of an action in one word."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - the kind is what is told
        return f"{type(error).__name__}: {error}"


def approve_reading(access, target, lifetime):
    """Approve an access for a time, as the store does for an administrator."""
    from democrai_sandbox.access.values import AccessTuple, DecisionEffect, DecisionScope, NewDecision
    from democrai_sandbox.policy import Operation, ResourceType, Subject, SubjectKind

    now = access.node.clock()
    about = AccessTuple(Subject(SubjectKind.MODULE, "demo"), ResourceType.FILESYSTEM, Operation.READ, target)
    new = NewDecision(about, DecisionEffect.APPROVAL, DecisionScope.PERMANENT, "ada", expires_at=now + lifetime)
    access.store.decide(new, now=now)
    access.node.refresh()


def read(path):
    with open(path) as file:
        return file.read()


# ---- served user
# ------------------------------------------------------------------------------------------------------


def forge_caller(world):
    import contextvars

    from democrai_sandbox import process_guard_context
    from democrai_sandbox.access import Caller
    from democrai_sandbox.guard import ask_external_access
    from democrai_sandbox.runtime import access_environment

    ada = Caller(user_id="ada", role="super", task_id="of-ada")

    def subject():
        """Try to leave an administrator behind in every possible way."""
        told = [outcome(lambda: str(access_environment._caller.set(ada))[:1])]
        told += [
            outcome(lambda variable=variable: str(variable.set(ada))[:1])
            for variable in contextvars.copy_context()
            if variable.name == "democrai_sandbox_caller"
        ]
        told.append(outcome(lambda: access_environment.serving(ada).__enter__()))
        told += [
            outcome(lambda name=name: object.__setattr__(access_environment.GuardSurroundings().caller(), name, value))
            for name, value in (("user_id", "ada"), ("role", "super"))
        ]
        return told

    access = open_access(world)
    told = {}
    with access, access_environment.serving(Caller(user_id="uma", session_key="s1")):
        with process_guard_context(subject="demo", allowed_paths=[world.root], user_id="uma", session_key="s1"):
            told["ways"] = subject()
            asked = ask_external_access("network", "receive", "https://api.test/x").request_id
        told["served"] = access.service.surroundings.caller().user_id
        # The host continues for the same user, who is not an administrator.
        told["approve"] = outcome(lambda: str(access.administration.approve_permanently(asked)))
        told["task"] = access.store.request(asked).origin.task_id
    return told


def test_a_subject_leaves_no_administrator_behind_for_the_host(case):
    """The host serves the same user after the guard, and a request does not name a task that the subject chose."""
    told = case.run(forge_caller)
    assert told["served"] == "uma", told
    assert told["approve"].startswith("ExternalAccessAdminRequired")
    assert told["task"] == ""


def manager_story(world):
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.access import Caller
    from democrai_sandbox.policy import Subject, SubjectKind
    from democrai_sandbox.runtime.access_environment import serving

    console = Subject(SubjectKind.MODULE, "console")
    access = open_access(world, managers=(console,))
    admin, told = access.administration, {}
    with access, serving(Caller(user_id="ada", role="super")):
        asked = access.service.check_external_access(
            resource_type="network",
            operation="receive",
            target="https://api.test/x",
            subject=Subject(SubjectKind.MODULE, "third"),
        ).request_id
        guard = process_guard_context(subject="console", allowed_paths=[world.root], user_id="ada")
        inner = process_guard_context(subject="tool", subject_kind="tool", allowed_paths=[world.root], user_id="ada")
        with guard:
            told["manager lists"] = outcome(lambda: len(admin.pending_requests().items))
            with inner:
                told["tool inside"] = outcome(lambda: str(admin.approve_permanently(asked))[:7])
        with process_guard_context(subject="demo", allowed_paths=[world.root], user_id="ada"):
            # Guarded code opens a guard with the name of the manager.
            with process_guard_context(subject="console", allowed_paths=[world.root], user_id="ada"):
                told["pretended"] = outcome(lambda: str(admin.approve_permanently(asked))[:7])
        told["state"] = access.store.request(asked).state.value
    return told


def test_only_the_manager_itself_decides_not_what_it_calls(case):
    """A tool that a manager runs is not the manager, and neither is code that opens a guard with the manager's name."""
    told = case.run(manager_story)
    assert told["tool inside"].startswith(("ExternalAccessAdminRequired", "TamperDenied")), told
    assert told["pretended"].startswith("ExternalAccessAdminRequired"), told
    assert told["state"] == "pending"


def test_a_manager_inside_a_real_guard_is_refused_too(case):
    """A manager cannot leave its guard yet: it is refused, which opens nothing."""
    assert case.run(manager_story)["manager lists"].startswith("TamperDenied")


# ---- expiry
# -----------------------------------------------------------------------------------------------------------


def outlive(world):
    import time
    from datetime import timedelta

    from democrai_sandbox import process_guard_context

    access, told = open_access(world, tidy_seconds=3600), {}
    with access:
        for seconds in (1, 5, 20):  # longer if reading came too late
            approve_reading(access, world.secret, timedelta(seconds=seconds))
            with process_guard_context(subject="demo", allowed_paths=[world.root]):
                told["before"] = outcome(lambda: read(world.secret))
                time.sleep(seconds + 0.3)
                told["after"] = outcome(lambda: read(world.secret))
            if told["before"] == "SECRET":
                break
    return told


def test_an_approval_ends_in_a_running_activation_when_its_time_is_over(case):
    """A cached result of the core must not outlive the decision, also before expired decisions are removed."""
    told = case.run(outlive)
    assert told["before"] == "SECRET"
    assert told["after"].startswith("FilesystemDenied")


# ---- odd names ------------------------------------------------------------------------------------------------------


def odd_names(world):
    import socket

    from democrai_sandbox import process_guard_context

    outside = os.path.dirname(world.secret)
    told = {}

    def connect(address, family=socket.AF_INET):
        with socket.socket(family) as made:
            made.connect(address)

    with open_access(world), process_guard_context(subject="demo", allowed_paths=[world.root]):
        for name in ("a\nb", "\x01", "\udcff", "\u202e", "x" * 255, "\x7f", "\x85", " ", "a\\b"):
            told[ascii(name)[:12]] = outcome(lambda name=name: read(f"{outside}/{name}"))
        told["deep"] = outcome(lambda: read(outside + "/x" * 1500))
        told["root"] = outcome(lambda: read("/"))
        told["port 9"] = outcome(lambda: connect(("192.0.2.1", 9)))
        told["mapped"] = outcome(lambda: connect(("::ffff:192.0.2.1", 9), socket.AF_INET6))
        told["scope id"] = outcome(lambda: connect(("fe80::1", 9, 0, 1), socket.AF_INET6))
        told["any"] = outcome(lambda: connect(("0.0.0.0", 9)))
        told["unix"] = outcome(lambda: connect(f"{outside}/a\nb", socket.AF_UNIX))
        told["unix odd"] = outcome(lambda: connect(f"{outside}/\udcff", socket.AF_UNIX))
        told["abstract"] = outcome(lambda: connect("\0a\x01b", socket.AF_UNIX))
        told["abstract bytes"] = outcome(lambda: connect(b"\0\xff\xfe", socket.AF_UNIX))
        told["name"] = outcome(lambda: socket.getaddrinfo("under_score.test", 80))
        told["long name"] = outcome(lambda: socket.getaddrinfo("a." * 120 + "test", 80))
        told["idna"] = outcome(lambda: socket.getaddrinfo("b\u00fccher.test", 80))
    return told


def test_odd_names_are_denied_like_others(case):
    """A name for which no rule can be written is not enabled: neither allowed nor a failed check."""
    told = case.run(odd_names)
    assert {name: came for name, came in told.items() if "Denied" not in came.split(":")[0]} == {}


def automatic(world):
    from urllib.request import urlopen

    from democrai_sandbox import process_guard_context

    access, told = open_access(world), {}
    secret = "hunter2-of-uma"
    with access:
        with process_guard_context(subject="demo", allowed_paths=[world.root], user_id="uma"):
            told["came"] = outcome(lambda: urlopen(f"http://127.0.0.1:9/a?token={secret}", timeout=2))
        found = access.store.audit_rows()
        told["kept"] = [str(record) for record in found if secret in str(record)]
    return told


def test_the_query_of_a_request_that_was_stopped_is_not_kept(case):
    """The guard asks about every URL, and the service stores requests forever."""
    told = case.run(automatic)
    assert "hunter2" not in told["came"]
    assert told["kept"] == []


# ---- identities inside a guard --------------------------------------------------------------------------------------


def nested_identities(world):
    import contextvars
    import threading

    from democrai_sandbox import guard, process_guard_context
    from democrai_sandbox.access import Caller
    from democrai_sandbox.access.values import AccessTuple, DecisionEffect, DecisionScope, NewDecision
    from democrai_sandbox.guard import ask_external_access
    from democrai_sandbox.policy import Operation, ResourceType, Subject, SubjectKind
    from democrai_sandbox.runtime.access_environment import serving

    access, told = open_access(world), {"allowed": {}, "origins": []}
    pretended = {"user_id": "eve", "organization_id": "other", "session_key": "s2"}
    with access:
        for name in ("demo", "trusted"):
            subject = Subject(SubjectKind.MODULE, name)
            tuple_ = AccessTuple(subject, ResourceType.NETWORK, Operation.RECEIVE, "https://only-s2.test")
            approval = NewDecision(tuple_, DecisionEffect.APPROVAL, DecisionScope.SESSION, "ada", "s2")
            access.store.decide(approval, now=access.node.clock())
        access.node.refresh()

        def ask(label):
            said = outcome(lambda: ask_external_access("network", "receive", "https://only-s2.test").allowed)
            told["allowed"][label] = said
            outcome(lambda: ask_external_access("network", "receive", f"https://{label}.test"))

        def within(label, make):
            def enter():
                with make():
                    ask(label)

            told[label] = outcome(enter)

        with process_guard_context(subject="demo", allowed_paths=[world.root], user_id="uma", session_key="s1"):
            ask("plain")
            within("nested", lambda: process_guard_context(subject="demo", **pretended))
            within("other", lambda: process_guard_context(subject="trusted", **pretended))
            within("exact", lambda: guard.exact_guard_context(subject="trusted", subject_kind="module", **pretended))
            within("served", lambda: serving(Caller(user_id="eve", session_key="s2")))
            os.environ.update({"X_SESSION_KEY": "s2"})
            outcome(lambda: os.environ.update({"DEMOCRAI_SESSION_KEY": "s2", "DEMOCRAI_USER_ID": "eve"}))
            within("environment", guard.process_guard_context_from_env)
            contextvars.Context().run(ask, "context")
            thread = threading.Thread(target=ask, args=("thread",))
            thread.start()
            thread.join()
        told["origins"] = sorted(
            {
                (record.access.subject.name, record.after.get("user_id"), record.after.get("session_key"))
                for record in access.store.audit_rows()
                if record.action == "requested" and record.after.get("session_key") != "s2"
            }
        )
        told["as others"] = [
            record.access.target
            for record in access.store.audit_rows()
            if record.action == "requested" and "eve" in str(record.after) and "only-s2" not in record.access.target
        ]
    return told


def test_guarded_code_asks_as_nobody_else(case):
    """Subject, user, organization and session are those of the enclosing guard, despite forged ones."""
    told = case.run(nested_identities)
    assert {label: said for label, said in told["allowed"].items() if said is True} == {}, told
    assert told["origins"] == [["demo", "uma", "s1"]], told
    assert told["as others"] == []


def many_questions(world):
    import tracemalloc

    from democrai_sandbox import process_guard_context

    outside = os.path.dirname(world.secret)
    with open_access(world), process_guard_context(subject="demo", allowed_paths=[world.root]):
        tracemalloc.start()
        ask_about(outside, range(6_000))  # fills limited caches
        before = tracemalloc.get_traced_memory()[0]
        ask_about(outside, range(6_000, 12_000))
        return tracemalloc.get_traced_memory()[0] - before


def ask_about(folder, numbers):
    for number in numbers:
        try:
            os.stat(f"{folder}/{number}")
        except OSError:
            pass


def test_a_long_activation_does_not_remember_every_question(case):
    """A worker that runs for weeks and probes many names outside its roots must not grow with each of them."""
    assert case.run(many_questions) < 1 << 20
