"""Decider: asked unguarded, once, if the policy does not allow an access; its failure is not a denial."""

from __future__ import annotations

import os
import threading


def install(world, answer):
    """Configure a decider that uses this function and records its questions."""
    from democrai_sandbox import configure_guard, current_guard

    asked = []

    class Recorder:
        def decide(self, question):
            asked.append(
                {
                    "operation": str(question.operation),
                    "target": question.target,
                    "subject": question.subject,
                    "kind": str(question.subject_kind),
                    "chain": [str(subject) for subject in question.subject_chain],
                    "resource": str(question.resource_type),
                    "register": question.register_request,
                    "identity": [question.user_id, question.organization_id, question.session_key],
                    "thread": threading.get_ident(),
                    "guarded": current_guard() is not None,
                    "read": describe(error) if (error := caught(read, world.secret)) else "ok",
                }
            )
            return answer(question)

    configure_guard(decider=Recorder())
    return asked


def guard_of(world, **more):
    from democrai_sandbox import process_guard_context

    return process_guard_context(subject="demo", allowed_paths=[world.root], **more)


def questions(world):
    """Return the questions and their number."""
    asked = install(world, lambda question: False)
    write(world.inside("f"))
    os.symlink(world.secret, world.inside("link"))
    counts = {}

    def count(name, *actions):
        before = len(asked)
        for action in actions:
            caught(action)
        counts[name] = [(one["operation"], one["target"]) for one in asked[before:]]

    def subject():
        count("allowed", lambda: read(world.inside("f")), lambda: os.stat(world.root))
        count("first", lambda: read(world.secret))
        count("again", lambda: read(world.secret), lambda: os.stat(world.secret), lambda: read(world.inside("link")))
        count(
            "bytes and dots",
            lambda: read(os.fsencode(world.secret)),
            lambda: read(world.inside("..", "outside", "secret.txt")),
        )
        count("other operation", lambda: os.unlink(world.secret))
        count("other path", lambda: read(world.out("missing")))
        count("rename", lambda: os.rename(world.out("a"), world.out("b")))
        count("descriptor", lambda: os.open("x", os.O_RDONLY, dir_fd=3))

    guard_of(world, subject_kind="engine", user_id="u", organization_id="o", session_key="s").run(subject)
    guard_of(world).run(lambda: count("new activation", lambda: read(world.secret)))
    return {"counts": counts, "first": {**asked[0], "thread": asked[0]["thread"] == threading.get_ident()}}


def probes(world):
    """Return whether the decider distinguishes probes from uses, each asked once; guarded code cannot enable that."""
    from democrai_sandbox.guard import _core

    seen = []
    install(world, lambda question: seen.append([_core.is_probe(), str(question.operation)]) or True)
    refused = guard_of(world).run(lambda: describe(caught(_core.tell_probes)))
    _core.tell_probes()

    def subject():
        for _ in range(2):
            os.path.exists(world.secret)
            read(world.secret)
        os.listdir(world.out())

    guard_of(world).run(subject)
    return {"refused": refused, "seen": seen}


def approvals(world):
    """An approval allows exactly its operation on exactly its path."""
    allowed = {("read", world.secret), ("create", world.out("new")), ("modify", world.out("new"))}
    install(world, lambda question: (str(question.operation), question.target) in allowed)
    write(world.out("other"))

    def subject():
        return {
            "read": read(world.secret).decode() if not caught(read, world.secret) else "denied",
            "stat": world.verdict(os.stat, world.secret),
            "exists": world.verdict(os.path.exists, world.secret),
            "write": world.verdict(write, world.secret),
            "other": world.verdict(read, world.out("other")),
            "folder": world.verdict(os.listdir, world.outside),
            "create": world.verdict(write, world.out("new"), "made"),
            "modify": world.verdict(write, world.out("new"), "again"),
            "delete": world.verdict(os.unlink, world.out("new")),
            "fd": world.verdict(lambda: os.open("secret.txt", os.O_RDONLY, dir_fd=3)),
        }

    return guard_of(world).run(subject), read(world.out("new")).decode()


def answers(world):
    """Only True allows."""
    box = [None]
    install(world, lambda question: box[0])
    seen = {}
    for value in (True, False, 1, "yes", None, [1]):
        box[0] = value
        seen[repr(value)] = guard_of(world).run(world.can_read)
    return seen


