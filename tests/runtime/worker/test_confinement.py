"""The guard inside a worker, and the host's checks of its messages."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from tests.services.golden import sentence

sys.path.insert(0, os.path.dirname(__file__))
from worker_kit import Host, make_spec, make_worker, run, until, verdict, who


@pytest.fixture
def case(fresh_case):
    """Make a world whose workers start as in any host."""
    return fresh_case


CURIOUS = """
from democrai_sandbox import sdk
import os, socket, subprocess, sys, threading, time

@sdk.method("read")
def read(path):
    with open(path) as file:
        return file.read()

@sdk.method("write")
def write(path):
    with open(path, "w") as file:
        file.write("x")

@sdk.method("connect")
def connect():
    socket.create_connection(("127.0.0.1", 9), 1)

@sdk.method("start")
def start():
    subprocess.run(["/bin/true"])

@sdk.method("ctypes")
def use_ctypes():
    import ctypes

@sdk.method("environment")
def environment():
    return dict(os.environ)

@sdk.method("change")
def change():
    os.environ["DEMOCRAI_USER_ID"] = "ada"

@sdk.method("check")
def check(target, register=True):
    said = sdk.access.check_external_access(
        resource_type="filesystem", operation="read", target=target, register_request=register)
    return [str(said.code), said.request_id]

@sdk.method("check afterwards")
def check_afterwards(path):
    def later():
        while not os.path.exists(path + ".over"):
            time.sleep(0.01)
        try:
            said = sdk.access.check_external_access(
                resource_type="filesystem", operation="read", target="/etc/shadow")
            text = str(said.code) + " " + said.message
        except Exception as error:
            text = repr(error)
        with open(path, "w") as file:
            file.write(text)
    threading.Thread(target=later).start()

@sdk.method("settings")
def settings():
    import gc
    gc.disable()
    socket.setdefaulttimeout(3)
    threading.stack_size(1 << 20)
    return [gc.isenabled(), socket.getdefaulttimeout(), threading.stack_size()]

@sdk.method("imports")
def imports(names):
    found = []
    for name in names:
        try:
            found.append(__import__(name).__file__)
        except ImportError:
            found.append(None)
    return found
