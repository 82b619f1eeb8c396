"""Bad input causes a typed error or a denial, never a crash, and never an allowed access."""

from __future__ import annotations

import os
import pathlib


class Failing:
    def __fspath__(self):
        raise RuntimeError("no path today")


class Changing:
    """Path that is allowed first and another one afterwards."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def __fspath__(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Forged(str):  # noqa: SLOT000  # it is meant to be an ordinary subclass
    """Text whose methods lie."""

    def startswith(self, *args):
        return True

    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash("/")

    def encode(self, *args):
        return b"/"

    def __str__(self):
        return "/"


class ForgedBytes(bytes):
    def decode(self, *args):
        return "/"


def declarations(world):
    """Return the errors for invalid arguments of process_guard_context."""
    from democrai_sandbox import process_guard_context

    rule = {"resource_type": "filesystem", "operation": "read", "target": world.root}
    wrong = {
        "no subject": {"subject": ""},
        "subject None": {"subject": None},
        "subject bytes": {"subject": b"demo"},
        "subject number": {"subject": 7},
        "unknown kind": {"subject_kind": "modul"},
        "kind None": {"subject_kind": None},
        "empty path": {"allowed_paths": [""]},
        "relative path": {"allowed_paths": ["data"]},
        "dotted path": {"allowed_paths": ["./data"]},
        "path None": {"allowed_paths": [None]},
        "path number": {"allowed_paths": [3]},
        "one str for paths": {"allowed_paths": world.root},
        "one bytes for paths": {"allowed_paths": os.fsencode(world.root)},
        "paths None": {"allowed_paths": None},
        "NUL in a path": {"allowed_paths": [world.root + "\0"]},
        "failing path": {"allowed_paths": [Failing()]},
        "home": {"allowed_paths": ["~/data"]},
        "pattern": {"allowed_paths": [f"{world.root}/*.csv"]},
        "pattern in access": {"access": [{**rule, "target": f"{world.root}/*.csv"}]},
        "access str": {"access": "read"},
        "access dict": {"access": rule},
        "access None entry": {"access": [None]},
        "unknown key": {"access": [{**rule, "note": "x"}]},
        "missing key": {"access": [{"resource_type": "filesystem", "operation": "read"}]},
        "unknown operation": {"access": [{**rule, "operation": "reed"}]},
        "no operation": {"access": [{**rule, "operation": []}]},
        "foreign operation": {"access": [{**rule, "operation": "connect"}]},
        "unknown resource": {"access": [{**rule, "resource_type": "url"}]},
        "empty target": {"access": [{**rule, "target": ""}]},
        "relative target": {"access": [{**rule, "target": "data"}]},
        "imports str": {"allowed_imports": "ctypes"},
        "imports number": {"allowed_imports": [1]},
        "subprocess text": {"allow_subprocess": "no"},
        "runtime text": {"include_runtime_paths": "no"},
        "bad target": {"allowed_targets": ["http://user@host/"]},
        "empty target of network": {"allowed_targets": [""]},
    }
    seen = {}
    for name, arguments in wrong.items():
        error = caught(lambda: process_guard_context(**{"subject": "demo", **arguments}))
        seen[name] = [describe(error).partition(":")[0] if error else "accepted", str(error)]
    seen["positional"] = [describe(caught(process_guard_context, "demo")).partition(":")[0], ""]
    seen["unknown argument"] = [
        describe(caught(lambda: process_guard_context(subject="demo", paths=[]))).partition(":")[0],
        "",
    ]
    return seen


def acceptable(world):
    """Return the results for odd but valid arguments: missing paths, Path objects, tuples, generators."""
    from democrai_sandbox import process_guard_context

    fine = {
        "missing root": {"allowed_paths": [world.out("not", "yet")]},
        "Path": {"allowed_paths": [pathlib.Path(world.root)]},
        "slash": {"allowed_paths": [world.root + "/"]},
        "tuple": {"allowed_paths": (world.root,)},
        "nothing": {},
        "twice": {"allowed_paths": [world.root, world.root]},
        "not UTF-8": {"allowed_paths": [world.root + "/\udcff"]},
        "10,000": {"allowed_paths": [f"{world.root}/{number}" for number in range(10_000)]},
        "deep": {"allowed_paths": [world.root + "/d" * 1500]},
        "number as text": {"user_id": "5"},
    }
    seen = {}
    for name, arguments in fine.items():
        seen[name] = world.verdict(lambda: process_guard_context(subject="demo", **arguments).run(int))
    return seen


def paths(world):
    """Return the results of wrong or lying paths in guarded calls, and whether the secret was revealed."""
    from democrai_sandbox import process_guard_context

    write(world.inside("f"), "mine")
    odd = {
        "NUL": world.secret + "\0",
        "NUL in the middle": world.inside("f\0") + world.secret,
        "empty": "",
        "64 KiB": world.root + "/a" * 32768,
        "64 KiB outside": "/a" * 32768,
        "long name": world.inside("x" * 70_000),
        "failing": Failing(),
        "changing": Changing(world.inside("f"), world.secret),
        "changing type": Changing(world.inside("f"), os.fsencode(world.secret)),
        "answers a number": Changing(3),
        "answers a forged str": Changing(Forged(world.secret)),
        "answers itself": Changing(pathlib.Path(world.secret)),
        "forged str": Forged(world.secret),
        "forged bytes": ForgedBytes(os.fsencode(world.secret)),
        "not UTF-8 outside": os.fsencode(world.outside) + b"/\xff\xfe",
        "surrogates": world.out("\udcff"),
        "lone surrogate": world.out("\ud800"),
        "bytearray": bytearray(os.fsencode(world.secret)),
        "memoryview": memoryview(os.fsencode(world.secret)),
        "float": 3.0,
        "None": None,
        "True": True,
        "huge number": 2**70,
        "negative": -7,
        "list": [world.secret],
        "dots": world.inside("..", "outside", "secret.txt"),
        "slashes": world.secret.replace("/", "///"),
        "colon": "file://" + world.secret,
    }
    calls = {
        "open": lambda path: read_text(path),
        "os.open": lambda path: os.read(os.open(path, os.O_RDONLY), 99),
        "stat": os.stat,
        "listdir": os.listdir,
        "scandir": lambda path: list(os.scandir(path)),
        "unlink": os.unlink,
        "mkdir": os.mkdir,
        "exists": os.path.exists,
        "rename": lambda path: os.rename(path, world.inside("g")),
        "readlink": os.readlink,
        "truncate": lambda path: os.truncate(path, 0),
        "chmod": lambda path: os.chmod(path, 0o600),
        "link": lambda path: os.link(path, world.inside("h")),
        "access": lambda path: os.access(path, os.R_OK),
        "FileIO": lambda path: __import__("io").FileIO(path).read(),
        "symlink": lambda path: os.symlink(path, world.inside("s")),
        "Path": lambda path: pathlib.Path(path).read_text(),
    }
    guard = process_guard_context(subject="demo", allowed_paths=[world.root])
    seen, leaked = {}, []
    for name, path in odd.items():
        for call, function in calls.items():
            if isinstance(path, Changing):
                path.answers = list(path.__dict__.setdefault("first", list(path.answers)))
            for leftover in ("g", "h", "s"):
                if os.path.lexists(world.inside(leftover)):
                    os.unlink(world.inside(leftover))
            write(world.inside("f"), "mine")
            try:
                answer = guard.run(function, path)
            except BaseException as error:
                seen[f"{name} {call}"] = describe(error).partition(":")[0]
            else:
                seen[f"{name} {call}"] = "answered" if answer is not False else "nothing there"
                if "SECRET" in str(answer):
                    leaked.append(f"{name} {call}")
    return seen, leaked, read(world.secret).decode()


def read_text(path):
    with open(path) as file:
        return file.read()


class TestDeclarations:
    def test_wrong_arguments_are_refused_by_name(self, case):
        """Every wrong argument gives an InvalidInputError (a ValueError) or a TypeError with a text, never a guard."""
        seen = case.run(declarations)
        assert {name: told for name, told in seen.items() if told[0] not in {"InvalidInputError", "TypeError"}} == {
            "failing path": ["RuntimeError", "no path today"]  # raised by the host's object
        }
        assert [seen[name][0] for name in ("positional", "unknown argument")] == ["TypeError"] * 2
        silent = {
            name for name, (_, text) in seen.items() if not text and name not in {"positional", "unknown argument"}
        }
        assert silent == set()

    def test_refusals_say_what_is_wrong(self, case):
        """The text contains the value or its pointer, and the nearest valid word for a misspelling."""
        seen = case.run(declarations)
        assert "module" in seen["unknown kind"][1]
        assert "'read'" in seen["unknown operation"][1] or "read" in seen["unknown operation"][1]
        assert "data" in seen["relative path"][1]
        assert "empty" in seen["empty path"][1].lower()

    def test_odd_but_right_arguments_are_taken(self, case):
        """Missing roots, other iterables and many roots are accepted."""
        assert {name: verdict for name, verdict in case.run(acceptable).items() if verdict != "ok"} == {}


class TestPaths:
    def test_lying_and_broken_paths_open_nothing(self, case):
        """For any value as a path, the call ends with an ordinary error or a denial, and reveals nothing."""
        seen, leaked, secret = case.run(paths)
        assert leaked == []
        assert secret == "SECRET"
        allowed = {
            "answered",
            "nothing there",
            "FilesystemDenied",
            "FilesystemFdDenied",
            "ValueError",
            "TypeError",
            "FileNotFoundError",
            "OSError",
            "RuntimeError",
            "OverflowError",
            "UnicodeEncodeError",
            "NotADirectoryError",
            "FileExistsError",
        }
        assert {name: kind for name, kind in seen.items() if kind not in allowed} == {}
        answered = {name.rpartition(" ")[0] for name, kind in seen.items() if kind == "answered"}
        assert answered <= {"changing", "changing type", "colon", "True", "NUL", "empty"}, seen
