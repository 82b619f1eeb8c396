"""Attacks on objects that the service passes to guarded code or takes from it."""

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
        database=f"sqlite:///{folder}/access.db", key_file=f"{folder}/keys", **{"poll_seconds": 0.1, **more}
    )
    access = Access(settings, GuardSurroundings())
    configure_guard(decider=access.service, protected_paths=[folder])
    access.node.on_change(access_changed)
    return access


def outcome(action):
    """Return the result of an action in one word."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - the kind is what is told
        return f"{type(error).__name__}: {error}"


def read(path):
    with open(path) as file:
        return file.read()


# ---- a returned result
# ------------------------------------------------------------------------------------------------


def rewrite_answer(world):
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.guard import ask_external_access

    with open_access(world), process_guard_context(subject="demo", allowed_paths=[world.root]):
        told = {"before": outcome(lambda: read(world.secret))}
        said = ask_external_access("filesystem", "read", world.secret + "x", register_request=False)
        told["rewritten"] = outcome(lambda: object.__setattr__(said, "allowed", True))
        told["opens"] = outcome(lambda: read(world.secret))
        from democrai_sandbox import access_changed  # noqa: PLC0415

        told["told"] = outcome(access_changed)
        with process_guard_context(subject="demo", allowed_paths=[world.root]):
            told["inside"] = outcome(lambda: read(world.secret))
        told["fresh"] = outcome(lambda: read(os.path.dirname(world.secret) + "/../outside/secret.txt"))
        told["passwd"] = outcome(lambda: read("/etc/machine-id"))
        told["asked"] = outcome(
            lambda: ask_external_access("filesystem", "read", "/etc/machine-id", register_request=False).allowed
        )
    return told


def test_an_answer_that_a_subject_rewrites_answers_nothing_else(case):
    """Results may be shared inside the service: changes by one subject must not reach another."""
    told = case.run(rewrite_answer)
    assert told["before"].startswith("FilesystemDenied")
    for later in ("opens", "inside", "fresh", "passwd"):
        assert told[later].startswith("FilesystemDenied"), later
    assert told["asked"] is False


# ---- a context that is not plain text
# ---------------------------------------------------------------------------------


def text_with_methods(world):
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.guard import ask_external_access

    ran = []

    def steal(*_):
        ran.append(outcome(lambda: read(world.secret)))
        return False

    class Text(str):
        __slots__ = ()
        startswith = steal
        encode = steal
        __len__ = steal
        __str__ = steal

    class Data(bytearray):
        startswith = steal
        decode = steal

    class Liar:
        __class__ = str
        startswith = steal

    told = {}
    with open_access(world), process_guard_context(subject="demo", allowed_paths=[world.root]):
        for name, given in (("text", Text("{}")), ("data", Data(b"{}")), ("liar", Liar())):
            told[name] = outcome(
                lambda given=given, name=name: (
                    ask_external_access(
                        "network", "receive", f"https://api.test/{name}", resume_action="go", resume_context=given
                    ).code
                )
            )
    return {**told, "ran": ran}


def test_a_resume_context_runs_none_of_its_own_methods_outside_the_guard(case):
    """The service reads the context unguarded: an instance of the subject's class must not get there."""
    told = case.run(text_with_methods)
    assert [found for found in told["ran"] if not str(found).startswith("FilesystemDenied")] == []
    assert not told["data"].startswith("pending")
    assert not told["liar"].startswith("pending")


# ---- names of the service -------------------------------------------------------------------------------------------


def replace_names(world):
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.access import checks, snapshot, targets
    from democrai_sandbox.access.checks import AccessService
    from democrai_sandbox.guard import ask_external_access
    from democrai_sandbox.policy import AccessDecision, DecisionCode

    ran = []

    def steal(*_, **__):
        ran.append(outcome(lambda: read(world.secret)))
        raise ValueError

    told = {}
    with open_access(world), process_guard_context(subject="demo", allowed_paths=[world.root]):
        for where, name in (
            (AccessService, "_missing"),
            (AccessService, "decide"),
            (AccessService, "_decided"),
            (checks, "read_wanted"),
            (checks, "locked"),
            (checks.GuardQuestion, "_make"),
            (targets, "_read"),
            (targets, "normalise_target"),
            (snapshot.Snapshot, "find"),
            (AccessDecision, "allowed"),
            (AccessDecision, "__init__"),
            (DecisionCode, "allows"),
        ):
            if name not in where.__dict__:
                continue  # it has another name now
            kept = where.__dict__[name]
            told[f"{where.__name__}.{name}"] = outcome(lambda where=where, name=name: setattr(where, name, steal))
            outcome(lambda: ask_external_access("network", "receive", "https://api.test/n").code)
            outcome(lambda: read(world.secret + "2"))
            outcome(lambda where=where, name=name, kept=kept: setattr(where, name, kept))
    return {"told": told, "ran": ran}


