"""Guarded code and the access-policy service together: approvals take effect in the running activation."""

from __future__ import annotations

import os
import sys
import threading
from types import CellType, FunctionType, MethodType, ModuleType

HOUSE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "host_setup.py")


def open_access(world, **more):
    """Return the service as a host sets it up, as the decider of the guard."""
    from democrai_sandbox import access_changed, configure_guard
    from democrai_sandbox.access import Access, AccessSettings
    from democrai_sandbox.runtime.access_environment import GuardSurroundings

    folder = os.path.join(world.base, "state")
    os.makedirs(folder)
    database = world.load(HOUSE)["database"](folder)
    settings = AccessSettings(database=database, key_file=f"{folder}/keys", poll_seconds=0.1, **more)
    access = Access(settings, GuardSurroundings())
    configure_guard(decider=access.service, protected_paths=[folder])
    access.node.on_change(access_changed)
    return access


def as_admin(act, *args, **details):
    """Decide as an administrator, on a separate thread, because the caller may be guarded."""
    from democrai_sandbox.access import Caller
    from democrai_sandbox.runtime.access_environment import serving

    with serving(Caller(user_id="ada", role="super")):
        return act(*args, **details)


class Office:
    """Administrator's thread, started before any guard, which runs queued operations."""

    def __init__(self):
        self.jobs, self.results = [], []
        self._wake, self._done = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self):
        while True:
            self._wake.acquire()
            act, args, details = self.jobs.pop(0)
            try:
                self.results.append(as_admin(act, *args, **details))
            except Exception as error:  # noqa: BLE001 - returned to the caller
                self.results.append(error)
            self._done.release()

    def have(self, act, *args, **details):
        self.jobs.append((act, args, details))
        self._wake.release()
        self._done.acquire()
        return self.results[-1]


def outcome(action):
    """Return the outcome of an action in one word."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - the error class is the result
        return f"{type(error).__name__}: {error}"


def refusal(action):
    """Return the class of an action's denial, with its code and target."""
    from democrai_sandbox.errors import SandboxDenied

    try:
        return action()
    except SandboxDenied as denial:
        return [type(denial).__name__, denial.decision.code, denial.target]


def file_story(world):
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.guard import ask_external_access
    from democrai_sandbox.policy import Operation, ResourceType

    access = open_access(world)
    told = {}

    def read():
        with open(world.secret) as file:
            return file.read()

    with access:
        office, admin = Office(), access.administration
        guard = process_guard_context(subject="demo", allowed_paths=[world.root], user_id="uma", session_key="s1")
        with guard:
            told["before"] = outcome(read)
            told["probes register"] = len(office.have(admin.pending_requests).items)
            said = ask_external_access(ResourceType.FILESYSTEM, Operation.READ, world.secret)
            told["asked"] = [said.code, said.requires_approval, said.request_id is not None]
            told["still"] = outcome(read)
            told["approved"] = office.have(admin.approve_for_session, said.request_id).decision.session_key
            told["after"] = outcome(read)
            told["write"] = outcome(lambda: open(world.secret, "a"))
            told["asked again"] = ask_external_access(ResourceType.FILESYSTEM, Operation.READ, world.secret).code
        admin.end_session("s1")
        with guard:
            told["session ended"] = outcome(read)
        with process_guard_context(subject="other", allowed_paths=[world.root], user_id="uma", session_key="s1"):
            told["other subject"] = outcome(read)
    return told


def test_an_approved_file_opens_in_the_running_activation(case):
    """Probes file no request, an explicit question does; an approval applies immediately, for that operation only."""
    told = case.run(file_story)
    assert told["before"].startswith("FilesystemDenied")
    assert told["probes register"] == 0
    assert told["asked"] == ["pending", True, True]
    assert told["still"].startswith("FilesystemDenied")
    assert told["approved"] == "s1"
    assert told["after"] == "SECRET"
    assert told["write"].startswith("FilesystemDenied")
    assert told["asked again"] == "session_approval"
    assert told["session ended"].startswith("FilesystemDenied")
    assert told["other subject"].startswith("FilesystemDenied")