"""


def inside_story(world):
    os.environ["HOST_PASSWORD"] = "secret"
    declared = json.dumps([{"resource_type": "filesystem", "operation": "read", "target": world.secret}])
    spec = {"protected": (os.path.join(world.base, "data"),), "env": (("MODEL", "small"),)}
    worker, host = make_worker(world, CURIOUS, **spec)
    declaring, _ = make_worker(world, CURIOUS, name="declaring", access=declared, **spec)

    async def story():
        act = lambda name, **params: verdict(worker.call("method", name, params))
        told = {"own": await act("write", path=os.path.join(worker.spec.data_dir, "a"))}
        told["other"] = await act("write", path=os.path.join(world.base, "data", "declaring", "a"))
        told["read"] = await act("read", path=world.secret)
        told["declared"] = await verdict(declaring.call("method", "read", {"path": world.secret}))
        for name in ("connect", "start", "ctypes", "change"):
            told[name] = (await act(name))[0]
        told["environment"] = await worker.call("method", "environment")
        told["denials"] = host.denials
        told["settings"] = await worker.call("method", "settings")
        told["imports"] = await worker.call("method", "imports", {"names": ["sqlalchemy", "democrai_sandbox", "json"]})
        await worker.stop()
        await declaring.stop()
        return told

    return run(story)


def test_the_guard_in_a_worker_stops_what_it_stops_in_process_with_the_same_errors(case):
    """Files, network, programs, native code and the environment; each denial is reported to the host."""
    told = case.run(inside_story)
    assert told["own"] is None
    assert told["other"][0] == "FilesystemDenied"
    assert told["read"] == ["FilesystemDenied", f"sandbox_filesystem_denied:demo:{case.secret}"]
    assert told["declared"] == "SECRET"
    kinds = {
        "connect": "NetworkDenied",
        "start": "SubprocessDenied",
        "ctypes": "ModuleDenied",
        "change": "EnvironmentDenied",
    }
    assert {name: told[name] for name in kinds} == kinds
    assert f"sandbox_filesystem_denied:demo:{case.secret}" in told["denials"]
    assert told["settings"] == [False, 3, 1 << 20]  # process settings belong to the subject in its own process
    environment = told["environment"]
    assert environment["DEMOCRAI_NETWORK_SUBJECT"] == "demo"
    assert environment["DEMOCRAI_NETWORK_SUBJECT_KIND"] == "engine"
    assert json.loads(environment["DEMOCRAI_ACCESS"]) == []
    assert environment["MODEL"] == "small"
    assert not {"HOST_PASSWORD", "PYTHONPATH", "DEMOCRAI_USER_ID"} & set(environment)
    assert told["imports"][0] is None
    assert all(told["imports"][1:])


def service_story(world):
    from democrai_sandbox.access import Access, AccessSettings, Caller
    from democrai_sandbox.errors import StoreUnavailable
    from democrai_sandbox.runtime.access_environment import GuardSurroundings, serving

    folder = os.path.join(world.base, "state")
    os.makedirs(folder)
    settings = AccessSettings(f"sqlite:///{folder}/access.db", f"{folder}/keys", poll_seconds=0.1)
    access = Access(settings, GuardSurroundings())
    worker, host = make_worker(world, CURIOUS, host=Host(decide=access.service.decide))
    access.node.on_change(worker.access_changed)

    async def story():
        uma, eve = who("uma", "", "s1"), who("eve", "", "s2")
        read = lambda caller: verdict(worker.call("method", "read", {"path": world.secret}, caller=caller))
        told = {"before": await read(uma)}
        code, request = await worker.call("method", "check", {"target": world.secret}, caller=uma)
        told["asked"] = code
        with serving(Caller(user_id="ada", role="super")):
            listed = access.administration.pending_requests().items
            told["who"] = [[str(one.access.subject), one.origin.user_id, one.origin.session_key] for one in listed]
            access.administration.approve_for_session(request)
        told["after"] = await read(uma)
        told["eve"] = await read(eve)
        register = access.store.register

        def away(*_, **__):
            raise StoreUnavailable

        access.store.register = away
        told["away"] = await verdict(worker.call("method", "check", {"target": "/etc/gshadow"}, caller=eve))
        access.store.register = register
        note = os.path.join(worker.spec.data_dir, "note")
        asked = len(host.questions)
        await worker.call("method", "check afterwards", {"path": note}, caller=eve)
        with open(f"{note}.over", "w"):
            pass
        await until(lambda: os.path.exists(note) and os.path.getsize(note) > 0)
        with open(note) as file:
            told["afterwards"] = file.read()
        told["asked afterwards"] = len(host.questions) - asked
        await worker.stop()
        return told

    with access:
        return run(story)


def test_the_access_policy_service_answers_for_a_worker_and_an_approval_reaches_it(case):
    """Answers are only for the user and session of a running call, and a store that is down is not a denial."""
    told = case.run(service_story)
    assert told["before"][0] == "FilesystemDenied"
    assert told["asked"] == "pending"
    assert told["who"] == [["engine:demo", "uma", "s1"]]
    assert told["after"] == "SECRET"
    assert told["eve"][0] == "FilesystemDenied"
    assert told["away"] == ["ExternalAccessCheckFailed", "sandbox_external_access_check_failed"]
    code, _, text = told["afterwards"].partition(" ")
    assert code == "not_enabled"
    sentence("asked after the call", text)
    assert told["asked afterwards"] == 0


COPYING = """
from democrai_sandbox import sdk
import os

@sdk.method("captures")
def captures(path):
    print("before", flush=True)
    kept = os.dup(1)
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    os.dup2(file, 1)
    os.write(1, b"captured")
    os.dup2(kept, 1)
    os.write(kept, b"kept ")
    os.close(kept)
    os.close(file)
    print("after", flush=True)
    with open(path) as found:
        return found.read()