def test_the_names_of_the_service_are_not_replaced_by_guarded_code(case):
    """Subjects must not write modules or classes that run unguarded in every check."""
    told = case.run(replace_names)
    assert told["ran"] == []
    assert {name for name, came in told["told"].items() if came is None} == set()


# ---- state between checks --------------------------------------------------------------------------------------------


def rewrite_memory(world):
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.access import checks, snapshot, targets
    from democrai_sandbox.access import checks as words
    from democrai_sandbox.access.values import AccessTuple, DecisionEffect, DecisionRow, DecisionScope, NewDecision
    from democrai_sandbox.guard import ask_external_access
    from democrai_sandbox.policy import DecisionCode, Operation, ResourceType, Subject, SubjectKind, normalise_target

    def approve(name, target, effect=DecisionEffect.APPROVAL):
        subject = Subject(SubjectKind.MODULE, name)
        canonical = normalise_target(ResourceType.NETWORK, target)
        about = AccessTuple(subject, ResourceType.NETWORK, Operation.RECEIVE, canonical)
        access.store.decide(NewDecision(about, effect, DecisionScope.PERMANENT, "ada"), now=access.node.clock())
        access.node.refresh()

    def readings():
        good = targets.read_wanted("network", "receive", "https://good.test/")
        evil = targets.read_wanted("network", "receive", "https://evil.test/")
        for name in ("target", "parsed"):
            object.__setattr__(evil, name, getattr(good, name))

    def subjects():
        object.__setattr__(checks._subject("module", "demo"), "name", "trusted")

    def answers():
        words.ANSWERS["denied"] = words.ANSWERS["permanent_approval"]

    def codes():
        DecisionCode.DENIED._value_ = "permanent_approval"

    evil = normalise_target(ResourceType.NETWORK, "https://evil.test/")
    forged = ("f", "module", "demo", "network", "receive", evil, "approval", "permanent", "", None, False)

    def tables():
        (key,) = snapshot._grouped([DecisionRow(*forged)])
        snapshot._EMPTY._rows[key] = (DecisionRow(*forged),)

    def rows():
        snapshot._NOTHING._rows = (DecisionRow(*forged),)

    tricks = {act.__name__: act for act in (readings, subjects, answers, codes, tables, rows)}
    access, told = open_access(world), {}
    with access:
        approve("trusted", "https://evil.test/")
        guard = process_guard_context(subject="demo", allowed_paths=[world.root])

        def ask(target):
            return ask_external_access("network", "receive", target, register_request=False).allowed

        with guard:
            # A name that does not exist anymore counts as refused.
            told["trick"] = outcome(tricks[world.args[0]])
        approve("demo", "https://denied.test/", DecisionEffect.DENIAL)
        approve("demo", "https://good.test/")
        with guard:
            told["good"], told["evil"] = ask("https://good.test/"), ask("https://evil.test/")
            told["denied"] = ask("https://denied.test/")
    return told


@pytest.mark.parametrize("trick", ["readings", "subjects", "answers", "codes", "tables", "rows"])
def test_what_the_service_keeps_between_checks_is_not_rewritten_by_guarded_code(case, trick):
    """Cached targets, subjects, results and empty tables in modules would be changed for every later check."""
    told = case.run(rewrite_memory, trick)
    assert (told["evil"], told["denied"]) == (False, False), told


# ---- functions that the service calls unguarded ----------------------------------------------------------------------