def failures(world):
    """A failing decider stops the operation with another kind of error, and nothing is cached."""
    box = [RuntimeError("the store is down")]

    def answer(question):
        if box[0] is not None:
            raise box[0]
        return True

    install(world, answer)

    def subject():
        told = [facts(caught(read, world.secret)), facts(caught(read, world.secret))]
        probes = [describe(caught(probe, world.secret)) for probe in (os.stat, os.path.exists, os.path.isfile)]
        box[0] = PermissionError(13, "store refused")
        told.append(facts(caught(read, world.secret)))
        box[0] = None
        return [*told, *probes, world.can_read()]

    return guard_of(world).run(subject), world.can_read()


def logged_failures(world):
    """Return the log after failures of a decider, a recorder and an observer, including already logged ones."""
    import logging

    from democrai_sandbox import configure_guard
    from democrai_sandbox.errors import ExternalAccessCheckFailed

    records = []

    class Kept(logging.Handler):
        def emit(self, record):
            records.append([record.name, record.levelname, record.getMessage(), str(record.exc_info[1])])

    class Broken:
        def decide(self, question):
            raise error

        def record(self, denial):
            raise RuntimeError("the recorder is down")

    logging.getLogger("democrai_sandbox.guard").addHandler(Kept())
    configure_guard(decider=Broken(), recorder=Broken())
    own, known = ExternalAccessCheckFailed("no answer"), ExternalAccessCheckFailed("told before")
    known.is_logged = True
    told = {}
    for name, error in {"decider": RuntimeError("the store is down"), "its own": own, "known": known}.items():
        told[name] = guard_of(world).run(lambda: describe(caught(read, world.secret))), list(records)
        records.clear()
    guard_of(world).run(lambda: caught(os.environ.__setitem__, "DEMOCRAI_X", "1"))
    told["recorder"] = "", list(records)
    records.clear()
    error = RuntimeError("again")
    guard_of(world).run(lambda: [caught(read, world.secret) for _ in range(1000)])
    return told, len(records)


def logged_while_handling(world):
    """Return the calls of a subject's __str__ while the decider fails and the failure is logged."""
    import io
    import logging

    from democrai_sandbox import configure_guard, current_guard

    asked, written = [], io.StringIO()

    class Broken:
        def decide(self, question):
            try:
                raise KeyError("inner")
            except KeyError:
                raise RuntimeError("outer")  # noqa: B904 - the context is what this is about

    class Trap(Exception):  # noqa: N818
        def __str__(self):
            asked.append(current_guard() is None)
            return "trap"

    logging.getLogger("democrai_sandbox.guard").addHandler(logging.StreamHandler(written))
    configure_guard(decider=Broken())

    def subject():
        try:
            raise Trap
        except Trap:
            return describe(caught(read, world.secret))

    return guard_of(world).run(subject), asked, written.getvalue()


def protected(world):
    """Approve everything, with one protected folder below the root."""
    from democrai_sandbox import configure_guard

    os.mkdir(world.inside("vault"))
    write(world.inside("vault", "key"))
    configure_guard(protected_paths=[world.inside("vault")])
    asked = install(world, lambda question: True)
    seen = guard_of(world).run(lambda: [world.can_read(world.inside("vault", "key")), world.can_read()])
    return seen, [one["target"] for one in asked]


def above_protected(world):
    """Approve everything, with a protected path two folders below the root."""
    from democrai_sandbox import configure_guard, sdk

    os.makedirs(world.inside("holder", "vault"))
    write(world.inside("holder", "vault", "key"))
    configure_guard(protected_paths=[world.inside("holder", "vault"), world.inside("later", "vault")])
    asked = install(world, lambda question: True)

    def subject():
        holder, moved = world.inside("holder"), world.inside("moved")
        allowed = sdk.access.check_external_access(
            resource_type="filesystem", operation="delete", target=holder
        ).allowed
        moving = describe(caught(os.rename, holder, moved))
        planting = describe(caught(os.symlink, world.root, world.inside("later")))
        return [allowed, moving, planting, os.path.exists(moved), world.can_read()]

    return guard_of(world).run(subject), [one["target"] for one in asked]


def by_default(world):
    """Use no decider."""
    return guard_of(world).run(world.can_read)


def in_tasks(world):
    """Threads and tasks of one activation share its results."""
    import asyncio

    asked = install(world, lambda question: True)

    async def main():
        async with guard_of(world):
            await asyncio.gather(*(asyncio.to_thread(world.can_read) for _ in range(5)), child(), child())

    async def child():
        await asyncio.sleep(0)
        return world.can_read()

    asyncio.run(main())
    return 1 <= len(asked) <= 7, {one["guarded"] for one in asked} == {False}