"""


def copying_story(world):
    worker, host = make_worker(world, COPYING)

    async def story():
        told = await worker.call("method", "captures", {"path": os.path.join(worker.spec.data_dir, "out")})
        await until(lambda: "after" in host.text())
        await worker.stop()
        return told, host.text()

    return run(story)


def test_a_subject_replaces_the_standard_output_of_its_worker_and_puts_it_back(case):
    """As pytest does it to capture output."""
    assert case.run(copying_story) == ["captured", "before\nkept after\n"]


REACHING = """
from democrai_sandbox import sdk
import _socket, gc, os, select, socket, sys, threading

def tried(function, *args):
    try:
        return repr(function(*args))
    except PermissionError as error:
        return type(error).__name__
    except BaseException as error:
        return f"{type(error).__name__}: {error}"

@sdk.method("descriptors")
def descriptors():
    found = {}
    for number in range(3, 64):
        try:
            kind = os.readlink(f"/proc/self/fd/{number}")
        except OSError as error:
            kind = ""
        ways = {
            "write": lambda: os.write(number, b"x"),
            "read": lambda: os.read(number, 1),
            "dup": lambda: os.dup(number),
            "open": lambda: open(number, "rb", buffering=0, closefd=False),
            "socket": lambda: socket.socket(fileno=number),
            "fromfd": lambda: socket.fromfd(number, socket.AF_UNIX, socket.SOCK_STREAM),
            "writev": lambda: os.writev(number, [b"x"]),
            "sendfile": lambda: os.sendfile(number, 0, 0, 1),
            "close": lambda: os.close(number),
            "proc": lambda: open(f"/proc/self/fd/{number}", "wb"),
        }
        found[number] = {name: tried(way) for name, way in ways.items()}
    return {str(number): ways for number, ways in found.items()}

def frames():
    # Those below this one, by way of an exception.
    try:
        raise ValueError
    except ValueError as error:
        frame = error.__traceback__.tb_frame
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found

SOUGHT = {"WorkerSocket", "HostClient", "CallRunner", "WorkerCalls", "WorkerCall", "Control", "Hands",
          "GuardFactory", "RemoteDecider", "_WorkerMain", "RemoteServices"}

def held(thing, name):
    try:
        return getattr(thing, name, None)
    except Exception:
        return None

def search(queue):
    # How one comes from these things to what the worker works with.
    seen, ways, kept = set(), [], []
    while queue and len(seen) < 200_000:
        thing, way = queue.pop()
        if id(thing) in seen or isinstance(thing, (str, bytes, int, float)):
            continue
        seen.add(id(thing))
        kept.append(thing)
        kind = type(thing).__name__
        if kind in SOUGHT or type(thing) is _socket.socket:
            ways.append(way)
            continue
        if isinstance(thing, dict):
            inner = list(thing.values())
        elif isinstance(thing, (list, tuple, set, frozenset)):
            inner = list(thing)
        else:
            names = ["__dict__", "__closure__", "__self__", "__func__", "f_locals", "cr_frame", "_callback", "_coro"]
            names += ["cell_contents"] if kind == "cell" else []
            inner = [held(thing, name) for name in names]
        queue += [(other, (way + "/" + kind)[-150:]) for other in inner if other is not None]
    return [len(seen), ways]

def starts():
    ours = [name for name in sys.modules if name.startswith("democrai_sandbox") or name == "__main__"]
    return [*((thread, thread.name) for thread in threading.enumerate()), *((frame, "frame") for frame in frames()),
            *((sys.modules[name], name) for name in ours)]

@sdk.method("objects")
def objects():
    return {"collector": tried(gc.get_objects), "frames": tried(sys._current_frames), "found": search(starts())}

@sdk.method("names")
def names():
    from democrai_sandbox.runtime.worker import calls, codec, host_client, main
    def steal(*args, **kwargs):
        return True
    places = [(host_client.HostClient, "ask"), (host_client.RemoteDecider, "decide"),
              (host_client.WorkerSocket, "send"), (codec, "plain"), (codec, "encode"), (calls.CallRunner, "begin"),
              (main, "capture"), (calls.WorkerCalls, "present")]
    return [tried(setattr, place, name, steal) for place, name in places]

