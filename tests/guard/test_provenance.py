"""Code that was loaded for a subject runs as that subject for every caller."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guard.harness import PACKAGE, Case
from tests.services.golden import sentence

DENIED = "FilesystemDenied"


# ---- in the child -----------------------------------------------------------------------------------------------


def subject_of(world, source, **names):
    """Load source as a runtime does: under the subject's guard, marked as its code. Return its names."""
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.guard import own_code

    def execute():
        code = compile(source, world.inside("module.py"), "exec", dont_inherit=True)
        own_code(code)
        space = {"__name__": "subject", "SECRET": world.secret, **names}
        exec(code, space)
        return space

    return process_guard_context(subject="demo", allowed_paths=[world.root]).run(execute)


KINDS = """
import _imp, functools, marshal, types

def read(): return open(SECRET).read()
outer = [lambda: open(SECRET).read()]

def comprehension(): return [open(path).read() for path in (SECRET,)]

def recursion(depth=400): return recursion(depth - 1) if depth else open(SECRET).read()

class Thing:
    def __eq__(self, other): return bool(read())
    def __hash__(self): return len(read())
    def __str__(self): return read()
    def __fspath__(self): return read()
    def __getattr__(self, name): return read()
    def __iter__(self): yield read()
    @property
    def value(self): return read()
    @staticmethod
    def static(): return read()
    @classmethod
    def of(cls): return read()

class Meta(type):
    def __instancecheck__(cls, instance): return bool(read())

class Checked(metaclass=Meta): pass

TEXT = "def made():\\n    return open(%r).read()" % SECRET
space = {}
exec(TEXT, space)
by_exec = space["made"]
by_eval = eval("lambda: open(%r).read()" % SECRET)
exec(compile(TEXT, types.__file__, "exec"), space)
forged_file = space["made"]
exec(compile(TEXT, "<frozen os>", "exec"), space)
forged_frozen = space["made"]
kept = compile(TEXT, "<text>", "exec")
exec(kept, space)
by_compile = space["made"]
[loaded] = marshal.loads(marshal.dumps([kept]))
exec(loaded, space)
by_marshal = space["made"]
renamed = types.FunctionType(read.__code__.replace(co_name="other"), globals())
def exchanged(): return open(SECRET).read()
exchanged.__code__ = exchanged.__code__.replace(co_filename="elsewhere")
by_partial = functools.partial(read)
try:
    exec(_imp.get_frozen_object("x", marshal.dumps(compile(TEXT, "<text>", "exec"))), space)
    by_frozen = space["made"]
except Exception:
    by_frozen = read
class Number:
    def __index__(self):
        try:
            self.made = types.CodeType(*[getattr(self.model, name) for name in self.names])
        except Exception:
            self.made = self.model
        return 1
number = Number()
number.model = space["made"].__code__
number.names = ("co_argcount co_posonlyargcount co_kwonlyargcount co_nlocals co_stacksize co_flags co_code co_consts "
    "co_names co_varnames co_filename co_name co_qualname co_firstlineno co_linetable co_exceptiontable co_freevars "
    "co_cellvars").split()
try: read.__code__.replace(co_firstlineno=number)
except Exception: number.made = number.model
by_index = types.FunctionType(number.made, globals())
import collections, importlib, re, runpy, sys, textwrap
KEEP = "def made():\\n    return open(%r).read()\\nimport sys\\nsys.modules['kept'].made = made" % SECRET
def during_import(run):
    # what the text leaves behind, compiled while a library is imported or run
    sys.modules["kept"] = kept = types.ModuleType("kept")
    try: run()
    except BaseException: pass
    return getattr(kept, "made", read)
def import_library():
    before = re.compile
    factory = functools.partial(exec, KEEP, {})
    re.compile = collections.defaultdict(factory).__getitem__
    try: importlib.reload(textwrap)
    finally:
        re.compile = before
        importlib.reload(textwrap)
by_import = during_import(import_library)
def run_timeit():
    before = sys.argv
    sys.argv = ["timeit", "-n1", "-r1", KEEP]
    try: runpy.run_module("timeit", run_name="__main__")
    finally: sys.argv = before
by_running = during_import(run_timeit)
"""