class TestQuestions:
    def test_it_is_asked_once_per_operation_and_resolved_path(self, case):
        """Within one activation the same question in any spelling is asked once; another activation asks again."""
        counts = case.run(questions)["counts"]
        secret, outside = str(case.secret), case.outside
        assert counts["allowed"] == []
        assert counts["first"] == [["read", secret]]
        assert counts["again"] == counts["bytes and dots"] == []
        assert counts["other operation"] == [["delete", secret]]
        assert counts["other path"] == [["read", str(outside / "missing")]]
        assert counts["rename"][0] == ["delete", str(outside / "a")]
        assert counts["descriptor"] == []
        assert counts["new activation"] == [["read", secret]]

    def test_the_question_tells_who_asks_for_what(self, case):
        """Subject, kind, chain, resource, operation, target and identity; no request is filed."""
        assert case.run(questions)["first"] == {
            "operation": "read",
            "target": str(case.secret),
            "subject": "demo",
            "kind": "engine",
            "chain": ["engine:demo"],
            "resource": "filesystem",
            "register": False,
            "identity": ["u", "o", "s"],
            "thread": True,
            "guarded": False,
            "read": "ok",
        }

    def test_looking_at_a_file_is_told_from_using_it(self, case):
        """The host can enable this; each is asked once. A recording needs it."""
        found = case.run(probes)
        assert found["refused"].startswith("TamperDenied")
        assert found["seen"] == [[True, "read"], [False, "read"], [False, "read"]]


class TestAnswers:
    def test_an_approval_covers_its_operation_and_path(self, case):
        """The approved operation passes; others on the same path, and other paths, do not."""
        seen, content = case.run(approvals)
        denied = {"write", "other", "folder", "delete"}
        assert seen.pop("read") == "SECRET"
        assert seen.pop("fd") == "FilesystemFdDenied"
        assert {name for name, verdict in seen.items() if verdict == "FilesystemDenied"} == denied
        assert all(seen[name] == "ok" for name in set(seen) - denied)
        assert content == "again"

    def test_only_true_is_a_yes(self, case):
        """Truthy values and None deny."""
        seen = case.run(answers)
        assert seen.pop("True") == "ok"
        assert set(seen.values()) == {"FilesystemDenied"}

    def test_nobody_can_approve_what_the_host_protects(self, case):
        """For a protected path the decider is not asked."""
        seen, asked = case.run(protected)
        assert seen == ["FilesystemDenied", "ok"]
        assert len(asked) == 1
        assert "vault" not in asked[0]

    def test_nobody_can_approve_that_it_is_carried_out_of_its_place(self, case):
        """A folder above a protected path is neither moved nor created again, even with an approval."""
        seen, asked = case.run(above_protected)
        assert seen == [False, "FilesystemDenied", "FilesystemDenied", False, "ok"]
        assert len(asked) == 1

    def test_the_default_says_no(self, case):
        """Without a decider, undeclared access is denied."""
        assert case.run(by_default) == "FilesystemDenied"

    def test_a_failure_is_not_a_denial(self, case):
        """It is ExternalAccessCheckFailed, not a PermissionError, is asked again next time, and allows nothing."""
        (first, second, third, *probes, recovered), host = case.run(failures)
        for told in (first, second, third):
            assert told["type"] == "ExternalAccessCheckFailed"
            assert "sandbox_external_access_check_failed" in told["str"]
            assert {"SandboxError", "RuntimeError"} <= set(told["bases"])
            assert "OSError" not in told["bases"]
        assert probes == ["ExternalAccessCheckFailed"] * 3
        assert (recovered, host) == ("ok", "ok")

    def test_a_failure_is_logged(self, case):
        """Once, with the cause, the subject and the question; not if the decider logged it, and with a rate limit."""
        told, repeated = case.run(logged_failures)
        for name in ("decider", "its own", "known"):
            assert told[name][0] == "ExternalAccessCheckFailed"
        ((logger, level, text, cause),) = told["decider"][1]
        assert (logger, level) == ("democrai_sandbox.guard", "ERROR")
        assert cause == "the store is down"  # wording: text of the test
        assert "module:demo" in text
        assert str(case.secret) in text
        assert len(told["its own"][1]) == 1
        assert told["known"][1] == []
        assert [record[-1] for record in told["recorder"][1]] == ["the recorder is down"]  # wording: text of the test
        assert 0 < repeated < 100

    def test_what_the_subject_was_handling_is_not_logged(self, case):
        """Its text would be created by the subject's code unguarded; the host's own contexts are logged."""
        told, asked, written = case.run(logged_while_handling)
        assert (told, asked) == ("ExternalAccessCheckFailed", [])
        assert "inner" in written
        assert "outer" in written

    def test_tasks_and_threads_of_an_activation_ask_from_outside_the_guard(self, case):
        """Every question reaches the decider unguarded, from any thread or task."""
        assert case.run(in_tasks) == [True, True]
