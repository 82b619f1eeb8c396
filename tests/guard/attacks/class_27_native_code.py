"""Class 27, native code: ctypes, cffi and extension modules, through every door that leads to them."""

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
    import numpy

    return call_getpid(numpy.ctypeslib.ctypes)


def in_thread(ground: Ground) -> None:
    import threading

    thread = threading.Thread(target=lambda: ground.attempt(lambda: plain_import(ground)))
    thread.start()
    thread.join()


DOORS = {
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
attacks_of(DOORS, "native functions are reached: {}", expect=SANDBOX)
attacks_of({"by_numpy": by_numpy}, "native functions are reached through a library: {}", expect=SANDBOX, needs=("numpy",))


def load_ctypes(ground: Ground) -> None:
    import ctypes
    import ctypes.util
    import multiprocessing.sharedctypes

    ground.held.ctypes = ctypes
    del multiprocessing


ALREADY = ("import", "from_import", "c_part", "dunder_import", "import_module", "importlib_import", "gcd_import", "in_exec")
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
        "find_library": lambda ground: sys.modules["ctypes"].util.find_library("c") is not None,
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
        "in_map": lambda ground: next(map(lambda function: function(), [ground.held.getpid])) == os.getpid(),
        "c_caller": lambda ground: next(iter(ground.held.getpid, None)) == os.getpid(),
    },
    "a native function that the host made is called: {}",
    expect=SANDBOX,
    group="held_",
    prepare=hold_pointers,
)


def use_cffi(cffi) -> bool:
    ffi = cffi.FFI()
    ffi.cdef("int getpid(void);")
    return ffi.dlopen(None).getpid() == os.getpid()


def import_cffi(ground: Ground) -> bool:
    import cffi

    return use_cffi(cffi)


def import_backend(ground: Ground) -> bool:
    import _cffi_backend

    return "getpid" in str(_cffi_backend.load_library(None, 0)) or True


attacks_of(
    {"import": import_cffi, "backend": import_backend},
    "cffi is imported: {}",
    expect=MODULE,
    group="cffi_",
    needs=("cffi",),
)


def load_cffi(ground: Ground) -> None:
    import cffi

    ffi = cffi.FFI()
    ffi.cdef("int getpid(void); int open(const char *, int);")
    ground.held.ffi, ground.held.lib = ffi, ffi.dlopen(None)
    ground.held.getpid = ground.held.lib.getpid


attacks_of(
    {
        "loaded_import": import_cffi,
        "loaded_backend": import_backend,
        "sys_modules": lambda ground: use_cffi(sys.modules["cffi"]),
        "load_library": lambda ground: sys.modules["_cffi_backend"].load_library(None, 0) is not None,
        "held_function": lambda ground: ground.held.getpid() == os.getpid(),
        "held_library": lambda ground: os.read(ground.held.lib.open(ground.outside.encode(), 0), 99),
        "held_cast": lambda ground: ground.held.ffi.cast("char *", id(ground))[0] is not None,
        "held_dlopen": lambda ground: ground.held.ffi.dlopen(None).getpid() == os.getpid(),
    },
    "cffi, which the host loaded before, is used: {}",
    expect=SANDBOX,
    group="cffi_",
    prepare=load_cffi,
    needs=("cffi",),
)


def find_extension() -> str:
    """Any extension module of the interpreter that is not loaded yet."""
    import sysconfig

    folder = sysconfig.get_config_var("DESTSHARED")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for name in ("_statistics", "_crypt", "_xxtestfuzz", "_lsprof", "_queue", "_zoneinfo", "audioop"):
        if name not in sys.modules and os.path.exists(f"{folder}/{name}{suffix}"):
            return f"{folder}/{name}{suffix}"
    raise LookupError("no extension module to copy")


def copied_extension(folder: str) -> tuple[str, str]:
    import shutil

    source = find_extension()
    target = f"{folder}/{os.path.basename(source)}"
    shutil.copyfile(source, target)
    return os.path.basename(source).partition(".")[0], target