@sdk.method("doors")
def use_doors():
    values = [value for frame in frames() for value in (held(frame, "f_locals") or {}).values()]
    doors = {id(value): value for value in values if type(value).__name__ == "Door"}
    ways = ((), (1,), (1, ["value", 1]))
    return [len(doors), sorted({tried(door, *args) for door in doors.values() for args in ways})]

@sdk.method("add")
def add(a):
    return a + 1
"""


LOOPING = """
import asyncio

@sdk.method("objects later")
async def objects_later():
    loop = asyncio.get_running_loop()
    more = [asyncio.current_task().get_coro(), *asyncio.all_tasks(), loop, *loop._ready, *loop._scheduled,
            *(key.data for key in loop._selector.get_map().values())]
    return search([*starts(), *((thing, "loop") for thing in more)])
"""


def reaching_story(world):
    worker, host = make_worker(world, REACHING)
    looping, _ = make_worker(world, REACHING + LOOPING, name="looping")

    async def story():
        await worker.start()
        pid = worker.pid
        sockets = sorted(
            int(number)
            for number in os.listdir(f"/proc/{pid}/fd")
            if os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:")
        )
        told = {"ways": await worker.call("method", "descriptors"), "sockets": sockets}
        for name in ("objects", "names", "doors"):
            told[name] = await worker.call("method", name)
        plain, later = [await looping.call("method", name) for name in ("objects", "objects later")]
        told["looping"] = [plain["found"], later]
        await looping.stop()
        told["add"] = await worker.call("method", "add", {"a": 1})
        told["starts"] = worker.starts
        await worker.stop()
        return told

    return run(story)


def test_guarded_code_reaches_neither_the_descriptors_nor_the_objects_of_the_channel(case):
    """Its sockets belong to the host; lists of modules, threads, frames and the loop do not expose them."""
    told = case.run(reaching_story)
    assert len(told["sockets"]) >= 2
    for number in told["sockets"]:
        ways = told["ways"][str(number)]
        assert set(ways.values()) <= {"FilesystemFdDenied", "NetworkDenied", "FilesystemDenied", "TamperDenied"}, (
            number,
            ways,
        )
    assert told["objects"]["collector"] == "TamperDenied"
    assert told["objects"]["frames"] == "TamperDenied"
    for many, ways in (told["objects"]["found"], *told["looping"]):
        assert many > 1000
        assert ways == []
    assert set(told["names"]) == {"TamperDenied"}
    assert set(told["doors"][1]) <= {"TamperDenied"}
    assert (told["add"], told["starts"]) == (2, 1)


PACKED = """
from democrai_sandbox import sdk
import library, sys

@sdk.method("version")
def version():
    return [library.VERSION, sys.prefix, sys.executable]