def every_kind(world):
    """Use the subject's functions and objects as the host in many ways."""
    found = subject_of(world, KINDS)
    thing = found["Thing"]()
    calls = {
        "function": found["read"],
        "lambda": found["outer"][0],
        "comprehension": found["comprehension"],
        "recursion": found["recursion"],
        "equality": lambda: thing == 1,
        "hash": lambda: hash(thing),
        "text": lambda: str(thing),
        "path": lambda: open(thing),
        "attribute": lambda: thing.anything,
        "iteration": lambda: list(thing),
        "property": lambda: thing.value,
        "static method": thing.static,
        "class method": thing.of,
        "instance check": lambda: isinstance(1, found["Checked"]),
    }
    names = ("by_exec", "by_eval", "forged_file", "forged_frozen", "by_compile", "by_marshal", "renamed", "exchanged")
    names += ("by_partial", "by_frozen", "by_index", "by_import", "by_running")
    calls |= {name: found[name] for name in names}
    return {name: world.verdict(call) for name, call in calls.items()}


FORGED = """
import os, types
def attempt(text, file):
    try:
        exec(compile(text, file, "exec"), {})
    except Exception as error:
        return type(error).__name__
FILES = (types.__file__, "<frozen os>", "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
TEXTS = ("import builtins; builtins.len = 1", "import os; os.umask(0o777)", "import _thread; _thread.stack_size(65536)")
found = {attempt(text, file) for file in FILES for text in TEXTS}
"""


def forged(world):
    """Return the results of acts by code that claims to be of a library."""
    import os

    before = (len, os.umask(0o22))
    subject = subject_of(world, FORGED)
    return sorted(subject["found"], key=str), before == (len, os.umask(0o22))


def finalised(world):
    """Run blocks when the host drops, closes or ends objects of the subject."""
    import asyncio
    import gc

    found = subject_of(
        world,
        """
said = []
def attempt():
    try:
        said.append(open(SECRET).read())
    except Exception as error:
        said.append(type(error).__name__)
def generator():
    try: yield
    finally: attempt()
class Never:
    def __await__(self): yield
async def coroutine():
    try: await Never()
    finally: attempt()
async def async_generator():
    try: yield
    finally: attempt()
class Dropped:
    def __del__(self): attempt()
""",
    )
    said = found["said"]
    held = found["generator"]()
    next(held)
    del held
    held = found["generator"]()
    next(held)
    held.close()
    held = found["coroutine"]()
    held.send(None)
    held.close()

    async def iterate():
        held = found["async_generator"]()
        await anext(held)

    asyncio.run(iterate())
    found["Dropped"]()
    gc.collect()
    return said


def elsewhere(world):
    """Call the subject's function from threads, pools and loops of the host, and let it start some."""
    import asyncio
    import threading
    from concurrent.futures import ThreadPoolExecutor

    found = subject_of(
        world,
        """
import functools, threading
said = []
def attempt():
    try:
        said.append(open(SECRET).read())
    except Exception as error:
        said.append(type(error).__name__)
def start():
    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
def start_builtin():
    thread = threading.Thread(target=functools.partial(next, map(said.append, map(open, [SECRET]))))
    thread.start()
    thread.join()
async def task(): attempt()
""",
    )
    threading.excepthook = lambda hook: found["said"].append(hook.exc_type.__name__)
    thread = threading.Thread(target=found["attempt"])
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(found["attempt"]).result()
    asyncio.run(found["task"]())
    found["start"]()
    found["start_builtin"]()
    return found["said"]


def rights(world):
    """Code left behind keeps the rights and identity of its subject."""
    from democrai_sandbox.guard import current_guard, is_guarded

    with open(world.inside("own.txt"), "w") as file:
        file.write("own")
    found = subject_of(
        world,
        """
def own(path): return open(path).read()
def guarded(): return is_guarded()
def who(): return current_guard()
def help(function): return function()
""",
        is_guarded=is_guarded,
        current_guard=current_guard,
    )
    seen = found["who"]()
    return {
        "own": found["own"](world.inside("own.txt")),
        "guarded": found["guarded"](),
        "subject": seen.subject,
        "host": open(world.secret).read(),
        "host guarded": is_guarded(),
        "host function called by it": world.verdict(found["help"], lambda: open(world.secret).read()),
    }