def skill_story(world):
    from democrai_sandbox import current_guard, process_guard_context
    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.guard import ask_external_access
    from democrai_sandbox.policy import Operation, ResourceType

    access = open_access(world)
    told = {}

    def read():
        with open(world.secret) as file:
            return file.read()

    def skill():
        told["kind"] = str(current_guard().subject_kind)
        try:
            read()
        except SandboxDenied as denial:
            told["denied"] = [str(link) for link in denial.subject_chain]
        said = ask_external_access(ResourceType.FILESYSTEM, Operation.READ, world.secret)
        told["subject"] = str(
            office.have(access.administration.approve_permanently, said.request_id).decision.access.subject
        )
        told["after"] = outcome(read)

    def pretend():
        with process_guard_context(subject="summarise", subject_kind="skill", allowed_paths=[world.root]):
            told["pretends"] = [str(link) for link in current_guard().subject_chain]
            told["gains"] = outcome(read)

    with access:
        office = Office()
        process_guard_context(subject="summarise", subject_kind="skill", allowed_paths=[world.root]).run(skill)
        process_guard_context(subject="demo", allowed_paths=[world.root]).run(pretend)
    return told


def test_a_host_runs_a_skill_with_its_own_access(case):
    """Questions, approvals and denials use its own name; a module cannot make itself a skill."""
    told = case.run(skill_story)
    assert (told["kind"], told["denied"]) == ("skill", ["skill:summarise"])
    assert (told["subject"], told["after"]) == ("skill:summarise", "SECRET")
    assert told["pretends"] == ["module:demo"]
    assert told["gains"].startswith("FilesystemDenied")


def network_story(world):
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from urllib.request import urlopen

    from democrai_sandbox import process_guard_context
    from democrai_sandbox.errors import NetworkDenied

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{server.server_port}"
    access = open_access(world)
    told = {}

    def fetch(path):
        with urlopen(f"{origin}{path}", timeout=30) as answer:
            return answer.read().decode()

    with access:
        office, admin = Office(), access.administration
        guard = process_guard_context(subject="demo", allowed_paths=[world.root], user_id="uma", session_key="s1")
        with guard:
            try:
                fetch("/v1/a")
            except NetworkDenied as denial:
                told["denied"] = [denial.decision.code, denial.target, denial.request_id is not None]
                told["hint"] = denial.request_id in denial.hint
                asked = denial.request_id
            request = office.have(admin.pending_requests).items[0]
            told["request"] = [request.id == asked, request.access.operation, request.origin.user_id, request.chain]
            office.have(admin.approve_permanently, asked, target=f"{origin}/v1")
            told["after"] = outcome(lambda: fetch("/v1/a"))
            told["below"] = outcome(lambda: fetch("/v1/b/c"))
            told["beside"] = refusal(lambda: fetch("/v2"))
            decision = office.have(admin.approvals).items[0]
            office.have(admin.revoke, decision.id)
            told["revoked"] = refusal(lambda: fetch("/v1/a"))
            waiting = [
                found for found in office.have(admin.pending_requests).items if found.access.target.endswith("/v1/a")
            ]
            office.have(admin.deny_external_access, waiting[0].id)
            told["disabled"] = refusal(lambda: fetch("/v1/a"))
    server.shutdown()
    return {**told, "origin": origin}


def test_an_approved_url_is_fetched_in_the_running_activation(case):
    """A network check files a request; approving its prefix permits everything below it; revoking ends that."""
    told = case.run(network_story)
    assert told["denied"] == ["pending", f"{told['origin']}/v1/a", True]
    assert told["hint"]
    assert told["request"] == [True, "receive", "uma", ["module:demo"]]
    assert (told["after"], told["below"]) == ("ok", "ok")
    assert told["beside"] == ["NetworkDenied", "pending", f"{told['origin']}/v2"]
    assert told["revoked"] == ["NetworkDenied", "pending", f"{told['origin']}/v1/a"]
    assert told["disabled"] == ["NetworkDenied", "denied", f"{told['origin']}/v1/a"]


