"""Native modules: copies, other names, and modules that are not for subjects."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import MODULE, SANDBOX, Ground, Works, attack, attacks_of

LOADED = ("socket", "sqlite3")
"""What the host has loaded since it installed the guard; see runner.py."""


def reimported(name: str):
    """Import a module once more, after its entry was removed."""
    from importlib import import_module

    sys.modules.pop(name, None)
    return import_module(name)


def created(name: str, alias: str = "", spec=None):
    """Load a native module past the import system, under another name if there is one."""
    import _imp
    from importlib.machinery import ModuleSpec
    from importlib.util import find_spec

    origin = find_spec(name).origin
    if origin == "built-in":
        module = _imp.create_builtin(spec or ModuleSpec(alias or name, None, origin=origin))
        _imp.exec_builtin(module)
    else:
        module = _imp.create_dynamic(spec or ModuleSpec(alias or name, None, origin=origin))
        _imp.exec_dynamic(module)
    return module


def renamed(name: str):
    """Load one under the name of another package."""
    return created(name, f"zz.{name}")


def renamed_halfway(name: str):
    """Change the name of the module before it is filled."""
    import _imp
    from importlib.machinery import ModuleSpec
    from importlib.util import find_spec

    origin = find_spec(name).origin
    is_built_in = origin == "built-in"
    spec = ModuleSpec(name if is_built_in else f"zz.{name}", None, origin=origin)
    module = (_imp.create_builtin if is_built_in else _imp.create_dynamic)(spec)
    module.__name__ = "harmless"
    (_imp.exec_builtin if is_built_in else _imp.exec_dynamic)(module)
    return module


COPIES = {
    "reimported": reimported,
    "created": created,
    "renamed": renamed,
    "renamed_halfway": renamed_halfway,
}


def prepare_database(ground: Ground) -> None:
    import sqlite3

    ground.held.database = f"{ground.outside_dir}/host.db"
    connection = sqlite3.connect(ground.held.database)
    connection.execute("create table secrets (word)")
    connection.execute("insert into secrets values (?)", [ground.SECRET])
    connection.commit()
    connection.close()


def read_database(sqlite, ground: Ground) -> object:
    return sqlite.connect(ground.held.database).execute("select word from secrets").fetchone()[0]


def attach_database(sqlite, ground: Ground) -> object:
    connection = sqlite.connect(f"{ground.inside}/own.db")
    connection.execute("attach ? as other", [ground.held.database])
    return connection.execute("select word from other.secrets").fetchone()[0]


attacks_of(
    {
        f"{act.__name__}_{name}": lambda ground, make=make, act=act: act(make("_sqlite3"), ground)
        for name, make in COPIES.items()
        for act in (read_database, attach_database)
    },
    "a further copy of _sqlite3 is used: {}",
    expect=SANDBOX,
    needs=("_sqlite3",),
    prepare=prepare_database,
)


def prepare_sockets(ground: Ground) -> None:
    import socket

    ours, ground.held.theirs = socket.socketpair()
    ground.held.ours = ours
    ground.held.theirs.sendall(ground.SECRET.encode())


attacks_of(
    {
        f"socket_{name}": lambda ground, make=make: make("_socket").socket(fileno=ground.held.ours.fileno()).recv(99)
        for name, make in COPIES.items()
    },
    "a further copy of _socket takes over the host's descriptor: {}",
    expect=SANDBOX,
    needs=("_socket",),
    prepare=prepare_sockets,
)

attacks_of(
    {
        f"file_{name}": lambda ground, make=make: make("_io").FileIO(ground.outside).read()
        for name, make in COPIES.items()
        if name != "renamed"
    },
    "a further copy of _io opens a file: {}",
    expect=SANDBOX,
)


def prepare_shared_memory(ground: Ground) -> None:
    ground.held.name = f"/attack-{os.getpid()}"
    ground.write(f"/dev/shm{ground.held.name}", ground.SECRET)


def remove_shared_memory(ground: Ground) -> None:
    if os.path.exists(f"/dev/shm{ground.held.name}"):
        os.remove(f"/dev/shm{ground.held.name}")


attacks_of(
    {
        f"shared_memory_{name}": lambda ground, make=make: os.pread(
            make("_posixshmem").shm_open(ground.held.name, os.O_RDONLY), 99, 0
        )
        for name, make in COPIES.items()
    },
    "a copy of _posixshmem opens the host's memory: {}",
    expect=SANDBOX,
    needs=("_posixshmem",),
    prepare=prepare_shared_memory,
    after=remove_shared_memory,
)


def read_memory(ctypes, ground: Ground) -> bytes:
    """Read a text of the host where it lies."""

    class Character(ctypes._SimpleCData):
        _type_ = "c"

    class Text(ctypes.Array):
        _type_, _length_ = Character, len(ground.SECRET)

    return Text.from_address(id(ground.held.text) + bytes.__basicsize__ - 1).raw


def call_pointer(ctypes, ground: Ground) -> bool:
    return ctypes.call_function(ctypes.dlsym(ctypes.dlopen(None, 0), "getpid"), ()) == os.getpid()


attacks_of(
    {
        f"{act.__name__}_{name}": lambda ground, make=make, act=act: act(make("_ctypes"), ground)
        for name, make in COPIES.items()
        for act in (read_memory, call_pointer)
    },
    "a copy of _ctypes is used: {}",
    expect=MODULE,
    needs=("_ctypes",),
    prepare=lambda ground: setattr(ground.held, "text", ground.SECRET.encode()),
)


# ---- modules that are not for subjects ------------------------------------------------------------------------------


def frame_variables(testing, ground: Ground) -> object:
    """The variables of the host's function, through its frame."""
    frame = sys._getframe()
    while frame is not None:
        for value in testing.frame_getlocals(frame).values():
            if isinstance(value, bytes) and ground.SECRET.encode() in value:
                return value
        frame = testing.frame_getback(frame) if hasattr(testing, "frame_getback") else frame.f_back
    return testing.frame_getlocals(sys._getframe()) is not None