def replace_helpers(world):
    import contextlib
    import hashlib
    import json
    import logging
    import threading

    import sqlalchemy

    from democrai_sandbox import process_guard_context
    from democrai_sandbox.guard import ask_external_access

    ran = []
    helpers = (
        (json, "dumps"),
        (json, "loads"),
        (json.JSONEncoder, "encode"),
        (json.JSONDecoder, "decode"),
        (hashlib, "sha256"),
        (os, "urandom"),
        (contextlib._GeneratorContextManager, "__enter__"),
        (contextlib._GeneratorContextManager, "__exit__"),
        (threading.Event, "set"),
        (logging.Logger, "error"),
        (sqlalchemy.engine.Connection, "execute"),
        (sqlalchemy.engine.Engine, "connect"),
    )
    told = {}
    with open_access(world), process_guard_context(subject="demo", allowed_paths=[world.root]):
        for number, (where, name) in enumerate(helpers):
            kept = getattr(where, name)

            def steal(*args, kept=kept, label=f"{where.__name__}.{name}", **named):
                came = outcome(lambda: read(world.secret))
                if came == "SECRET":
                    ran.append(label)
                return kept(*args, **named)

            told[f"{where.__name__}.{name}"] = outcome(
                lambda where=where, name=name, steal=steal: setattr(where, name, steal)
            )
            outcome(
                lambda number=number: ask_external_access(
                    "network", "receive", f"https://api.test/{number}", resume_action="go", resume_context="{}"
                )
            )
            outcome(lambda where=where, name=name, kept=kept: setattr(where, name, kept))
    return {"ran": sorted(set(ran)), "told": told}


def test_residual_helpers_that_a_subject_replaced_run_for_the_service(case):
    """Not prevented, as SECURITY.md says: library functions that a subject replaced are called when it asks."""
    told = case.run(replace_helpers)
    assert "json.loads" in told["told"], told
    assert told["ran"], "this attack is stopped now: say so in SECURITY.md, and turn the test round"


def walk_failure(world):
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.guard import ask_external_access

    def links(error):
        seen = []
        while error is not None and error not in seen:
            seen.append(error)
            error = error.__cause__ or error.__context__
        return seen

    def frames(error):
        found, trace = [], error.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            found += [type(value).__name__ for value in frame.f_locals.values()]
            trace = trace.tb_next
        return found

    told = {"kinds": [], "held": [], "frames": []}
    with open_access(world), process_guard_context(subject="demo", allowed_paths=[world.root]):
        for context in ("{", "[" * 100_000, '{"a": NaN}', "1" * 5000, '"\ud800"', '"' + "x" * 100_000 + '"'):
            try:
                ask_external_access(
                    "network", "receive", "https://api.test/x", resume_action="go", resume_context=context
                )
            except Exception as error:  # noqa: BLE001 - it is looked at
                told["kinds"].append(type(error).__name__)
                for link in links(error):
                    told["frames"].append(outcome(lambda link=link: sorted(set(frames(link)))))
                    told["held"] += [type(value).__name__ for value in vars(link).values()]
                    told["held"].append(type(getattr(link, "obj", None)).__name__)
            else:
                told["kinds"].append("")
    return told


def test_a_failed_check_leads_nobody_into_the_service(case):
    """The causes of a subject's error have tracebacks of the service, whose frames must not be reachable."""
    told = case.run(walk_failure)
    ours = {"AccessService", "AccessNode", "SqlStore", "Registrar", "Sealer", "KeyRing", "Administration"}
    assert ours & set(told["held"]) == set()
    for found in told["frames"]:
        assert isinstance(found, str) or not ours & set(found), found


def test_a_context_that_cannot_be_kept_is_refused_by_its_name(case):
    """An invalid context is the subject's mistake, not a failed check, which is logged and raises alarms."""
    told = case.run(walk_failure)
    assert set(told["kinds"]) <= {"InvalidInputError", ""}


def wide_walk(world):
    import sys
    import threading
    import weakref
    from collections import deque
    from types import CellType, FunctionType, MethodType, ModuleType

    from democrai_sandbox import process_guard_context

    sought = {
        "Access", "AccessNode", "SqlStore", "AccessService", "Administration", "ResumeRunner", "Registrar", "KeyFile",
        "KeyRing", "Engine", "Database", "Sealer", "Snapshot", "Notes",
    }  # fmt: skip

    def held(thing, name):
        try:
            return getattr(thing, name, None)
        except Exception:  # noqa: BLE001 - some make what is not there yet
            return None

    def neighbours(thing):
        if isinstance(thing, weakref.ref):
            return [thing()]
        if isinstance(thing, dict):
            return [*list(thing.keys()), *list(thing.values())]
        if isinstance(thing, (list, tuple, set, frozenset)) or type(thing).__name__ == "deque":
            return list(thing)
        if isinstance(thing, MethodType):
            return [thing.__self__, thing.__func__]
        if isinstance(thing, FunctionType):
            return [thing.__closure__, thing.__defaults__, thing.__dict__, thing.__kwdefaults__]
        if isinstance(thing, CellType):
            try:
                return [thing.cell_contents]
            except ValueError:
                return []
        found = [getattr(thing, "__dict__", None), held(thing, "__self__"), held(thing, "__wrapped__")]
        if isinstance(thing, ModuleType):
            return found[:1]
        for kind in type(thing).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            found += [held(thing, name) for name in ((slots,) if isinstance(slots, str) else slots)]
        if isinstance(thing, type):
            found.append(dict(vars(thing)))
        return found

    access = open_access(world, poll_seconds=3600.0)  # a pool lists a connection in use, see SECURITY.md
    told = {}
    with access:
        with process_guard_context(subject="demo", allowed_paths=[world.root]):
            told["frames"] = outcome(lambda: len(sys._current_frames()))
            queue = deque((module, name) for name, module in list(sys.modules.items()))
            queue.extend((thread, thread.name) for thread in threading.enumerate())
            seen, found = {}, {}
            while queue and len(seen) < 600_000:
                thing, way = queue.popleft()
                if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type(None))):
                    continue
                seen[id(thing)] = thing
                kind = type(thing).__name__
                if kind in sought:
                    found.setdefault(kind, way)
                    continue
                try:
                    nexts = neighbours(thing)
                except Exception:  # noqa: BLE001 - some refuse to be looked at
                    continue
                queue.extend((other, f"{way}>{kind}"[-200:]) for other in nexts)
            told["found"], told["many"] = found, len(seen)
    return told