"""


def environments_story(world):
    place = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"

    def make(name, start):
        environment = os.path.join(world.base, "environments", name)
        os.makedirs(os.path.join(environment, place, "library"))
        files = {
            "library/__init__.py": f"VERSION = {name!r}\n",
            "library.pth": start + "\n",
            "sitecustomize.py": start + "\n",
            "democrai_sandbox.py": "raise SystemExit('the wrong package')\n",
        }
        for file, text in files.items():
            with open(os.path.join(environment, place, file), "w") as out:
                out.write(text)
        return environment

    mark = os.path.join(world.base, "outside", "mark")
    start = f"import os; print('starting', flush=True); open({mark!r}, 'w').write('x')"
    base = getattr(sys, "_base_executable", sys.executable)
    workers = []
    for name in ("one", "two"):
        environment = make(name, start)
        workers.append(
            make_worker(
                world,
                PACKED,
                name=name,
                environment=environment,
                interpreter=base,
                own_read=(),
                own_write=(),
                access=json.dumps([{"resource_type": "filesystem", "operation": "read", "target": world.base}]),
            )
        )

    async def story():
        told = {"versions": [await verdict(worker.call("method", "version")) for worker, _ in workers]}
        for worker, _ in workers:
            await worker.stop()
        told["written"] = [host.text() for _, host in workers]
        told["mark"] = os.path.exists(mark)
        told["denials"] = [sorted(set(host.denials)) for _, host in workers]
        return told

    return run(story)


def test_two_workers_have_two_versions_of_a_library_and_start_up_files_run_inside_the_guard(case):
    """An environment's packages are used, but its interpreter and start-up code never run before the guard."""
    told = case.run(environments_story)
    base = case.base / "environments"
    assert told["versions"] == [
        [name, str(base / name), str(base / name / "bin" / "python")] for name in ("one", "two")
    ]
    assert told["written"] == ["starting\n"] * 2
    assert told["mark"] is False
    assert told["denials"] == [[f"sandbox_filesystem_denied:{name}:{case.outside / 'mark'}"] for name in ("one", "two")]


def witness_story(world):
    from democrai_sandbox.errors.extensions import FrameError
    from democrai_sandbox.policy import InvalidInputError
    from democrai_sandbox.runtime.worker.host_requests import CallerCheck, KnownCaller, SharedCall

    declared = [
        {"resource_type": "filesystem", "operation": "read", "target": "/srv/models"},
        {"resource_type": "network", "operation": "receive", "target": "https://api.test/v1"},
    ]
    witness = CallerCheck(make_spec(world, kind="module", access=json.dumps(declared), own_read=(), own_write=()))
    uma = KnownCaller(who("uma", "", "s1", "admin"), ())
    nightly = KnownCaller(who("uma"), ("task:demo.nightly",))
    lent = json.dumps([{"resource_type": "filesystem", "operation": "read", "target": "/srv/models/b"}])
    again = ("module:demo", "tool:other.y")
    shared = KnownCaller(who("eva"), ("module:other",), SharedCall("tool:demo.peek", lent))
    cycle = KnownCaller(who("eva"), again, SharedCall("tool:demo.peek", lent))

    def question(*chain, subject="module:demo", user=None, session=None):
        kind, _, name = subject.partition(":")
        fields = [name, kind, list(chain), "network", "send", "https://a.test", True, user, None, session, "", None]
        try:
            found = witness.question(fields, (uma, nightly, shared, cycle))
        except FrameError as error:
            return str(error)
        if found is None:
            return None
        asked, _ = found
        return [list(asked.subject_chain), asked.user_id, asked.session_key]

    def rules(*links, call=uma, chain=("module:demo", "tool:demo.peek")):
        user, _, session = call.caller[:3]
        fields = [list(chain), user, None, session or None, [list(link) for link in links]]
        view, standing = witness.view(fields, (call,))
        shown = [[rule.operation, rule.normalized_target] for link in view.allow_chain for rule in link.rules]
        return [sorted(shown), standing.caller.role]

    wide = json.dumps(
        [{"resource_type": "filesystem", "operation": "read", "target": target} for target in ("/", "/srv/models/a")]
    )
    return {
        "own": question("module:demo", user="uma", session="s1"),
        "nobody": question("module:demo"),
        "other user": question("module:demo", user="eve", session="s1"),
        "other session": question("module:demo", user="uma", session="s2"),
        "no session": question("module:demo", user="uma"),
        "task": question("task:demo.nightly", "module:demo", user="uma"),
        "other task": question("task:demo.daily", "module:demo", user="uma"),
        "task for nobody": question("task:demo.nightly", "module:demo"),
        "tool": question("module:demo", "tool:demo.peek", subject="tool:demo.peek", user="uma", session="s1"),
        "tool of another": question("module:demo", "tool:demo.a.b", subject="tool:demo.a.b", user="uma", session="s1"),
        "engine inside": question("module:demo", "engine:demo", subject="engine:demo"),
        "another": question("module:other", subject="module:other"),
        "not in its chain": question("module:demo", subject="module:other"),
        "no chain": question(),
        **{
            f"shared {name}": question(*chain, subject=chain[-1], user="eva")
            for name, chain in {
                "call": ("module:other", "tool:demo.peek"),
                "part": ("module:other", "tool:demo.peek", "agent:demo.x"),
                "cycle": (*again, "tool:demo.peek"),
                "without its caller": ("tool:demo.peek",),
                "as the module": ("module:demo",),
                "below the module": ("module:demo", "tool:demo.peek"),
                "another asset": ("module:other", "tool:demo.other"),
                "another caller": ("module:third", "tool:demo.peek"),
                "shorter cycle": ("tool:other.y", "tool:demo.peek"),
                "the caller": ("module:other",),
                "the caller below": ("module:other", "tool:demo.peek", "module:other"),
            }.items()
        },
        "shared for uma": question("module:other", "tool:demo.peek", subject="tool:demo.peek", user="uma"),
        "for its caller": question("module:other", "tool:demo.peek", subject="module:other", user="eva"),
        "lent": rules(call=shared, chain=("module:other", "tool:demo.peek")),
        "merged": rules(("tool", "demo.peek", wide, 0)),
        "exact": rules(("tool", "demo.peek", wide, 1)),
    }