attacks_of(
    {
        f"test_module_{name}": lambda ground, make=make: frame_variables(make("_testcapi"), ground)
        for name, make in COPIES.items()
    },
    "a module for tests of the interpreter is loaded: {}",
    expect=MODULE,
    needs=("_testcapi",),
)


def is_loaded(name: str):
    def act(ground: Ground) -> bool:
        return reimported(name) is not None

    return act


for unlisted in (
    *("_testinternalcapi", "_testbuffer", "_testmultiphase", "_testsinglephase", "_testlimitedcapi", "_testclinic"),
    *("_xxsubinterpreters", "_interpreters", "_interpchannels", "_interpqueues", "_xxinterpchannels"),
    *("_xxtestfuzz", "_ctypes_test", "xxlimited", "nis", "ossaudiodev"),
):
    attack(f"{unlisted} is imported", expect=MODULE, needs=(unlisted,), name=f"unlisted_{unlisted}")(
        is_loaded(unlisted)
    )


def other_module_of_a_file(ground: Ground) -> bool:
    """One file has several modules in it, each under its own name."""
    import _imp
    from importlib.machinery import ModuleSpec
    from importlib.util import find_spec

    origin = find_spec("_testmultiphase").origin
    return _imp.create_dynamic(ModuleSpec("_testmultiphase_nonmodule", None, origin=origin)) is not None


attack("another module of a file for tests is loaded", expect=SANDBOX, needs=("_testmultiphase",))(
    other_module_of_a_file
)


class Turning:
    """A spec that answers differently each time."""

    loader = submodule_search_locations = None

    def __init__(self, names: list[str], origins: list[str]) -> None:
        self._names, self._origins = names, origins

    @property
    def name(self) -> str:
        return self._names.pop(0) if len(self._names) > 1 else self._names[0]

    @property
    def origin(self) -> str:
        return self._origins.pop(0) if len(self._origins) > 1 else self._origins[0]


class Sly(str):
    """A name that is equal to another one."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("math")

    def rpartition(self, separator: str) -> tuple[str, str, str]:
        return "", "", "math"


def by_turning_spec(ground: Ground, turns: int) -> bool:
    from importlib.util import find_spec

    origins = [find_spec("math").origin] * turns + [find_spec("_testcapi").origin]
    names = ["math"] * turns + ["_testcapi"]
    return hasattr(created("_testcapi", spec=Turning(names, origins)), "frame_getlocals")


def by_sly_name(ground: Ground) -> bool:
    return hasattr(created("_testcapi", Sly("_testcapi")), "frame_getlocals")


attacks_of(
    {
        **{f"turning_{turns}": lambda ground, turns=turns: by_turning_spec(ground, turns) for turns in range(1, 5)},
        "sly_name": by_sly_name,
    },
    "a spec shows a harmless module and loads another one: {}",
    expect=SANDBOX.quietly.or_raises("ImportError", "TypeError"),
    unguarded="the interpreter itself reads the spec several times",
    needs=("_testcapi",),
)


# ---- honest work ----------------------------------------------------------------------------------------------------


@attack("a library that is loaded again works on", expect=Works(), needs=("_sqlite3", "_socket"))
def loaded_again(ground: Ground) -> bool:
    sqlite, network = reimported("_sqlite3"), reimported("_socket")
    connection = sqlite.connect(f"{ground.inside}/own.db")
    connection.execute("create table words (word)")
    one, other = network.socketpair()
    one.send(b"word")
    decoder = reimported("_json").scanstring('"word"', 1)[0]
    return connection.execute("select count(*) from words").fetchone() == (0,) and other.recv(9).decode() == decoder