def processes(world):
    """Try programs, the environment, sockets and imports, besides files."""
    found = subject_of(
        world,
        """
import os, subprocess, socket
def run(): return subprocess.run(["true"])
def system(): return os.system("true")
def connect(): return socket.create_connection(("127.0.0.1", 9), 1)
def native(): import ctypes; return ctypes.CDLL(None)
def stat(): return os.stat(SECRET)
def walk(): return os.listdir(os.path.dirname(SECRET))
def hook(): import sys; sys.settrace(lambda *_: None)
def escape(): return bypass().__enter__()
""",
        bypass=__import__("democrai_sandbox").process_guard_bypass_context,
    )
    names = ("run", "system", "connect", "native", "stat", "walk", "hook", "escape")
    return {name: world.verdict(found[name]) for name in names}


def behind_doors(world):
    """Replace functions of modules that the host uses while it works unguarded for the subject."""
    import textwrap

    from democrai_sandbox import configure_guard, process_guard_context
    from democrai_sandbox.guard import door

    said = {}

    def note(place):
        def use():
            said.setdefault(place, []).append(textwrap.dedent("x"))

        said.setdefault(place + " itself", []).append(open(world.secret).read())
        world.verdict(use)

    class Decider:
        def decide(self, question):
            note("decider")
            return False

    class Recorder:
        def record(self, denial):
            note("recorder")

    configure_guard(decider=Decider(), recorder=Recorder())
    ask = door(lambda view: note("door"))
    found = subject_of(
        world,
        """
import textwrap
seen = []
def dedent(text):
    try:
        seen.append(open(SECRET).read())
    except Exception as error:
        seen.append(type(error).__name__)
    return text
def act():
    textwrap.dedent = dedent
    ask()
    try: open(SECRET)
    except PermissionError: pass
""",
        ask=ask,
    )
    process_guard_context(subject="demo", allowed_paths=[world.root]).run(found["act"])
    return {"said": {place: sorted(set(texts)) for place, texts in said.items()}, "seen": sorted(set(found["seen"]))}


def legitimate_bypass(world):
    """Registered host code works unguarded as the host, although a subject has called it."""
    import asyncio

    from democrai_sandbox import configure_guard, process_guard_bypass_context, process_guard_context

    def plain():
        with process_guard_bypass_context():
            return deeper()

    def deeper():
        return open(world.secret).read()

    async def awaited():
        with process_guard_bypass_context():
            text = deeper()
        await asyncio.sleep(0)
        async with process_guard_bypass_context():
            return text + deeper()

    async def interrupted():
        with process_guard_bypass_context():
            await asyncio.sleep(0)
            return deeper()

    async def called_back(function):
        with process_guard_bypass_context():
            return world.verdict(function)

    configure_guard(runtime_code=[plain, awaited, interrupted, called_back])
    found = subject_of(
        world,
        """
def call(): return plain()
async def wait(): return await awaited()
async def wait_within(): return await interrupted()
def read(): return open(SECRET).read()
async def lend(): return await called_back(read)
""",
        plain=plain,
        awaited=awaited,
        interrupted=interrupted,
        called_back=called_back,
    )

    def guard():
        return process_guard_context(subject="demo", allowed_paths=[world.root])

    async def main():
        answers = [await guard().run(found["wait"]), await guard().run(found["lend"])]
        with guard():
            return [*answers, await found["wait_within"]()]

    return [guard().run(found["call"]), *asyncio.run(main())]


def stolen_context(world):
    """A host task that a door started carries the host's rights; its context is useless to the subject."""
    import asyncio

    from democrai_sandbox import process_guard_context
    from democrai_sandbox.guard import door

    held = {}

    async def work():
        held["context"] = __import__("contextvars").copy_context()
        await asyncio.sleep(0.01)
        return open(world.secret).read()

    ask = door(lambda view: asyncio.ensure_future(work()))
    found = subject_of(
        world,
        """
async def act():
    future = ask()
    import asyncio
    await asyncio.sleep(0)
    try:
        stolen = held["context"].run(open, SECRET).read()
    except Exception as error:
        stolen = type(error).__name__
    return [stolen, await future]
""",
        ask=ask,
        held=held,
    )

    async def main():
        return await process_guard_context(subject="demo", allowed_paths=[world.root]).run(found["act"])

    return asyncio.run(main())


