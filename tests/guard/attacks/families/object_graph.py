"""The object graph: functions reached from other objects are guarded as well."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import FILES, PROCESS, SANDBOX, Fruitless, Ground, attack, attacks_of


def subclasses_of(kind: type = object) -> list[type]:
    return kind.__subclasses__()


def by_subclasses(ground: Ground) -> object:
    pending = [object]
    for kind in pending:
        if kind.__name__ == "FileIO":
            return kind(ground.outside).read()
        pending += type.__subclasses__(kind)
    return None


def by_globals(ground: Ground) -> object:
    wrap = next(kind for kind in subclasses_of() if kind.__name__ == "_wrap_close")
    functions = wrap.__init__.__globals__
    return functions["read"](functions["open"](ground.outside, 0), 99)


def system_by_globals(ground: Ground) -> bool:
    wrap = next(kind for kind in subclasses_of() if kind.__name__ == "_wrap_close")
    return wrap.__init__.__globals__["system"]("exit 0") == 0


def popen_by_subclasses(ground: Ground) -> bool:
    import subprocess

    del subprocess
    popen = next(kind for kind in subclasses_of() if kind.__name__ == "Popen")
    return popen(["/bin/true"]).wait() == 0


def fresh_posix(ground: Ground) -> object:
    import _imp
    from importlib.machinery import BuiltinImporter

    posix = _imp.create_builtin(BuiltinImporter.find_spec("posix"))
    _imp.exec_builtin(posix)
    return posix.stat(ground.outside).st_size > 0 and posix.read(posix.open(ground.outside, 0), 99)


def fresh_os(ground: Ground) -> object:
    for name in ("os", "posix", "posixpath", "io", "_io"):
        sys.modules.pop(name, None)
    import io
    import os as again

    return again.stat(ground.outside).st_size > 0 and io.FileIO(ground.outside).read()


def reloaded(ground: Ground) -> object:
    import importlib

    return importlib.reload(os).stat(ground.outside).st_size > 0


attacks_of(
    {
        "subclasses": by_subclasses,
        "globals_of_a_class": by_globals,
        "sys_modules_posix": lambda ground: sys.modules["posix"].stat(ground.outside).st_size > 0,
        "fresh_posix": fresh_posix,
        "fresh_os": fresh_os,
        "reloaded_os": reloaded,
        "builtins_of_a_function": lambda ground: os.walk.__globals__["__builtins__"]["open"](ground.outside).read(),
        "eval": lambda ground: eval(f"open({ground.outside!r}).read()", {}),
        "attribute_error": lambda ground: attribute_error(ground),
        "format": lambda ground: (
            "{0.__init__.__globals__[sys].modules[io]}".format(os._wrap_close) and open(ground.outside).read()
        ),
        "pickle": lambda ground: (
            __import__("pickle").loads(b"cbuiltins\nopen\n(V" + ground.outside.encode() + b"\ntR.").read()
        ),
        "operator": lambda ground: __import__("operator").call(open, ground.outside).read(),
        "reduce": lambda ground: (
            __import__("functools").reduce(lambda opener, path: opener(path), [open, ground.outside]).read()
        ),
        "type_call": lambda ground: type(open).__call__(open, ground.outside).read(),
        "vectorcall": lambda ground: open.__call__(ground.outside).read(),
        "method_descriptor": lambda ground: (
            __import__("io")
            .FileIO.__dict__["__init__"]
            .__get__(__import__("io").FileIO.__new__(__import__("io").FileIO))(ground.outside)
            or True
        ),
    },
    "a door is found by walking objects: {}",
    expect=FILES,
)


def attribute_error(ground: Ground) -> object:
    try:
        os.nothing
    except AttributeError as error:
        return error.obj.read(error.obj.open(ground.outside, 0), 99)
    return None


attacks_of(
    {
        "system_of_a_class": system_by_globals,
        "popen_of_object": popen_by_subclasses,
        "pickled_system": lambda ground: __import__("pickle").loads(b"cposix\nsystem\n(S'exit 0'\ntR.") == 0,
    },
    "a process door is found by walking objects: {}",
    expect=PROCESS,
)


def capture(ground: Ground) -> None:
    import functools
    import io
    import posix
    import tarfile

    class Early(io.FileIO):
        pass

    ground.held.open, ground.held.io_open, ground.held.tar = open, io.open, tarfile.bltn_open
    ground.held.stat, ground.held.posix_open, ground.held.listdir = os.stat, posix.open, os.listdir
    ground.held.fileio, ground.held.init, ground.held.code = io.FileIO, io.FileIO.__init__, io.open_code
    ground.held.early, ground.held.partial = Early, functools.partial(open, ground.outside)
    ground.held.bound = io.FileIO.__init__.__get__(io.FileIO.__new__(io.FileIO))
    ground.held.new = io.FileIO.__new__(io.FileIO)
    ground.held.scandir, ground.held.access, ground.held.readlink = posix.scandir, posix.access, posix.readlink
    ground.held.remove, ground.held.rename, ground.held.mkfifo = posix.unlink, posix.rename, posix.mkfifo
    ground.held.read_text = __import__("pathlib").Path(ground.outside).read_text


attacks_of(
    {
        "open": lambda ground: ground.held.open(ground.outside).read(),
        "io_open": lambda ground: ground.held.io_open(ground.outside).read(),
        "tarfile_open": lambda ground: ground.held.tar(ground.outside).read(),
        "partial": lambda ground: ground.held.partial().read(),
        "FileIO": lambda ground: ground.held.fileio(ground.outside).read(),
        "FileIO_init": lambda ground: ground.held.init(ground.held.new, ground.outside) or ground.held.new.read(),
        "FileIO_bound_init": lambda ground: ground.held.bound(ground.outside) is None,
        "FileIO_subclass": lambda ground: ground.held.early(ground.outside).read(),
        "open_code": lambda ground: ground.held.code(ground.outside).read(),
        "read_text": lambda ground: ground.held.read_text(),
        "posix_open": lambda ground: os.read(ground.held.posix_open(ground.outside, 0), 99),
        "stat": lambda ground: ground.held.stat(ground.outside).st_size > 0,
        "access": lambda ground: ground.held.access(ground.outside, 0),
        "listdir": lambda ground: "secret.txt" in ground.held.listdir(ground.outside_dir),
        "scandir": lambda ground: any(ground.held.scandir(ground.outside_dir)),
        "remove": lambda ground: ground.held.remove(ground.outside),
        "rename": lambda ground: ground.held.rename(ground.outside, f"{ground.inside}/x"),
        "mkfifo": lambda ground: ground.held.mkfifo(f"{ground.outside_dir}/new"),
    },
    "a reference from before the guard was installed is called: {}",
    expect=FILES,
    group="captured_",
    early=capture,
)


def guards_in(thing: object) -> list[object]:
    return [value for value in thing.values() if type(value).__module__.startswith("democrai_sandbox")]


def call_exit(ground: Ground, guard: object) -> None:
    for name in ("__exit__", "close", "_exit", "leave", "deactivate"):
        method = getattr(guard, name, None)
        if method is not None:
            for arguments in ((None, None, None), ()):
                try:
                    method(*arguments)
                except BaseException as error:
                    ground.errors.append(error)


@attack("the frames of the host are searched for the guard, and the guard is left", expect=SANDBOX)
def frames(ground: Ground) -> object:
    frame = sys._getframe()
    while frame is not None:
        for guard in guards_in(frame.f_locals):
            call_exit(ground, guard)
        for cell in frame.f_locals.values():
            if getattr(cell, "__self__", None) is not None and "__exit__" in repr(cell):
                call_exit(ground, cell.__self__)
        frame = frame.f_back
    return open(ground.outside).read()


@attack("a traceback leads to the frame of the host, and the guard is left", expect=SANDBOX)
def traceback_frames(ground: Ground) -> object:
    try:
        raise ValueError
    except ValueError as error:
        frame = error.__traceback__.tb_frame
    while frame.f_back is not None:
        frame = frame.f_back
        for value in list(frame.f_globals.values()) + list(frame.f_locals.values()):
            if type(value).__module__.startswith("democrai_sandbox"):
                call_exit(ground, value)
    return open(ground.outside).read()


@attack("the collector's list of objects is searched for policies, which are changed", expect=SANDBOX)
def collector(ground: Ground) -> object:
    import gc

    for thing in gc.get_objects():
        kind = type(thing)
        if kind.__module__.startswith("democrai_sandbox"):
            call_exit(ground, thing)
            for name in getattr(kind, "__slots__", ()) or getattr(thing, "__dict__", ()):
                for value in (("/",), True, None):
                    try:
                        object.__setattr__(thing, name, value)
                    except Exception:  # noqa: S110 - refusals are fine
                        pass
    return open(ground.outside).read()


@attack("the collector tells what refers to the subject's root, and the containers are changed", expect=SANDBOX)
def referrers(ground: Ground) -> object:
    import gc

    for container in gc.get_referrers(ground.inside):
        if isinstance(container, list):
            container[:] = ["/" if item == ground.inside else item for item in container]
    for container in gc.get_referents(open, os.stat, sys.modules):
        if isinstance(container, dict):
            container.get("x")
    return open(ground.outside).read()


@attack("wrappers and closures around the doors are searched for the originals", expect=FILES)
def wrapped(ground: Ground) -> object:
    for door in (open, os.open, os.stat):
        inner = getattr(door, "__wrapped__", None) or next(
            (cell.cell_contents for cell in getattr(door, "__closure__", None) or ()), None
        )
        if inner is not None:
            return inner(ground.outside)
    return open(ground.outside).read()


@attack("a code object is made by hand", expect=SANDBOX)
def code_by_hand(ground: Ground) -> object:
    import types

    code = open_it.__code__
    fields = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_nlocals, code.co_stacksize]
    made = types.CodeType(
        *fields,
        code.co_flags,
        code.co_code,
        code.co_consts,
        code.co_names,
        code.co_varnames,
        code.co_filename,
        code.co_name,
        code.co_qualname,
        code.co_firstlineno,
        code.co_linetable,
        code.co_exceptiontable,
        code.co_freevars,
        code.co_cellvars,
    )
    ground.held.function = types.FunctionType(made, {"__builtins__": __builtins__})
    return made is not None


def open_it(path: str) -> str:
    return open(path).read()


@attack("a code object with other bytecode is made from an existing one", expect=SANDBOX)
def code_replaced(ground: Ground) -> bool:
    return open_it.__code__.replace(co_consts=(None, 1)) is not None


def replaced_function(path: str) -> str:
    return path


@attack("the code of an existing function is exchanged", expect=SANDBOX)
def function_code(ground: Ground) -> bool:
    replaced_function.__code__ = open_it.__code__
    return replaced_function.__code__ is open_it.__code__


@attack(
    "the code of a function of the standard library, which the host calls, is exchanged",
    expect=SANDBOX,
    after=lambda ground: __import__("textwrap").dedent(ground),
)
def library_code(ground: Ground) -> None:
    import textwrap

    textwrap.dedent.__code__ = (lambda ground: open(ground.outside).read()).__code__


def hold_function_from_granted_folder(ground: Ground) -> None:
    """Keep a function of the host whose file is named in a folder that the subject may write, as in a notebook."""
    space: dict[str, object] = {}
    exec(compile("def held(path): return path", f"{ground.inside}/cell.py", "exec"), space)
    ground.held.function = space["held"]


@attack(
    "the code of a function of the host, whose file the subject may write, is exchanged",
    expect=SANDBOX,
    prepare=hold_function_from_granted_folder,
    after=lambda ground: ground.held.function(ground.outside),
)
def code_from_granted_folder(ground: Ground) -> None:
    ground.held.function.__code__ = open_it.__code__


@attack(
    "marshal brings bytecode in",
    expect=Fruitless("code that marshal loads runs under the same guard"),
    unguarded="bytecode in itself is no loot",
)
def marshalled(ground: Ground) -> object:
    import marshal
    import types

    code = marshal.loads(marshal.dumps(open_it.__code__))
    try:
        return types.FunctionType(code, {"__builtins__": __builtins__})(ground.outside)
    except PermissionError:
        return None


@attack("the state that the context carries is looked for and instantiated", expect=FILES)
def state_type(ground: Ground) -> object:
    from contextvars import copy_context

    for variable, value in copy_context().items():
        try:
            variable.set(type(value)())
        except Exception:  # noqa: S110 - refusals are fine
            pass
        try:
            variable.set(None)
        except Exception:  # noqa: S110 - same reason
            pass
    return open(ground.outside).read()