def counting_story(world):
    """Ask for URLs and fetch them, each pair in a separate activation; count the questions to the decider."""
    import urllib.request

    from democrai_sandbox import configure_guard, process_guard_context
    from democrai_sandbox.guard import ask_external_access
    from democrai_sandbox.policy import AccessDecision, DecisionCode

    asked, allowed = [], set()

    class Decider:
        def decide(self, question):
            asked.append([question.operation, question.target, question.register_request])
            if question.target in allowed:
                return AccessDecision(True, DecisionCode.PERMANENT_APPROVAL, False, "")
            return AccessDecision(False, DecisionCode.PENDING, True, "", "r-1")

    configure_guard(decider=Decider())

    def ask(url, **more):
        return ask_external_access("network", "receive", url, **more).code

    def fetch(url):
        return outcome(lambda: urllib.request.urlopen(url, timeout=5))

    def of(act):
        asked.clear()
        process_guard_context(subject="demo", user_id="uma", session_key="s1").run(act)
        return [*asked]

    url = "http://127.0.0.1:9/page"
    approved = []

    def poll():
        ask(url)
        allowed.add(url)  # the guard is not notified: it may learn of an approval later than the decider
        approved.append(ask(url))
        fetch(url)

    told = {
        "fetch": of(lambda: fetch(url)),
        "fetch twice": of(lambda: (fetch(url), fetch(url))),
        "ask and fetch": of(lambda: (ask(url), fetch(url))),
        "ask and fetch, spelled otherwise": of(lambda: (ask("HTTP://127.0.0.1:9/page?q=1"), fetch(f"{url}?q=2"))),
        "ask twice and fetch": of(lambda: (ask(url), ask(url), fetch(url))),
        "look and fetch": of(lambda: (ask(url, register_request=False), fetch(url))),
        "ask and fetch another": of(lambda: (ask(url), fetch(f"{url}/below"))),
        "poll": of(poll),
    }
    return {**{name: len(questions) for name, questions in told.items()}, "approved": approved}


def test_asking_for_something_and_doing_it_is_one_question(case):
    """The answer to an explicit question applies to the access that follows; an approval in between counts."""
    assert case.run(counting_story) == {
        "fetch": 1,
        "fetch twice": 1,
        "ask and fetch": 1,
        "ask and fetch, spelled otherwise": 1,
        "ask twice and fetch": 2,
        "look and fetch": 2,
        "ask and fetch another": 2,
        "poll": 3,
        "approved": ["permanent_approval"],
    }


def subject_story(world):
    from datetime import timedelta

    from democrai_sandbox import process_guard_context
    from democrai_sandbox.access import Caller
    from democrai_sandbox.guard import ask_external_access
    from democrai_sandbox.policy import Operation, ResourceType
    from democrai_sandbox.runtime.access_environment import serving

    access = open_access(world)
    told = {}
    with access:
        office, admin = Office(), access.administration
        with process_guard_context(subject="demo", allowed_paths=[world.root], user_id="uma", session_key="s1"):
            said = ask_external_access(ResourceType.NETWORK, Operation.RECEIVE, "https://api.test/x")
            told["serving"] = outcome(serving(Caller(user_id="ada", role="super")).__enter__)
            told["approve"] = outcome(lambda: admin.approve_permanently(said.request_id))
            told["list"] = outcome(admin.pending_requests)
            told["session"] = outcome(lambda: admin.end_session("s1"))
            told["tidy"] = outcome(lambda: admin.tidy(pending_lifetime=timedelta(days=1)))
            told["ask"] = outcome(
                lambda: (
                    access.service.check_external_access(
                        resource_type="network", operation="receive", target="https://api.test/y"
                    ).code
                )
            )
            told["as another"] = outcome(
                lambda: access.service.check_external_access(
                    resource_type="network", operation="receive", target="https://api.test/x", subject=object()
                )
            )
            told["database"] = outcome(lambda: open(os.path.join(world.base, "state", "access.db"), "rb"))
            told["keys"] = outcome(
                lambda: (
                    ask_external_access(
                        ResourceType.FILESYSTEM, Operation.READ, os.path.join(world.base, "state", "keys")
                    ).code
                )
            )
        told["who"] = sorted(
            {(found.origin.user_id, found.origin.session_key) for found in office.have(admin.pending_requests).items}
        )
    return told


def test_guarded_code_neither_decides_nor_says_who_it_is(case):
    """The identity comes from the guard's state; protected paths cannot even be asked for."""
    told = case.run(subject_story)
    assert told["serving"] == "TamperDenied: sandbox_guard_denied:serving"
    for act in ("approve", "list", "session", "tidy"):
        assert told[act] == "ExternalAccessAdminRequired: external_access_admin_required"
    assert told["ask"] == "pending"
    assert told["as another"].startswith("InvalidInputError")
    assert told["database"].startswith("FilesystemDenied")
    assert told["keys"] == "not_enabled"
    assert told["who"] == [["uma", "s1"]]


