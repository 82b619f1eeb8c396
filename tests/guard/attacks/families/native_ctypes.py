"""Native code through ctypes, by every way that leads to it."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import MODULE, SANDBOX, Denied, Ground, attack, attacks_of

NATIVE = Denied(("sandbox_module_denied:", "sandbox_filesystem_denied:"))


def call_getpid(ctypes) -> bool:
    return ctypes.CDLL(None).getpid() == os.getpid()


def low_level(_ctypes) -> bool:
    handle = _ctypes.dlopen(None, 0)
    return _ctypes.call_function(_ctypes.dlsym(handle, "getpid"), ()) == os.getpid()


def plain_import(ground: Ground) -> bool:
    import ctypes

    return call_getpid(ctypes)


def from_import(ground: Ground) -> bool:
    from ctypes import CDLL

    return CDLL(None).getpid() == os.getpid()


def submodule(ground: Ground) -> bool:
    import ctypes.util

    return call_getpid(ctypes)


def import_c_part(ground: Ground) -> bool:
    import _ctypes

    return low_level(_ctypes)


def import_module(ground: Ground, name: str = "ctypes") -> bool:
    import importlib

    module = importlib.import_module(name)
    return low_level(module) if name == "_ctypes" else call_getpid(module)


def gcd_import(ground: Ground) -> bool:
    import importlib._bootstrap

    return call_getpid(importlib._bootstrap._gcd_import("ctypes"))


def frozen_import(ground: Ground) -> bool:
    return call_getpid(sys.modules["_frozen_importlib"].__import__("ctypes"))


def by_spec(ground: Ground) -> bool:
    from importlib.util import find_spec, module_from_spec

    spec = find_spec("_ctypes")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return low_level(module)


def by_path_finder(ground: Ground) -> bool:
    from importlib.machinery import PathFinder

    return low_level(PathFinder.find_spec("_ctypes").loader.load_module("_ctypes"))


def by_loader(ground: Ground, name: str = "_ctypes") -> bool:
    from importlib.machinery import ExtensionFileLoader, PathFinder
    from importlib.util import module_from_spec, spec_from_file_location

    path = PathFinder.find_spec("_ctypes").origin
    spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, path))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return low_level(module)


def by_create_dynamic(ground: Ground) -> bool:
    import _imp
    from importlib.machinery import PathFinder

    module = _imp.create_dynamic(PathFinder.find_spec("_ctypes"))
    _imp.exec_dynamic(module)
    return low_level(module)


def by_pickle(ground: Ground) -> bool:
    import pickle

    return pickle.loads(b"cctypes\nCDLL\n(NtR.").getpid() == os.getpid()


def by_python_pickle(ground: Ground) -> bool:
    import io
    import pickle

    return pickle._Unpickler(io.BytesIO(b"cctypes\nCDLL\n(NtR.")).load().getpid() == os.getpid()


def by_pydoc(ground: Ground) -> bool:
    import pydoc

    return pydoc.locate("ctypes.CDLL")(None).getpid() == os.getpid()


def by_resolve_name(ground: Ground) -> bool:
    import pkgutil

    return pkgutil.resolve_name("ctypes:CDLL")(None).getpid() == os.getpid()


def by_run_module(ground: Ground) -> bool:
    import runpy

    runpy.run_module("ctypes.util")
    return call_getpid(sys.modules["ctypes"])


def by_logging(ground: Ground) -> bool:
    import logging.config

    return logging.config.BaseConfigurator({}).resolve("ctypes.CDLL")(None).getpid() == os.getpid()


def as_library(ground: Ground) -> bool:
    """The importing code claims to be a file of the standard library."""
    space: dict[str, object] = {"__name__": "os", "__file__": os.__file__}
    exec(compile("import ctypes", os.__file__, "exec"), space)
    return call_getpid(space["ctypes"])


def as_library_by_replace(ground: Ground) -> bool:
    space: dict[str, object] = {"__name__": "os"}
    exec(compile("import ctypes", "<x>", "exec").replace(co_filename=os.__file__), space)
    return call_getpid(space["ctypes"])


def by_library(ground: Ground) -> bool:
    import multiprocessing.sharedctypes

    return call_getpid(multiprocessing.sharedctypes.ctypes)


def by_numpy(ground: Ground) -> bool:
    import numpy as np

    return call_getpid(np.ctypeslib.ctypes)


def in_thread(ground: Ground) -> None:
    import threading

    thread = threading.Thread(target=lambda: ground.attempt(lambda: plain_import(ground)))
    thread.start()
    thread.join()


class Name(str):
    """A module name that no set contains."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash("harmless")

    def __eq__(self, other: object) -> bool:
        return False