def libraries(world):
    """A library that the subject imported first serves the host as if the host had imported it."""
    found = subject_of(
        world,
        """
import netrc, helpful
def use(path): return helpful.Reader(path).text
""",
    )
    import netrc

    import helpful

    with open(world.out("netrc"), "w") as file:
        file.write("machine a login b password c\n")
    return {
        "cached": sorted(netrc.netrc(world.out("netrc")).hosts),
        "compiled": helpful.read(world.secret),
        "generated": world.verdict(lambda: helpful.Reader(world.secret).text),
        "named tuple": helpful.Pair(helpful.Lazy(world.secret), 1)[0].text(),
        "subject": world.verdict(found["use"], world.secret),
    }


def planted_library(world):
    """A file that the subject puts in the way of a library's import stays the subject's."""
    import os

    os.mkdir(world.inside("place"))
    with open(world.inside("place", "optional.py"), "w") as file:
        file.write("def read(path): return open(path).read()\n")
    subject_of(
        world,
        """
import sys
sys.path.insert(0, place)
import wanting
""",
        place=world.inside("place"),
    )
    import wanting

    return world.verdict(wanting.optional.read, world.secret)


def other_guards(world):
    """In the guard of another subject its code has the rights of both; through its entrance, the declared ones."""
    from democrai_sandbox import network_policy_context, process_guard_context
    from democrai_sandbox.guard import entrance

    found = subject_of(world, "def read(): return open(SECRET).read()")
    wide = process_guard_context(subject="other", allowed_paths=[world.outside])
    enter = entrance(found["read"], whose=found["read"], subject="tool", allowed_paths=[world.outside])
    return {
        "guard": world.verdict(wide.run, found["read"]),
        "own code": world.verdict(wide.run, lambda: open(world.secret).read()),
        "entrance": world.verdict(enter),
        "network only": world.verdict(network_policy_context(subject="net").run, found["read"]),
        "host, network only": world.verdict(
            network_policy_context(subject="net").run, lambda: open(world.secret).read()
        ),
    }


def no_frames(world):
    """Objects made of builtin functions alone have no frame by which their subject is known."""
    found = subject_of(
        world, "import functools\npartial = functools.partial(open, SECRET)\nlazy = map(open, [SECRET])\n"
    )
    return [found["partial"]().read(), next(found["lazy"]).read()]


def unloading(world):
    """Unloaded code keeps no policy; a thousand loads leave nothing behind."""
    import gc
    import resource

    from democrai_sandbox.guard import _core, live_states

    source = "def read(): return open(SECRET).read()\nclass A:\n    def b(self): return lambda: 1\n" * 5
    counts = [_core.residents()]
    found = subject_of(world, source)
    counts.append(_core.residents())
    found.clear()
    gc.collect()
    counts.append(_core.residents())
    for _ in range(100):
        subject_of(world, source).clear()
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        subject_of(world, source).clear()
    gc.collect()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"counts": [*counts, _core.residents()], "states": live_states(), "grown": grown}


def misuse(world):
    """Only the code of a module is accepted, and without a guard it has no owner."""
    from democrai_sandbox.guard import _core, own_code

    code = compile("def read(path): return open(path).read()", "x", "exec")
    own_code(code)
    space = {}
    exec(code, space)
    return [world.verdict(own_code, "text"), world.verdict(space["read"], world.secret), _core.residents()]


def restricting_the_host(world):
    """Try to have host code marked as the subject's, or run it, to restrict the host."""
    found = subject_of(
        world,
        """
import sys, types
from democrai_sandbox.guard import own_code
said = []
def attempt(code):
    try: own_code(code)
    except TypeError: said.append("refused")
attempt(read.__code__)
frame = sys._getframe()
while frame is not None:
    if frame.f_code.co_name == "<module>": attempt(frame.f_code)
    frame = frame.f_back
types.FunctionType(read.__code__, {"open": open})
try: exec(read.__code__)
except Exception: pass
""",
        read=read,
    )
    return [sorted(set(found["said"])), len(found["said"]) >= 2, world.verdict(read, world.secret)]


# ---- tests -------------------------------------------------------------------------------------------------------


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_file_of_a_library_in_code_of_a_subject(case: Case) -> None:
    """Code that a subject compiles under a library's file name has the rights of the subject, not of a library."""
    assert case.run(forged) == [["SubprocessDenied", "TamperDenied"], True]


