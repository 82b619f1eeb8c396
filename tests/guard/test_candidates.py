"""Candidate manifest in a shadow run: it decides nothing, and differences are reported to the host."""

from __future__ import annotations

import http.server
import os
import socket
import threading
import urllib.request


class Told:
    """Watcher that records differences by the guarded act."""

    def __init__(self):
        self.seen = []
        self.fails = False

    def saw(self, question, allowed):
        from democrai_sandbox import current_guard

        assert current_guard() is None
        about = (question.resource_type, question.operation, question.target)
        self.seen.append([*about, allowed, question.user_id, list(question.subject_chain), question.register_request])
        if self.fails:
            raise RuntimeError("a watcher that fails")

    def take(self):
        found, self.seen = self.seen, []
        return found


def activation(name, *entries, imports=(), **more):
    from democrai_sandbox.policy import Subject
    from democrai_sandbox.runtime.calls.invocation import GuardFactory

    return GuardFactory(Subject.parse(name), section(*entries, imports=imports), **more)


def section(*entries, imports=()):
    from democrai_sandbox.manifests import Section
    from democrai_sandbox.policy import parse_access

    named = [{"resource_type": kind, "operation": act, "target": str(target)} for kind, act, target in entries]
    return Section(access=parse_access(named, base=None), allowed_imports=imports)


def watched():
    from democrai_sandbox import configure_guard

    told = Told()
    configure_guard(watcher=told)
    return told


def uma():
    from democrai_sandbox.access.caller import Caller

    return Caller(user_id="uma")


def web():
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def connected(port):
    with socket.create_connection(("127.0.0.1", port), timeout=10):
        pass


def dialled(path):
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(path)


def acts(world):
    """Return all acts by name; the same list before, during and after a candidate."""
    kept, dropped, added = (world.out(name) for name in ("kept", "dropped", "added"))
    port, other = world.port, world.other
    fetch = lambda url: urllib.request.urlopen(url, timeout=10).read()  # noqa: E731 - short
    return {
        "read kept": lambda: read(f"{kept}/f"),
        "read dropped": lambda: read(f"{dropped}/f"),
        "read added": lambda: read(f"{added}/f"),
        "read neither": lambda: read(world.secret),
        "stat dropped": lambda: os.stat(f"{dropped}/f"),
        "exists added": lambda: os.path.exists(f"{added}/nothing"),
        "list dropped": lambda: os.listdir(dropped),
        "link to dropped": lambda: read(f"{kept}/link"),
        "make a file": lambda: write(f"{kept}/new"),
        "change a file": lambda: write(f"{kept}/new"),
        "rename": lambda: os.rename(f"{kept}/new", f"{kept}/newer"),
        "delete": lambda: os.unlink(f"{kept}/newer"),
        "own place": lambda: write(world.inside("own")),
        "fetch dropped": lambda: fetch(f"http://127.0.0.1:{port}/dropped/x"),
        "fetch added": lambda: fetch(f"http://127.0.0.1:{port}/added/x"),
        "connect dropped": lambda: connected(other),
        "connect again": lambda: connected(other),
        "dial a socket": lambda: dialled(f"{kept}/socket"),
        "import": lambda: __import__("ctypes"),
    }


def furnish(world):
    for name in ("kept", "dropped", "added"):
        os.mkdir(world.out(name))
        write(world.out(name, "f"))
    os.symlink(world.out("dropped", "f"), world.out("kept", "link"))
    world.port, world.other = web(), web()
    world.listener = socket.socket(socket.AF_UNIX)
    world.listener.bind(world.out("kept", "socket"))
    world.listener.listen()


def everything(world):
    told = watched()
    furnish(world)
    kept, dropped, added = (world.out(name) for name in ("kept", "dropped", "added"))
    files = [("filesystem", act, kept) for act in ("read", "create", "modify", "delete")]
    url = f"http://127.0.0.1:{world.port}"
    present = activation(
        "module:demo",
        *files,
        ("filesystem", "read", dropped),
        ("network", "receive", f"{url}/dropped"),
        ("network", "connect", f"127.0.0.1:{world.other}"),
        imports=("ctypes",),
        own_write=(world.root,),
    )
    candidate = section(*files[:1], *files[2:], ("filesystem", "read", added), ("network", "receive", f"{url}/added"))
    guard = present.guard(uma())

    def run():
        return {name: [guard.run(world.verdict, act), told.take()] for name, act in acts(world).items()}

    before = run()
    present.held_against(candidate)
    beside = run()
    told.fails = True
    failing = run()
    told.fails = False
    other = activation("module:other", ("filesystem", "read", dropped)).guard(uma())
    others = [other.run(world.verdict, read, world.out("dropped", "f")), told.take()]
    present.held_against(None)
    return {
        "before": before,
        "beside": beside,
        "failing": failing,
        "after": run(),
        "others": others,
        "port": world.port,
    }