def load_extension(name: str, path: str) -> bool:
    from importlib.machinery import ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, path))
    return module_from_spec(spec) is not None


def create_dynamic(name: str, path: str) -> bool:
    import _imp
    from importlib.util import spec_from_file_location

    return _imp.create_dynamic(spec_from_file_location(name, path)) is not None


def create_dynamic_by_forged_spec(name: str, path: str) -> bool:
    """A spec whose origin changes while it is read."""
    import _imp

    class Origin(str):
        __slots__ = ()

    class Spec:
        loader = None
        calls = 0

        def __init__(self) -> None:
            self.name = name

        @property
        def origin(self) -> str:
            self.calls += 1
            return find_extension() if self.calls == 1 and path.startswith("!") else Origin(path.strip("!"))

    return _imp.create_dynamic(Spec()) is not None


def import_from_root(name: str, path: str) -> bool:
    sys.path.insert(0, os.path.dirname(path))
    module = __import__(name)
    return module.__file__ == path


LOADERS = {
    "loader": load_extension,
    "create_dynamic": create_dynamic,
    "forged_spec": create_dynamic_by_forged_spec,
    "import": import_from_root,
}
attacks_of(
    {
        name: lambda ground, load=load: load(*copied_extension(ground.inside))
        for name, load in LOADERS.items()
    },
    "an extension module that the subject copied into its root is loaded: {}",
    expect=SANDBOX,
    group="extension_",
)
attacks_of(
    {
        "temp": lambda ground: load_extension(*copied_extension(os.environ["TMPDIR"])),
        "library_path_link": lambda ground: load_extension(
            copied_extension(ground.inside)[0], f"{ground.site}/../inside/{os.path.basename(find_extension())}"
        ),
        "memory_file": lambda ground: load_from_memory(),
        "outside": lambda ground: load_extension(*ground.held.extension),
    },
    "an extension module is loaded from a place that is no code root: {}",
    expect=SANDBOX,
    group="extension_",
    prepare=lambda ground: setattr(ground.held, "extension", copied_extension(ground.outside_dir)),
)


def load_from_memory() -> bool:
    source = find_extension()
    descriptor = os.memfd_create("extension")
    with open(source, "rb") as file:
        os.write(descriptor, file.read())
    return load_extension(os.path.basename(source).partition(".")[0], f"/proc/self/fd/{descriptor}")


@attack(
    "an extension module is loaded from a code root that the subject may write",
    expect=SANDBOX,
    policy=lambda ground: {"allowed_paths": [ground.site]},
)
def extension_in_writable_code_root(ground: Ground) -> bool:
    return load_extension(*copied_extension(ground.site))


@attack("a link in the root that the host made leads to a code root, and the module is swapped", expect=SANDBOX,
        prepare=lambda ground: os.symlink(ground.site, f"{ground.inside}/code"),
        policy=lambda ground: {"allowed_paths": [ground.inside, f"{ground.inside}/code"]})  # fmt: skip
def extension_through_link(ground: Ground) -> bool:
    return load_extension(*copied_extension(f"{ground.inside}/code"))


@attack("a copy of the ctypes package under another name is imported", expect=SANDBOX)
def copied_package(ground: Ground) -> bool:
    import shutil
    import sysconfig

    shutil.copytree(f"{sysconfig.get_path('stdlib')}/ctypes", f"{ground.inside}/harmless")
    sys.path.insert(0, ground.inside)
    import harmless

    return call_getpid(harmless)


@attack("the test module of the interpreter runs code in another interpreter", expect=SANDBOX, needs=("_testcapi",))
def test_module(ground: Ground) -> object:
    import _testcapi

    _testcapi.run_in_subinterp(f"open('{ground.inside}/loot.txt', 'w').write(open({ground.outside!r}).read())")
    return open(f"{ground.inside}/loot.txt").read()