def test_the_host_believes_no_worker_that_it_is_another_or_asks_for_another(case):
    """Subjects, users, sessions and chains must be those of pending calls; inner declarations can only narrow."""
    told = case.run(witness_story)
    assert told["own"] == [["module:demo"], "uma", "s1"]
    assert told["nobody"] == [["module:demo"], None, None]
    assert told["task"] == [["task:demo.nightly", "module:demo"], "uma", None]
    assert told["tool"] == [["module:demo", "tool:demo.peek"], "uma", "s1"]
    for name in ("other user", "other session", "no session", "other task", "task for nobody"):
        assert told[name] is None, name
    for name, chain in (("call", "module:other"), ("cycle", "module:demo tool:other.y")):
        assert told[f"shared {name}"] == [[*chain.split(), "tool:demo.peek"], "eva", None]
    assert told["shared part"] == [["module:other", "tool:demo.peek", "agent:demo.x"], "eva", None]
    for name in ("without its caller", "as the module", "below the module", "another asset", "another caller"):
        assert told[f"shared {name}"] is None, name
    assert told["shared shorter cycle"] is told["shared for uma"] is None
    assert told["lent"] == [[["read", "/srv/models/b"]], ""]
    for name in ("tool of another", "engine inside", "another", "not in its chain", "no chain", "for its caller"):
        assert isinstance(told[name], str), name
    for name in ("shared the caller", "shared the caller below"):
        assert isinstance(told[name], str), name
    full = [["read", "/srv/models"], ["receive", "https://api.test/v1"]]
    assert told["merged"] == [full, "admin"]
    assert told["exact"] == [[["read", "/srv/models/a"]], "admin"]


CHAINED = """
from democrai_sandbox import sdk

@sdk.task("nightly")
def nightly(path):
    open(path)
"""


def chain_story(world):
    worker, host = make_worker(world, CHAINED, kind="module")

    async def story():
        call = worker.call(
            "task", "nightly", {"path": world.secret}, caller=who("uma"), ancestors=("task:demo.nightly",)
        )
        try:
            await call
        except PermissionError as error:
            told = {"chain": list(map(str, error.subject_chain)), "subject": error.subject}
        question = host.questions[0]
        told["asked"] = [list(question.subject_chain), question.subject_kind, question.user_id, question.session_key]
        await worker.stop()
        return told

    return run(story)


def test_a_call_that_continues_a_chain_has_it_in_denials_and_questions(case):
    """The acting subject is still the worker's own."""
    told = case.run(chain_story)
    assert told["chain"] == ["task:demo.nightly", "module:demo"]
    assert told["subject"] == "demo"
    assert told["asked"] == [["task:demo.nightly", "module:demo"], "module", "uma", None]