def resume_story(world):
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.guard import current_guard

    done = threading.Event()
    ran = []

    def go_on(context, *, origin, subject, request_id):
        ran.append([context, origin.user_id, origin.session_key, str(subject), current_guard() is None])
        done.set()

    access = open_access(world)
    access.resumes._handlers = {"go-on": go_on}
    told = {}
    with access:
        office, admin = Office(), access.administration
        with process_guard_context(subject="demo", allowed_paths=[world.root], user_id="uma", session_key="s1"):
            said = access.service.require_external_access(
                resource_type="network",
                operation="receive",
                target="https://api.test/x",
                resume_action="go-on",
                resume_context={"page": 7},
            )
            told["bad"] = outcome(
                lambda: access.service.require_external_access(
                    resource_type="network",
                    operation="receive",
                    target="https://api.test/z",
                    resume_action="go-on",
                    resume_context={"page": object()},
                )
            ).split(":")[0]
        told["said"] = said.code
        with open(os.path.join(world.base, "state", "access.db"), "rb") as file:
            told["in the clear"] = b'"page"' in file.read()
        office.have(admin.approve_permanently, said.request_id)
        done.wait(60)
        told["ran"] = ran
    return told


def test_what_was_stopped_goes_on_after_the_approval_as_its_requester(case):
    """With the context of the guarded code, stored encrypted; a context that is not JSON is refused."""
    told = case.run(resume_story)
    assert told["said"] == "pending"
    assert told["in the clear"] is False
    assert told["ran"] == [[{"page": 7}, "uma", "s1", "module:demo", True]]
    assert told["bad"] == "InvalidInputError"


def failing_story(world):
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.errors import StoreUnavailable
    from democrai_sandbox.guard import ask_external_access
    from democrai_sandbox.policy import Operation, ResourceType

    access = open_access(world)
    told = {}
    with access:
        access.node.stop()
        register = access.store.register

        def away(*_, **__):
            raise StoreUnavailable

        with process_guard_context(subject="demo", allowed_paths=[world.root]):
            access.store.register = away
            told["explicit"] = outcome(
                lambda: ask_external_access(ResourceType.NETWORK, Operation.SEND, "https://a.test")
            )
            access.store.register = register
            told["back"] = ask_external_access(ResourceType.NETWORK, Operation.SEND, "https://a.test").code
    return told


def test_a_database_that_is_away_is_no_denial_to_guarded_code(case):
    """The check fails with its own error; afterwards checks work again."""
    told = case.run(failing_story)
    assert told["explicit"] == "ExternalAccessCheckFailed: sandbox_external_access_check_failed"
    assert told["back"] == "pending"


# ---- reachable objects -----------------------------------------------------------------------------------------------

SOUGHT = {
    "AccessNode",
    "SqlStore",
    "AccessService",
    "Administration",
    "ResumeRunner",
    "Registrar",
    "KeyFile",
    "KeyRing",
    "Engine",
}


def held(thing, name):
    """Return an attribute, or nothing if reading it fails."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - some create missing values
        return None


def neighbours(thing):
    """Return all objects that Python exposes from an object."""
    if isinstance(thing, dict):
        return [*thing.keys(), *thing.values()]
    if isinstance(thing, list | tuple | set | frozenset):
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
    if isinstance(thing, ModuleType):
        return [vars(thing)] if thing.__name__.startswith(("democrai_sandbox", "threading", "sqlalchemy.pool")) else []
    found = [getattr(thing, "__dict__", None)]
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        found += [held(thing, name) for name in ((slots,) if isinstance(slots, str) else slots)]
    if isinstance(thing, type):
        found.append(dict(vars(thing)))
    return found


def walk(world):
    from democrai_sandbox import process_guard_context

    access = open_access(world)
    told = {}
    with access:
        ours = [module for name, module in sys.modules.items() if name.startswith("democrai_sandbox")]
        with process_guard_context(subject="demo", allowed_paths=[world.root]):
            queue = [(thread, thread.name) for thread in threading.enumerate()] + [
                (module, module.__name__) for module in ours
            ]
            told["threads"] = sorted(name for _, name in queue if name.startswith("access"))
            seen, found = {}, []  # kept alive, because the id of a deleted object is reused
            while queue:
                thing, way = queue.pop()
                if id(thing) in seen or isinstance(thing, str | bytes | int | float | None.__class__):
                    continue
                seen[id(thing)] = thing
                if type(thing).__name__ in SOUGHT:
                    found.append(way)
                    continue
                queue += [(other, f"{way}.{type(thing).__name__}"[-300:]) for other in neighbours(thing)]
            told["found"], told["many"] = found, len(seen)
    return told


def test_neither_threads_nor_modules_lead_to_the_decisions(case):
    """The service's threads are listed like all others, but expose none of its objects."""
    told = case.run(walk)
    assert told["threads"] == ["access-refresh", "access-resumes"]
    assert told["many"] > 1000
    assert told["found"] == []