def test_code_of_a_subject_is_known_however_it_was_made_and_is_called(case: Case) -> None:
    assert {name: seen for name, seen in case.run(every_kind).items() if seen != DENIED} == {}


def test_what_runs_when_the_host_ends_something_runs_as_the_subject(case: Case) -> None:
    assert case.run(finalised) == [DENIED] * 5


def test_threads_pools_and_loops_of_the_host_know_it_too(case: Case) -> None:
    assert case.run(elsewhere) == [DENIED] * 5


def test_it_keeps_its_own_rights_and_the_host_keeps_all(case: Case) -> None:
    seen = case.run(rights)
    assert seen == {
        "subject": "demo",
        "own": "own",
        "guarded": True,
        "host": "SECRET",
        "host guarded": False,
        "host function called by it": DENIED,
    }


def test_processes_sockets_imports_and_tampering_are_denied_as_in_a_guard(case: Case) -> None:
    seen = case.run(processes)
    assert {name: verdict for name, verdict in seen.items() if not verdict.endswith("Denied")} == {}


def test_a_replaced_function_is_the_subjects_where_the_host_works_outside_the_guard(case: Case) -> None:
    seen = case.run(behind_doors)
    own = {f"{place} itself": ["SECRET"] for place in ("decider", "recorder", "door")}
    assert seen == {"said": {"decider": ["x"], "recorder": ["x"], "door": ["x"], **own}, "seen": [DENIED]}


def test_registered_code_of_the_host_is_not_taken_for_its_caller(case: Case) -> None:
    assert case.run(legitimate_bypass) == ["SECRET", "SECRETSECRET", DENIED, "SECRET"]


def test_a_context_that_carries_the_hosts_freedom_frees_no_code_of_the_subject(case: Case) -> None:
    assert case.run(stolen_context) == [DENIED, "SECRET"]


def write_libraries(folder: Path) -> str:
    folder.mkdir()
    (folder / "helpful.py").write_text(
        "import collections, dataclasses\n"
        "def read(path): return open(path).read()\n"
        "@dataclasses.dataclass\n"
        "class Reader:\n"
        "    path: str\n"
        "    def __post_init__(self): self.text = read(self.path)\n"
        "Pair = collections.namedtuple('Pair', 'left right')\n"
        "class Lazy:\n"
        "    def __init__(self, path): self.text = lambda: open(path).read()\n"
    )
    (folder / "wanting.py").write_text("import optional\n")
    return f"{PACKAGE}:{folder}"


def test_a_library_that_a_subject_imports_first_is_not_the_subjects(case: Case) -> None:
    """Functions that are compiled from text at import are an exception, because the subject can choose that text."""
    path = write_libraries(case.base / "library")
    seen = case.run(libraries, PYTHONPATH=path)
    assert (seen.pop("subject"), seen.pop("generated")) == (DENIED, DENIED)
    assert seen == {"cached": ["a"], "compiled": "SECRET", "named tuple": "SECRET"}


def test_a_file_of_the_subjects_is_the_subjects_though_a_library_imports_it(case: Case) -> None:
    assert case.run(planted_library, PYTHONPATH=write_libraries(case.base / "library")) == DENIED


def test_under_the_guard_of_another_code_may_do_what_both_may(case: Case) -> None:
    assert case.run(other_guards) == {
        "guard": DENIED,
        "own code": "ok",
        "entrance": "ok",
        "network only": DENIED,
        "host, network only": "ok",
    }


def test_objects_of_builtin_functions_alone_are_not_known(case: Case) -> None:
    """A residual, as SECURITY.md says; runtimes accept only plain data from subjects."""
    assert case.run(no_frames) == ["SECRET", "SECRET"]


def test_code_that_is_gone_leaves_nothing_behind(case: Case) -> None:
    seen = case.run(unloading)
    assert seen["counts"] == [0, 1, 0, 0]
    assert seen["states"] == 0
    assert seen["grown"] < 2048


def test_code_is_marked_only_inside_a_guard(case: Case) -> None:
    refused, *rest = case.run(misuse)
    assert refused.startswith("TypeError:") and rest == ["ok", 0]
    sentence("code that is marked outside a guard", refused)


def test_a_subject_cannot_have_the_hosts_code_marked(case: Case) -> None:
    assert case.run(restricting_the_host) == [["refused"], True, "ok"]
