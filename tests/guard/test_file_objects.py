"""File objects that the core fills itself, compared with those of the interpreter."""

from __future__ import annotations

import io
import os
import sys
import warnings

from tests.guard.harness import run_guarded

MODES = ("r", "w", "x", "a", "r+", "w+", "x+", "a+", "rb", "+br", "", "b", "+", "rw", "r++", "z", "r\0", "rz")


class Named(io.FileIO):
    """Subclass, which the interpreter fills."""


def fields(file):
    """Return the state of an open file object as JSON data, and close it."""
    found = {name: getattr(file, name) for name in ("mode", "closefd", "closed", "_blksize")}
    for name in ("readable", "writable", "seekable", "tell", "isatty"):
        found[name] = getattr(file, name)()
    found |= {"name": repr(file.name), "inheritable": os.get_inheritable(file.fileno())}
    file.close()
    return found | {"closed now": repr(file)}


def opened(kind, path, mode):
    try:
        return fields(kind(path, mode))
    except (OSError, ValueError) as error:
        return [type(error).__name__, str(error), repr(getattr(error, "filename", None))]


def opened_twice(path, modes):
    """Open with one mode after the other; the object keeps what the first one set."""
    file = io.FileIO(path, modes[0])
    file.close()
    file.__init__(path, modes[1])
    return fields(file)


def filled(world, run):
    """Return the state of all kinds of objects, each made by `run`."""
    found = {}

    def fresh(name):
        for leftover in (world.root + "/missing", world.root + "/there"):
            if os.path.exists(leftover):
                os.unlink(leftover)
        write(world.root + "/there", "text")  # noqa: F821  # the child provides it
        return os.fsencode(world.root + "/there") if name == "bytes" else world.root + "/" + name

    for name in ("there", "missing", "folder", "bytes"):
        for kind in (io.FileIO, Named):
            for mode in MODES:
                found[f"{name} {kind.__name__} {mode!r}"] = run(opened, kind, fresh(name), mode)
    for modes in ("rw", "wr", "ra", "ar", "rr"):
        found[modes] = run(opened_twice, fresh("there"), modes)
    return found


def differences(world):
    from democrai_sandbox import process_guard_context

    os.mkdir(world.root + "/folder")
    plain = filled(world, lambda function, *arguments: function(*arguments))
    guard = process_guard_context(subject="demo", allowed_paths=[world.root])
    under = filled(world, guard.run)
    return [len(plain), [(name, plain[name], under[name]) for name in plain if plain[name] != under[name]]]


def test_objects_have_the_fields_that_the_interpreter_gives_them(case):
    assert case.run(differences) == [149, []]


def forgotten(world):
    write(world.root + "/file")  # noqa: F821  # the child provides it
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        number = io.FileIO(world.root + "/file").fileno()
    try:
        os.fstat(number)
    except OSError as error:
        return [[one.category.__name__ for one in found], error.errno]
    return "still open"


def test_forgotten_object_warns_and_closes_its_descriptor(tmp_path):
    assert run_guarded(forgotten, tmp_path) == [["ResourceWarning"], 9]


def announced(world):
    from democrai_sandbox import process_guard_context

    paths = []
    sys.addaudithook(lambda event, arguments: event == "open" and paths.append(arguments[0]))

    def look():
        paths.clear()
        io.FileIO(world.root + "/file", "w").close()
        return world.root + "/file" in paths

    return process_guard_context(subject="demo", allowed_paths=[world.root]).run(look)


def test_audit_hook_of_the_host_sees_the_path(case):
    assert case.run(announced) is True