DOORS = {
    "forged_name_import_module": lambda ground: call_getpid(__import__("importlib").import_module(Name("ctypes"))),
    "import": plain_import,
    "from_import": from_import,
    "submodule": submodule,
    "c_part": import_c_part,
    "dunder_import": lambda ground: call_getpid(__import__("ctypes")),
    "import_module": import_module,
    "import_module_c_part": lambda ground: import_module(ground, "_ctypes"),
    "importlib_import": lambda ground: call_getpid(__import__("importlib").__import__("ctypes")),
    "gcd_import": gcd_import,
    "frozen_import": frozen_import,
    "by_spec": by_spec,
    "by_path_finder": by_path_finder,
    "by_loader": by_loader,
    "by_loader_other_name": lambda ground: by_loader(ground, "harmless._ctypes"),
    "by_create_dynamic": by_create_dynamic,
    "by_pickle": by_pickle,
    "by_python_pickle": by_python_pickle,
    "by_pydoc": by_pydoc,
    "by_resolve_name": by_resolve_name,
    "by_run_module": by_run_module,
    "by_logging": by_logging,
    "as_library": as_library,
    "as_library_by_replace": as_library_by_replace,
    "by_library": by_library,
    "in_thread": in_thread,
    "in_exec": lambda ground: call_getpid(exec("import ctypes", space := {}) or space["ctypes"]),
    "in_class_body": lambda ground: call_getpid(type("X", (), {"c": __import__("ctypes")}).c),
}
attack("a forged name loads the C part of ctypes", expect=SANDBOX, name="forged_name_c_part", until=(3, 12))(
    lambda ground: low_level(__import__(Name("_ctypes")))
)
attacks_of(DOORS, "native functions are reached: {}", expect=SANDBOX)
attacks_of(
    {"by_numpy": by_numpy}, "native functions are reached through a library: {}", expect=SANDBOX, needs=("numpy",)
)


def load_ctypes(ground: Ground) -> None:
    import ctypes
    import ctypes.util
    import multiprocessing.sharedctypes

    ground.held.ctypes = ctypes
    del multiprocessing


ALREADY = (
    "import",
    "from_import",
    "c_part",
    "dunder_import",
    "import_module",
    "importlib_import",
    "gcd_import",
    "in_exec",
)
attacks_of(
    {name: DOORS[name] for name in ALREADY},
    "native functions are reached when the host loaded ctypes before: {}",
    expect=MODULE,
    group="loaded_",
    prepare=load_ctypes,
)
attacks_of(
    {
        "sys_modules": lambda ground: call_getpid(sys.modules["ctypes"]),
        "c_part": lambda ground: low_level(sys.modules["_ctypes"]),
        "pythonapi": lambda ground: sys.modules["ctypes"].pythonapi.Py_IsInitialized() == 1,
        "by_library": by_library,
        "by_gc": lambda ground: next(
            call_getpid(thing)
            for thing in __import__("gc").get_objects()
            if type(thing) is type(sys) and thing.__name__ == "ctypes"
        ),
        "string_at": lambda ground: b"marker" in sys.modules["ctypes"].string_at(id(b"marker-text"), 60),
        "cast": lambda ground: sys.modules["ctypes"].cast(id(ground), sys.modules["ctypes"].py_object).value is ground,
        "memmove": lambda ground: sys.modules["ctypes"].memmove(id(b"x" * 99) + 40, b"y", 1) > 0,
        "from_address": lambda ground: sys.modules["ctypes"].c_ssize_t.from_address(id(ground)).value > 0,
        "char_pointer": lambda ground: len(sys.modules["ctypes"].c_char_p(id(ground)).value) >= 0,
        "callback": lambda ground: sys.modules["ctypes"].CFUNCTYPE(sys.modules["ctypes"].c_int)(lambda: 7)() == 7,
    },
    "ctypes, which the host loaded before, is used: {}",
    expect=SANDBOX,
    group="use_",
    prepare=load_ctypes,
)