def test_what_differs_is_told_and_nothing_is_decided_by_it(case):
    """Each act has the same result with and without a candidate; differences are reported once each."""
    found = case.run(everything)
    plain = {name: outcome for name, (outcome, _) in found["before"].items()}
    for run in ("beside", "failing", "after"):
        assert {name: outcome for name, (outcome, _) in found[run].items()} == plain, run
    assert not any(told for run in ("before", "after") for _, told in found[run].values())
    assert found["others"] == ["ok", []]
    told = {name: [one[:4] for one in seen] for name, (_, seen) in found["beside"].items() if seen}
    out, url = str(case.outside), f"http://127.0.0.1:{found['port']}"
    connects = told.pop("connect dropped")
    assert connects == told.pop("connect again")
    assert [one[:2] + one[3:] for one in connects] == [["network", "connect", True]]
    assert told == {
        "read dropped": [["filesystem", "read", f"{out}/dropped/f", True]],
        "read added": [["filesystem", "read", f"{out}/added/f", False]],
        "stat dropped": [["filesystem", "read", f"{out}/dropped/f", True]],
        "exists added": [["filesystem", "read", f"{out}/added/nothing", False]],
        "list dropped": [["filesystem", "read", f"{out}/dropped", True]],
        "link to dropped": [["filesystem", "read", f"{out}/dropped/f", True]],
        "make a file": [["filesystem", "create", f"{out}/kept/new", True]],
        "rename": [["filesystem", "create", f"{out}/kept/newer", True]],
        "fetch dropped": [["network", "receive", f"{url}/dropped/x", True]],
        "fetch added": [["network", "receive", f"{url}/added/x", False]],
        "dial a socket": [["network", "connect", f"unix:{out}/kept/socket", True]],
        "import": [["import", "use", "ctypes", True]],
    }
    assert found["beside"]["read dropped"][1][0][4:] == ["uma", ["module:demo"], False]
    assert plain["read added"] == "FilesystemDenied"
    assert plain["fetch added"].startswith(("URLError", "NetworkDenied"))
    assert plain["read dropped"] == plain["fetch dropped"] == plain["connect dropped"] == plain["import"] == "ok"


def inside(world):
    from democrai_sandbox.guard import _core, entrance, process_guard_context

    told = watched()
    furnish(world)
    folder, path = world.out("dropped"), world.out("dropped", "f")
    present = activation("module:demo", ("filesystem", "read", folder))
    present.held_against(section())
    own = [{"resource_type": "filesystem", "operation": "read", "target": folder}]
    look = {"whose": None, "subject": "demo.look", "subject_kind": "tool"}
    merged = entrance(world.can_read, exact=False, **look)
    exact = entrance(world.can_read, exact=True, access=own, **look)

    def narrowed():
        with process_guard_context(subject="demo", subject_kind="module", allowed_paths=[world.out("added")]):
            return world.can_read(path)

    trials = {
        "tamper": lambda: world.verdict(_core.candidate, "module:demo", None),
        "narrowed": narrowed,
        "thread": lambda: in_thread(lambda: world.can_read(path)),
        "merged": lambda: merged(path),
        "exact": lambda: exact(path),
    }
    guard = present.guard(uma())
    return {name: [guard.run(act), [one[2:4] + one[5:6] for one in told.take()]] for name, act in trials.items()}


def in_thread(act):
    found = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    thread.join()
    return found[0]


def test_who_is_held_against_it(case):
    """The candidate applies to the subject, its threads and tools without declarations.

    It does not apply to a context that the subject opens under its own name, or to a tool with declarations. The
    subject cannot end it.
    """
    found = case.run(inside)
    path = str(case.outside / "dropped" / "f")
    assert found == {
        "tamper": ["TamperDenied", []],
        "narrowed": ["FilesystemDenied", []],
        "thread": ["ok", [[path, True, ["module:demo"]]]],
        "merged": ["ok", [[path, True, ["module:demo", "tool:demo.look"]]]],
        "exact": ["ok", []],
    }