def test_nothing_that_a_subject_can_import_leads_to_the_service(case):
    """No loaded module references the service's objects, including by weak references and bound methods."""
    told = case.run(wide_walk)
    assert told["many"] > 10_000
    assert told["found"] == {}
    assert isinstance(told["frames"], str), "the frames of all threads are not for subjects"


def through_registry(world):
    from types import CellType, FunctionType

    import sqlalchemy.event.registry as registry

    from democrai_sandbox import process_guard_context

    def engines():
        queue, seen, found = [], {}, []
        for some in list(registry._key_to_collection.values()):
            for one, two in list(some.items()):
                queue += [one(), two if not callable(two) else two()]
        while queue:
            thing = queue.pop()
            if id(thing) in seen:
                continue
            seen[id(thing)] = thing
            if type(thing).__name__ == "Engine":
                found.append(thing)
            elif isinstance(thing, FunctionType):
                queue += [*(thing.__closure__ or ()), *(thing.__defaults__ or ())]
            elif isinstance(thing, CellType):
                queue.append(thing.cell_contents)
            elif isinstance(thing, (tuple, list)):
                queue += list(thing)
        return found

    def forge():
        engine = engines()[0]
        columns = (
            "id, digest, subject_kind, subject_name, resource_type, operation, target, target_folded, effect, scope, "
        )
        columns += "session_key, created_at, created_by, reason, generation, ended_by"
        values = (
            "'f', 'd', 'module', 'demo', 'network', 'receive', 'https://evil.test', 'https://evil.test', 'approval', "
        )
        values += "'permanent', '', 1, 'ada', '', generation + 1, ''"
        with engine.connect() as connection:
            connection.exec_driver_sql(f"INSERT INTO access_decisions ({columns}) SELECT {values} FROM access_meta")
            connection.exec_driver_sql("UPDATE access_meta SET generation = generation + 1")
            connection.commit()
        return "forged"

    access, told = open_access(world), {}
    with access:
        with process_guard_context(subject="demo", allowed_paths=[world.root]):
            told["pools"] = outcome(lambda: [engine.pool.status() for engine in engines()])
            told["forge"] = [outcome(forge) for _ in range(20)][-1]
        access.node.refresh()
        told["rows"] = [row.target for row in access.store.changes(0).rows]
    return told


def test_the_databases_connections_are_not_for_subjects(case):
    """SQLAlchemy keeps listeners of its engines in a module: a subject must not write a decision through it."""
    told = case.run(through_registry)
    assert told["rows"] == [], told


def poisoned_key(world):
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.guard import ask_external_access

    wanted, ran = "/nowhere/x", []

    class Path(str):
        __slots__ = ()

        def __hash__(self):
            return hash(wanted)

        def __eq__(self, other):
            ran.append(outcome(lambda: read(world.secret)))
            return True

    with open_access(world):
        with process_guard_context(subject="weak", allowed_paths=[world.root]):
            left = [
                outcome(
                    lambda: ask_external_access("filesystem", "read", Path("/nowhere/y"), register_request=False).code
                ),
                outcome(lambda: ask_external_access("system_dependency", "execute", Path("evil")).code),
            ]
        with process_guard_context(subject="strong", allowed_paths=[world.root, os.path.dirname(world.secret)]):
            ask_external_access("filesystem", "read", wanted, register_request=False)
        ask_wanted = outcome(lambda: ask_external_access("filesystem", "read", wanted, register_request=False))
    return {"left": left, "ran": ran, "host": str(ask_wanted)}