def punning(ground: Ground) -> bool:
    """A number becomes a pointer inside a union: memory is read without a single call."""
    ctypes = sys.modules["ctypes"]

    class Both(ctypes.Union):
        _fields_ = (("number", ctypes.c_size_t), ("pointer", ctypes.POINTER(ctypes.c_char)))

    text = b"marker-text"
    both = Both()
    both.number = id(text)
    return b"marker" in both.pointer[:60]


attack("memory is read through a union, without a call", expect=SANDBOX, prepare=load_ctypes)(punning)


def hold_structures(ground: Ground) -> None:
    """Objects that a package of the host has made, with room for an address in them."""
    import ctypes

    class Record(ctypes.Structure):
        _fields_ = (("text", ctypes.c_char_p), ("thing", ctypes.py_object))

    ground.held.record, ground.held.texts = Record(), (ctypes.c_char_p * 2)()
    ground.held.things, ground.held.value = (ctypes.py_object * 2)(), ctypes.c_char_p()
    ground.held.secret = b"marker-text"


def set_address(ground: Ground, name: str, address: int) -> object:
    """The object, with an address put into its memory."""
    found = getattr(ground.held, name)
    memoryview(found).cast("B")[:8] = address.to_bytes(8, sys.byteorder)
    return found


def text_address(ground: Ground) -> int:
    return id(ground.held.secret) + bytes.__basicsize__ - 1


def with_other_code(ground: Ground) -> bool:
    """The type of a field is told to be another one, so that it looks harmless."""
    type(ground.held.value)._type_ = "i"
    return set_address(ground, "record", text_address(ground)).text == b"marker-text"


def set_field(ground: Ground) -> bool:
    ground.held.record.text = text_address(ground)
    return ground.held.record.text == b"marker-text"


attacks_of(
    {
        "field": lambda ground: set_address(ground, "record", text_address(ground)).text == b"marker-text",
        "set_field": set_field,
        "other_code": with_other_code,
        "item": lambda ground: set_address(ground, "texts", text_address(ground))[0] == b"marker-text",
        "slice": lambda ground: set_address(ground, "texts", text_address(ground))[:1] == [b"marker-text"],
        "iteration": lambda ground: next(iter(set_address(ground, "texts", text_address(ground)))) == b"marker-text",
        "value": lambda ground: set_address(ground, "value", text_address(ground)).value == b"marker-text",
        "object_item": lambda ground: set_address(ground, "things", id(ground))[0] is ground,
    },
    "memory is read through an object that a package has made: {}",
    expect=SANDBOX,
    group="made_",
    prepare=hold_structures,
)


def hold_pointers(ground: Ground) -> None:
    import ctypes

    library = ctypes.CDLL(None)
    ground.held.getpid, ground.held.memmove = library.getpid, ctypes.memmove
    ground.held.library, ground.held.prototype = library, ctypes.CFUNCTYPE(ctypes.c_int)
    ground.held.address = ctypes.cast(library.getpid, ctypes.c_void_p).value
    ground.held.open = library.open
    ground.held.call = type(library.getpid).__call__
    ground.held.string_at = ctypes.string_at


def open_in_c(ground: Ground) -> object:
    return os.read(ground.held.open(ground.outside.encode(), 0), 99)


