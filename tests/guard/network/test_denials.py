"""Undeclared access: the decider is asked, its result is kept for the activation, and a denial gives the reason."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.once  # does not depend on the interpreter


def fetch(url, method="GET"):
    """Return the status of a request by the simplest client."""
    import urllib.request

    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5) as response:
        return response.status


def dial(address):
    """Connect a raw socket."""
    import socket

    socket.create_connection(address, timeout=5).close()


def install(answer):
    """Configure a decider that uses this function, and return the questions it gets."""
    from democrai_sandbox import configure_guard, current_guard

    asked = []

    class Recorder:
        def decide(self, question):
            asked.append(
                {
                    "resource": str(question.resource_type),
                    "operation": str(question.operation),
                    "target": question.target,
                    "register": question.register_request,
                    "subject": question.subject,
                    "kind": str(question.subject_kind),
                    "chain": [str(subject) for subject in question.subject_chain],
                    "identity": [question.user_id, question.organization_id, question.session_key],
                    "guarded": current_guard() is not None,
                }
            )
            return answer(question)

    configure_guard(decider=Recorder())
    return asked


def short(asked):
    return [[one["operation"], one["target"]] for one in asked]


def decision(code, request_id=None, message=None):
    """Return a decision as the access service gives it."""
    from democrai_sandbox.policy import EXTERNAL_URL_LOCKED, AccessDecision, DecisionCode

    code = DecisionCode(code)
    pending = code is DecisionCode.PENDING
    return AccessDecision(code.allows, code, pending, message or EXTERNAL_URL_LOCKED, request_id)


def questions(world):
    """Return the questions and their number."""
    asked = install(lambda question: False)
    home, counts = world.url("http"), {}

    def note(name, *actions):
        before = len(asked)
        for action in actions:
            outcome(action)
        counts[name] = short(asked[before:])

    def subject():
        note("allowed", lambda: fetch(f"{home}/allowed"), lambda: fetch(f"{home}/allowed/x?y=1"))
        note("first", lambda: fetch(f"{home}/other?query=1"))
        note("again", lambda: fetch(f"{home}/other"), lambda: fetch(f"{home}/other/"), lambda: fetch(f"{home}/other?b"))
        note("head", lambda: fetch(f"{home}/other", "HEAD"))
        note("other method", lambda: fetch(f"{home}/other", "POST"), lambda: fetch(f"{home}/other", "DELETE"))
        note("below", lambda: fetch(f"{home}/other/below"))
        note("socket", lambda: dial(world.address("tcp")), lambda: dial(world.address("tcp")))
        note("name", lambda: dial(("evil.example.net", 80)))
        note("localhost", lambda: dial(("localhost", world.port("tcp"))))

    identity = {"user_id": "u", "organization_id": "o", "session_key": "s"}
    world.guard(rule(f"{home}/allowed", "receive"), subject_kind="engine", **identity).run(subject)
    world.guard().run(note, "new activation", lambda: fetch(f"{home}/other"))
    return {"counts": counts, "first": asked[0]}


def answers(world):
    """Return the effect of each possible result of a decider on a request."""
    box = [None]
    install(lambda question: box[0])
    url, seen = world.url("http", "/other"), {}
    kinds = {
        "true": True,
        "false": False,
        "one": 1,
        "text": "yes",
        "nothing": None,
        "list": [True],
        "session approval": decision("session_approval", message="Approved for this session."),
        "permanent approval": decision("permanent_approval", message="Approved."),
        "allowlist": decision("sandbox_allowlist", message="Declared."),
        "denied": decision("denied", message="This resource is disabled."),
        "pending": decision("pending", "request-7"),
        "not enabled": decision("not_enabled"),
    }

    def attempt():
        try:
            return fetch(url)
        except Exception as error:
            told = facts(error)
            found = getattr(error, "decision", None)
            told["decision"] = found and [found.allowed, str(found.code), found.requires_approval, found.message]
            told["request_id"] = getattr(error, "request_id", None)
            return told

    for name, value in kinds.items():
        box[0] = value
        world.journal()
        seen[name] = {"told": world.guard().run(attempt), "arrived": len(world.journal())}
    return seen


def scope(world):
    """Return what an approval allows: its operation on its target, and the connection it needs."""
    home = world.url("http")
    approved = {("receive", f"{home}/other"), ("connect", world.at("tcp"))}
    install(lambda question: (question.operation, question.target) in approved)
    actions = {
        "request": lambda: fetch(f"{home}/other"),
        "head": lambda: fetch(f"{home}/other", "HEAD"),
        "query": lambda: fetch(f"{home}/other?x=1"),
        "post": lambda: fetch(f"{home}/other", "POST"),
        "below": lambda: fetch(f"{home}/other/below"),
        "raw": lambda: dial(world.address("http")),
        "socket": lambda: dial(world.address("tcp")),
        "other socket": lambda: dial(world.address("sink")),
    }
    return world.under([], actions)


def failures(world):
    """Return the results with a failing decider, which is asked again the next time."""
    box = [RuntimeError("the store is down")]

    def answer(question):
        if box[0] is not None:
            raise box[0]
        return True

    asked = install(answer)
    url = world.url("http", "/other")
    told = {}

    def subject():
        for name, error in {"first": box[0], "second": box[0], "permission": PermissionError(13, "refused")}.items():
            box[0] = error
            told[name] = facts(caught(fetch, url))
        told["socket"] = facts(caught(dial, world.address("tcp")))
        told["name"] = facts(caught(dial, ("evil.example.net", 80)))
        before = len(asked)
        box[0] = None
        return {"told": told, "asked": before, "recovered": outcome(fetch, url)}

    world.journal()
    return {**world.guard().run(subject), "arrived": len(world.journal())}


def changes(world):
    """Return the effect of later approvals on the next activation, and on the running one after access_changed()."""
    from democrai_sandbox.guard import access_changed

    allowed = [False]
    asked = install(lambda question: allowed[0])
    url, seen = world.url("http", "/other"), []

    def look(when):
        before = len(asked)
        seen.append([when, outcome(fetch, url), len(asked) - before])

    import threading

    go, done = threading.Event(), threading.Event()
    steps = []

    def subject():
        while True:
            go.wait(10)
            go.clear()
            if not steps:
                return
            look(steps.pop())
            done.set()

    def step(name):
        steps.append(name)
        done.clear()
        go.set()
        assert done.wait(10)

    thread = threading.Thread(target=lambda: world.guard().run(subject))
    thread.start()
    step("closed")
    allowed[0] = True
    step("approved, unsaid")
    world.guard().run(look, "next activation")
    access_changed()
    step("approved, said")
    allowed[0] = False
    step("revoked, unsaid")
    access_changed()
    step("revoked, said")
    go.set()
    thread.join()
    return seen


def inside_access_changed(world):
    """Try to reset the results as a subject."""
    from democrai_sandbox.guard import access_changed

    return world.guard().run(world.verdict, access_changed)


def attributes(world):
    """Return all attributes of a network denial for a request, a socket, a name and a kind of socket."""
    import pickle
    import socket

    from democrai_sandbox import recent_denials

    actions = {
        "request": lambda: fetch(world.url("http", "/other?token=1")),
        "socket": lambda: dial(world.address("tcp")),
        "name": lambda: dial(("evil.example.net", 80)),
        "kind": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    }
    errors = {}

    def subject():
        for name, action in actions.items():
            errors[name] = caught(action)

    world.guard(subject="whisper", subject_kind="engine").run(subject)
    again = {name: facts(pickle.loads(pickle.dumps(error))) for name, error in errors.items()}
    return {
        "told": {name: facts(error) for name, error in errors.items()},
        "same": again == {name: facts(error) for name, error in errors.items()},
        "recent": [str(record) for record in recent_denials()],
        "diagnostics": errors["request"].diagnostics(),
    }


def missing(world):
    """Return the errors of requests and sockets with an empty target."""
    import asyncio
    import http.client
    import socket

    import httpx
    import httpx2

    from democrai_sandbox.guard import _core

    def connect():
        with socket.socket() as made:
            made.connect(("", 80))

    async def get_later(client):
        async with client:
            await client.get("")

    ways = {
        "request": lambda: _core.request("GET", ""),
        "socket": connect,
        "http.client": lambda: http.client.HTTPConnection("").request("GET", "/"),
        "http.client, with TLS": lambda: http.client.HTTPSConnection("").request("GET", "/"),
        "http.client, connected first": lambda: http.client.HTTPConnection("").connect(),
        "httpx": lambda: httpx.get(""),
        "httpx2": lambda: httpx2.get(""),
        "httpx without a host": lambda: httpx.get("http://"),
        "httpx, asynchronous": lambda: asyncio.run(get_later(httpx.AsyncClient())),
        "httpx2, asynchronous": lambda: asyncio.run(get_later(httpx2.AsyncClient())),
    }

    def subject():
        return {name: facts(caught(way)) for name, way in ways.items()}

    return world.guard(rule("127.0.0.1", "connect", "receive", "send")).run(subject)


class TestQuestions:
    def test_it_is_asked_once_per_operation_and_target(self, net):
        """Never for declared access; once for a target in any spelling; again in the next activation."""
        counts = net.run(questions)["counts"]
        home, tcp = (f"127.0.0.1:{net.places[place][1]}" for place in ("http", "tcp"))
        assert counts["allowed"] == []
        assert counts["first"] == counts["new activation"] == [["receive", f"http://{home}/other"]]
        assert counts["again"] == counts["head"] == []
        assert counts["other method"] == [["send", f"http://{home}/other"]]
        assert counts["below"] == [["receive", f"http://{home}/other/below"]]
        assert counts["socket"] == [["connect", tcp]]
        assert counts["name"] == [["connect", "evil.example.net:80"]]
        assert {target.rpartition(":")[2] for _, target in counts["localhost"]} <= {str(net.places["tcp"][1])}

    def test_the_question_tells_who_asks_for_what(self, net):
        """Subject, kind, chain, identity; a request may be filed; the decider runs unguarded."""
        assert net.run(questions)["first"] == {
            "resource": "network",
            "operation": "receive",
            "target": f"http://127.0.0.1:{net.places['http'][1]}/other",
            "register": True,
            "subject": "demo",
            "kind": "engine",
            "chain": ["engine:demo"],
            "identity": ["u", "o", "s"],
            "guarded": False,
        }


class TestAnswers:
    def test_a_yes_lets_the_request_through(self, net):
        """True, a session approval, a permanent approval, or a declaration unknown to the guard."""
        seen = net.run(answers)
        yes = {name for name, cell in seen.items() if cell["told"] == 200}
        assert yes == {"true", "session approval", "permanent approval", "allowlist"}

    def test_everything_else_is_a_no(self, net):
        """Nothing arrives; the message for a target that is not enabled is the documented one."""
        for name, cell in net.run(answers).items():
            if cell["told"] == 200:
                continue
            assert cell["arrived"] == 0, name
            assert cell["told"]["type"] == "NetworkDenied", name
            if name != "denied":
                # wording: contract, section 3
                assert cell["told"]["str"].startswith("External URL is locked."), name

    def test_the_denial_carries_the_decision(self, net):
        """It contains the id of a pending request, or the message of a denial."""
        seen = {name: cell["told"] for name, cell in net.run(answers).items()}
        # wording: contract, section 3
        assert seen["pending"]["decision"] == [False, "pending", True, "External URL is locked."]
        assert seen["pending"]["request_id"] == "request-7"
        assert seen["denied"]["decision"][1] == "denied"
        # wording: the message that the test's own decider gives
        assert "This resource is disabled." in seen["denied"]["str"]
        assert "sandbox_network_denied:demo:" in seen["denied"]["str"]
        assert seen["false"]["decision"] is None
        assert seen["false"]["request_id"] is None

    def test_an_approval_covers_its_operation_and_target(self, net):
        """GET and HEAD of that URL, with their connection: no raw socket, no other method, nothing below."""
        told = net.run(scope)
        seen = told["seen"]
        assert [seen[name] for name in ("request", "head", "query")] == [200, 200, 200]
        assert seen["socket"] == "ok"
        home = f"127.0.0.1:{net.places['http'][1]}"
        assert seen["post"] == f"denied send http://{home}/other"
        assert seen["below"] == f"denied receive http://{home}/other/below"
        assert seen["raw"] == f"denied connect {home}"
        assert seen["other socket"] == f"denied connect 127.0.0.1:{net.places['sink'][1]}"

    def test_a_failure_is_not_a_denial(self, net):
        """It is ExternalAccessCheckFailed and not an OSError, allows nothing, and is not cached."""
        seen = net.run(failures)
        for name, told in seen["told"].items():
            assert told["type"] == "ExternalAccessCheckFailed", name
            assert "OSError" not in told["bases"], name
        assert seen["asked"] == len(seen["told"])
        assert seen["recovered"] == 200
        assert seen["arrived"] == 2  # one connection and one request

    def test_an_approval_that_arrives_later(self, net):
        """The next activation sees it; the running one after access_changed(). The same applies to a revocation."""
        url = f"http://127.0.0.1:{net.places['http'][1]}/other"
        assert net.run(changes) == [
            ["closed", f"denied receive {url}", 1],
            ["approved, unsaid", f"denied receive {url}", 0],
            ["next activation", 200, 1],
            ["approved, said", 200, 1],
            ["revoked, unsaid", 200, 0],
            ["revoked, said", f"denied receive {url}", 1],
        ]

    def test_only_the_host_says_that_access_changed(self, net):
        """A subject could otherwise ask the decider without limit."""
        assert net.run(inside_access_changed) == "TamperDenied"


class TestDenials:
    def test_it_says_what_and_for_whom(self, net):
        """Code, layer, subject, chain, operation, target without the query, and where to declare it."""
        seen = net.run(attributes)
        http, tcp = (f"127.0.0.1:{net.places[place][1]}" for place in ("http", "tcp"))
        expected = {
            "request": ("receive", f"http://{http}/other"),
            "socket": ("connect", tcp),
            "name": ("connect", "evil.example.net:80"),
            "kind": ("connect", "socket:2/3/1"),
        }
        for name, (operation, target) in expected.items():
            told = seen["told"][name]
            # wording: contract, section 3
            assert told["str"] == f"External URL is locked. (sandbox_network_denied:whisper:{target})"
            assert (told["operation"], told["target"]) == (operation, target)
            assert (told["errno"], told["code"], told["layer"]) == (13, "sandbox_network_denied", "guard")
            assert (told["subject"], told["subject_kind"]) == ("whisper", "engine")
            assert told["subject_chain"] == ["engine:whisper"]
            assert "access=[...] of process_guard_context(subject='whisper', ...)" in told["hint"] or name == "kind"
        assert "token" not in seen["told"]["request"]["hint"]

    def test_it_can_be_sent_and_is_kept(self, net):
        """It survives pickling; the host finds it among the recent denials; diagnostics contain the hint."""
        seen = net.run(attributes)
        assert seen["same"] is True
        assert set(seen["recent"]) >= {told["str"] for told in seen["told"].values()}
        assert seen["told"]["request"]["hint"] in seen["diagnostics"]

    def test_an_empty_target_is_missing(self, net):
        """It has a specific error."""
        told = net.run(missing)
        assert {name: facts["type"] for name, facts in told.items()} == dict.fromkeys(told, "NetworkTargetMissingError")
        assert {facts["str"] for facts in told.values()} == {"network_target_missing"}