def test_what_one_subject_asked_is_not_compared_by_its_own_methods_later(case):
    """A cache keeps its keys: a text with custom comparison would run in the guard of the next subject."""
    assert [came for came in case.run(poisoned_key)["ran"] if came == "SECRET"] == []


def rewrite_names(world):
    from urllib.request import Request, urlopen

    from democrai_sandbox import process_guard_context
    from democrai_sandbox.access.values import AccessTuple, DecisionEffect, DecisionScope, NewDecision
    from democrai_sandbox.policy import Operation, ResourceType, Subject, SubjectKind

    def members():
        Operation._value2member_map_["send"] = Operation.RECEIVE

    def values():
        Operation.SEND._value_ = "receive"

    def kinds():
        SubjectKind._value2member_map_["tool"] = SubjectKind.MODULE

    def kind_values():
        SubjectKind.TOOL._value_ = "module"

    def resources():
        ResourceType._value2member_map_["filesystem"] = ResourceType.NETWORK

    tricks = {act.__name__: act for act in (members, values, kinds, kind_values, resources)}
    access, told, place = open_access(world), {}, "http://127.0.0.1:9/v1"
    demo = Subject(SubjectKind.MODULE, "demo")
    about = AccessTuple(demo, ResourceType.NETWORK, Operation.RECEIVE, place)
    with access:
        access.store.decide(
            NewDecision(about, DecisionEffect.APPROVAL, DecisionScope.PERMANENT, "ada"), now=access.node.clock()
        )
        access.node.refresh()
        with process_guard_context(subject="demo", subject_kind=world.args[1], allowed_paths=[world.root]):
            told["trick"] = outcome(tricks[world.args[0]])
            # The port has no listener, so an allowed connection is refused by the kernel.
            told["send"] = outcome(lambda: urlopen(Request(place, data=b"x", method="POST"), timeout=2))
            told["receive"] = outcome(lambda: urlopen(place, timeout=2))
    return told


@pytest.mark.parametrize("kind", ["module", "tool"])
@pytest.mark.parametrize("trick", ["members", "values", "kinds", "kind_values", "resources"])
def test_operations_and_kinds_mean_what_they_are_called(case, trick, kind):
    """The member tables of enumerations are writable dictionaries."""
    told = case.run(rewrite_names, trick, kind)
    assert "refused" not in told["send"], told
    assert ("refused" in told["receive"]) is (kind == "module"), told


def interrupted(world):
    import signal
    import time

    from democrai_sandbox import process_guard_context
    from democrai_sandbox.guard import ask_external_access

    ours = {"AccessService", "AccessNode", "SqlStore", "Registrar", "Sealer", "Database", "Engine"}
    told = {"handler": set(), "raised": set(), "times": 0}

    class Out(BaseException):
        pass

    def names(frame):
        found = set()
        while frame is not None:
            found |= {type(value).__name__ for value in frame.f_locals.values()}
            frame = frame.f_back
        return found & ours

    def handler(_number, frame):
        told["times"] += 1
        came = outcome(lambda: names(frame))
        told["handler"] |= came if isinstance(came, set) else set()
        raise Out

    def attempt(number):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            ask_external_access("network", "receive", f"https://api.test/{number % 150}")
            time.sleep(0.001)
        except Out as error:
            trace = error.__traceback__
            while trace is not None:
                came = outcome(lambda trace=trace: names(trace.tb_frame))
                told["raised"] |= came if isinstance(came, set) else set()
                trace = trace.tb_next
        except Exception:  # noqa: BLE001 - a check that failed
            pass

    with open_access(world), process_guard_context(subject="demo", allowed_paths=[world.root]):
        told["set"] = outcome(lambda: str(signal.signal(signal.SIGALRM, handler)))
        until = time.monotonic() + 1.5
        number = 0
        while time.monotonic() < until and not (told["handler"] and told["raised"]):
            number += 1
            try:
                attempt(number)
            except Out:
                pass
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(0.01)
        except Out:
            pass
    return {**told, "handler": sorted(told["handler"]), "raised": sorted(told["raised"])}


def test_a_signal_in_the_middle_of_a_check_shows_nothing_of_the_service(case):
    """A signal handler gets the interrupted frame, and its exception collects the frames it passes."""
    told = case.run(interrupted)
    assert told["handler"] == [], told
    assert told["raised"] == [], told