attacks_of(
    {
        "function": lambda ground: ground.held.getpid() == os.getpid(),
        "open": open_in_c,
        "memmove": lambda ground: ground.held.memmove(id(b"x" * 99) + 40, b"y", 1) > 0,
        "library": lambda ground: ground.held.library.getppid() == os.getppid(),
        "library_item": lambda ground: ground.held.library["getppid"]() == os.getppid(),
        "prototype": lambda ground: ground.held.prototype(ground.held.address)() == os.getpid(),
        "slot_wrapper": lambda ground: ground.held.call(ground.held.getpid) == os.getpid(),
        "string_at": lambda ground: b"marker" in ground.held.string_at(id(b"marker-text"), 60),
        "in_map": lambda ground: next(map(__import__("operator").call, [ground.held.getpid])) == os.getpid(),
        "c_caller": lambda ground: next(iter(ground.held.getpid, None)) == os.getpid(),
    },
    "a native function that the host made is called: {}",
    expect=SANDBOX,
    group="held_",
    prepare=hold_pointers,
)


def vectorized(function: object, *given: object) -> object:
    import numpy as np

    one = np.empty(1, dtype=object)
    one[0] = given[0]
    return np.vectorize(function, otypes=[object])(one, *given[1:])[0]


def by_numpy_loader(ground: Ground) -> bool:
    import numpy as np

    return np.ctypeslib.load_library(np._core._multiarray_umath.__file__, "/").getpid() == os.getpid()


def called_in_thread(ground: Ground) -> object:
    import threading

    found: list[object] = []
    thread = threading.Thread(target=lambda: ground.attempt(lambda: found.append(ground.held.getpid())))
    thread.start()
    thread.join()
    return bool(found) or None


def as_thread(ground: Ground) -> object:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ground.held.getpid).result() == os.getpid()


def planted_for_import(ground: Ground) -> object:
    import random

    sys.modules.pop("secrets", None)
    original, random.SystemRandom = random.SystemRandom, ground.held.getpid
    try:
        import secrets
    except AttributeError as error:  # of the number that the function gave
        return "getrandbits" in str(error)
    finally:
        random.SystemRandom = original
    return secrets is None


def planted_native_call(ground: Ground) -> object:
    import _ctypes
    import functools
    import random

    found: list[int] = []
    call = functools.partial(found.extend, map(_ctypes.call_function, [ground.held.address], [()]))
    sys.modules.pop("secrets", None)
    original, random.SystemRandom = random.SystemRandom, call
    try:
        import secrets
    except AttributeError:
        return found == [os.getpid()]
    finally:
        random.SystemRandom = original
    return secrets is None


attacks_of(
    {
        "vectorize_open": lambda ground: os.read(vectorized(ground.held.open, ground.outside.encode(), 0), 99),
        "vectorize_memory": lambda ground: b"marker" in vectorized(ground.held.string_at, id(b"marker-text" * 9), 60),
        "vectorize_write": lambda ground: vectorized(ground.held.memmove, id(b"x" * 99) + 40, b"y", 1) > 0,
        "partial": lambda ground: __import__("functools").partial(ground.held.getpid)() == os.getpid(),
        "sorted": lambda ground: bool(sorted([b"a"], key=ground.held.getpid)),
        "thread": called_in_thread,
        "pool": as_thread,
        "while_a_library_is_imported": planted_for_import,
        "native_call_in_an_import": planted_native_call,
    },
    "a library calls a native function for the subject: {}",
    expect=SANDBOX,
    group="by_library_",
    prepare=hold_pointers,
    needs=("numpy",),
)
attacks_of(
    {"loader": by_numpy_loader},
    "a library loads a native library for the subject: {}",
    expect=SANDBOX,
    group="by_numpy_",
    needs=("numpy",),
)


@attack("a copy of the ctypes package under another name is imported", expect=SANDBOX)
def copied_package(ground: Ground) -> bool:
    import shutil
    import sysconfig

    shutil.copytree(f"{sysconfig.get_path('stdlib')}/ctypes", f"{ground.inside}/harmless")
    sys.path.insert(0, ground.inside)
    import harmless

    return call_getpid(harmless)
