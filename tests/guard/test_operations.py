"""Operations are separate: a rule allows what it names, and a denial names the missing operation."""

from __future__ import annotations

import errno
import itertools
import json
import os
import types

import pytest

from tests.guard import file_calls

OPERATIONS = ("read", "create", "modify", "delete")
SUBSETS = [subset for size in range(5) for subset in itertools.combinations(OPERATIONS, size)]


def matrix(world):
    """Run every call of the matrix under each set of operations on the root; return results and messages."""
    from democrai_sandbox import process_guard_context

    table = types.SimpleNamespace(**world.load(world.args[0]))
    wrong = {}
    here = os.getcwd()
    for subset in world.args[1]:
        access = [{"resource_type": "filesystem", "operation": name, "target": world.root} for name in subset]
        for name, (needed, call) in table.CALLS.items():
            table.lay_out(world.root)
            error = caught(process_guard_context(subject="demo", access=access).run, call, world.root)
            os.chdir(here)
            missing = needed - set(subset)
            # move falls back to copying if renaming is refused, which needs another operation
            problem = judge(error, missing if name != "shutil.move" or not missing else {*table.ALL})
            if problem:
                wrong[f"{name} with {'+'.join(subset) or 'nothing'}"] = problem
    return wrong


def judge(error, missing):
    """Return what is wrong with a result, given the missing operations."""
    name = type(error).__name__
    if not missing:
        if getattr(error, "errno", None) == errno.EOPNOTSUPP:
            return None  # a file system without extended attributes or unnamed files
        return None if error is None else f"{name}: {error} ({getattr(error, 'operation', '')})"
    if error is None:
        return f"passed without {sorted(missing)}"
    if name == "Error" and "sandbox_filesystem_denied" in str(error):
        return None  # shutil collects errors
    if name != "FilesystemDenied":
        return f"{name}: {error}"
    if not missing & set(error.operations):
        return f"denied {error.operations}, which were given; missing was {sorted(missing)}"
    return None


def both_ends(world):
    """Make calls with two paths, one of them outside, in both directions."""
    from democrai_sandbox import process_guard_context

    two = {
        "rename": os.rename,
        "replace": os.replace,
        "link": os.link,
        "symlink": os.symlink,
        "shutil.move": __import__("shutil").move,
        "shutil.copyfile": __import__("shutil").copyfile,
        "Path.rename": lambda a, b: __import__("pathlib").Path(a).rename(b),
    }
    answers = {}
    for name, function in two.items():
        for direction, (source, target) in {
            "out": (world.inside("f"), world.out("new")),
            "in": (world.secret, world.inside("new")),
            "over": (world.inside("f"), world.secret),
        }.items():
            write(world.inside("f"))
            error = caught(
                process_guard_context(subject="demo", allowed_paths=[world.root]).run, function, source, target
            )
            answers[f"{name} {direction}"] = [describe(error) if error else "ok", getattr(error, "target", None)]
            answers[f"{name} {direction}"].append(
                os.listdir(world.outside) == ["secret.txt"] and "new" not in os.listdir(world.root)
            )
    return answers


def link_text(world):
    """Create links with targets relative to the link, with dots, and missing ones."""
    from democrai_sandbox import process_guard_context

    os.mkdir(world.inside("d"))
    cases = {
        "absolute outside": (world.secret, "l1"),
        "relative outside": ("../outside/secret.txt", "l2"),
        "relative from a folder": ("../../outside/secret.txt", "d/l3"),
        "relative inside": ("../f", "d/l4"),
        "dots that stay": ("d/../f", "l5"),
        "outside and missing": ("../outside/nothing", "l6"),
        "folder outside": ("..", "l7"),
        "inside and missing": ("later", "l8"),
    }
    write(world.inside("f"))
    guard = process_guard_context(subject="demo", allowed_paths=[world.root])
    return {
        name: guard.run(world.verdict, os.symlink, text, world.inside(link)) for name, (text, link) in cases.items()
    }


def hard_links(world):
    """Create a second name for a file, which may not have more rights than the first."""
    from democrai_sandbox import process_guard_context

    for name in ("shown", "work"):
        os.mkdir(world.inside(name))
    write(world.inside("shown", "f"), "original")
    access = [
        {"resource_type": "filesystem", "operation": "read", "target": world.inside("shown")},
        {
            "resource_type": "filesystem",
            "operation": ["read", "create", "modify", "delete"],
            "target": world.inside("work"),
        },
    ]

    def attempt():
        answers = [world.verdict(os.link, world.inside("shown", "f"), world.inside("work", "f"))]
        answers.append(world.verdict(write, world.inside("work", "f"), "changed"))
        return answers

    answers = process_guard_context(subject="demo", access=access).run(attempt)
    return answers, read(world.inside("shown", "f")).decode()


def denial(world):
    """Return the attributes of denials for different calls and kinds of subject."""
    from democrai_sandbox import process_guard_context

    def ask(kind, call, *args):
        guard = process_guard_context(subject="demo", subject_kind=kind, allowed_paths=[world.root])
        return facts(caught(guard.run, call, *args))

    def import_ctypes():
        import ctypes

    return {
        "read": ask("module", open, world.secret),
        "write": ask("module", open, world.out("new"), "w"),
        "over": ask("module", open, world.secret, "w"),
        "delete": ask("module", os.unlink, world.secret),
        "link": ask("module", open, world.inside("leads-out")),
        "engine": ask("engine", os.listdir, world.outside),
        "tool": ask("tool", os.mkdir, world.out("new")),
        "fd": ask("module", lambda: os.open("secret.txt", os.O_RDONLY, dir_fd=3)),
        "module": ask("module", import_ctypes),
        "process": ask("module", os.system, "true"),
        "environment": ask("module", os.putenv, "DEMOCRAI_ACCESS", "[]"),
    }


def starting(world):
    """Return the function that a denial names, for each way to start a process."""
    import asyncio
    import subprocess

    from democrai_sandbox import process_guard_context

    async def by_asyncio():
        await asyncio.create_subprocess_exec("true")

    guard = process_guard_context(subject="demo", allowed_paths=[world.root])
    ways = {
        "subprocess.run": lambda: subprocess.run(["true"]),
        "subprocess.Popen": lambda: subprocess.Popen(["true"]),
        "subprocess.check_output": lambda: subprocess.check_output(["true"]),
        "os.popen": lambda: os.popen("true"),
        "os.system": lambda: os.system("true"),
        "os.spawnl": lambda: os.spawnl(os.P_WAIT, "/bin/true", "true"),
        "os.fork": os.fork,
        "asyncio.create_subprocess_exec": lambda: asyncio.run(by_asyncio()),
    }
    return {name: caught(guard.run, way).target for name, way in ways.items()}


def like_the_kernel(world):
    """Return the attributes of a denial that libraries read."""
    from democrai_sandbox import process_guard_context

    denied = caught(process_guard_context(subject="demo", allowed_paths=[world.root]).run, open, world.secret)
    return [denied.errno, denied.strerror, denied.filename]


def as_written(world):
    """Return the name in a denial for each spelling of one outside path."""
    from democrai_sandbox import process_guard_context

    guard = process_guard_context(subject="demo", allowed_paths=[world.root])
    os.chdir(world.root)
    named = type("Name", (str,), {})(world.secret)
    twice = os.path.dirname(world.secret) + "//secret.txt"
    ways = [os.path.relpath(world.secret), twice, os.fsencode(world.secret), named]
    told = [caught(guard.run, ask, way) for way in ways for ask in (open, os.stat, os.unlink)]
    given = [way for way in ways for _ in range(3)]
    return [one.filename is way and one.target == world.secret for one, way in zip(told, given, strict=True)]


def sameness(world):
    """Return the results of the same question for an existing and a missing path."""
    from democrai_sandbox import process_guard_context

    questions = {
        "open": lambda path: open(path),
        "open w": lambda path: open(path, "w"),
        "open x": lambda path: open(path, "x"),
        "stat": os.stat,
        "lstat": os.lstat,
        "listdir": os.listdir,
        "unlink": os.unlink,
        "rmdir": os.rmdir,
        "mkdir": os.mkdir,
        "chmod": lambda path: os.chmod(path, 0o600),
        "exists": os.path.exists,
        "readlink": os.readlink,
        "rename": lambda path: os.rename(path, world.inside("n")),
        "truncate": lambda path: os.truncate(path, 0),
        "over": lambda path: os.replace(world.inside("f"), path),
    }
    write(world.inside("f"))
    os.mkdir(world.out("thing"))
    os.symlink(world.out("thing"), world.inside("to-folder"))
    os.symlink(world.out("gone!"), world.inside("to-nothing"))
    guard = process_guard_context(subject="demo", allowed_paths=[world.root])
    different = {}
    pairs = {
        "file": (world.secret, world.out("missing.txt")),
        "folder": (world.out("thing"), world.out("gone!")),
        "through link": (world.inside("to-folder", "x"), world.inside("to-nothing", "x")),
    }
    for kind, (there, missing) in pairs.items():
        for name, ask in questions.items():
            told = [facts(caught(guard.run, ask, path)) for path in (there, missing)]
            for one in told:
                for old in ("to-folder", "to-nothing", "secret.txt", "missing.txt", "thing", "gone!"):
                    for key in ("str", "target", "hint", "filename"):
                        one[key] = one[key] and one[key].replace(old, "*")
            if told[0] != told[1]:
                different[f"{name} {kind}"] = told
    return different


class TestMatrix:
    @pytest.mark.parametrize("half", [SUBSETS[:8], SUBSETS[8:]], ids=["few", "many"])
    def test_each_call_needs_exactly_its_operations(self, case, half):
        """Under every set of operations a call passes if all it needs are allowed, else it names a missing one."""
        assert case.run(matrix, file_calls.__file__, half) == {}


class TestBothEnds:
    def test_moving_and_linking_check_both_ends(self, case):
        """A call with one end outside is denied, names that end, and changes neither end."""
        secret, new = str(case.secret), str(case.outside / "new")
        answers = case.run(both_ends)
        for name, (verdict, target, untouched) in answers.items():
            assert verdict == "FilesystemDenied", name
            assert target == (new if name.endswith("out") else secret), name
            assert untouched, name

    def test_a_symlink_may_only_point_where_its_maker_may_read(self, case):
        """A link is checked by the path its text leads to from its folder, whether or not it exists."""
        assert case.run(link_text) == {
            "absolute outside": "FilesystemDenied",
            "relative outside": "FilesystemDenied",
            "relative from a folder": "FilesystemDenied",
            "relative inside": "ok",
            "dots that stay": "ok",
            "outside and missing": "FilesystemDenied",
            "folder outside": "FilesystemDenied",
            "inside and missing": "ok",
        }

    def test_a_hard_link_does_not_turn_reading_into_writing(self, case):
        """A read-only file keeps its content when it is linked into a writable folder."""
        answers, content = case.run(hard_links)
        assert content == "original"
        assert "FilesystemDenied" in answers


class TestDenial:
    def test_a_process_is_named_by_the_function_that_was_called(self, case):
        """The denial does not name the function that it finally calls."""
        told = case.run(starting)
        assert {name: found for name, found in told.items() if found != name} == {}

    def test_a_denied_path_looks_like_an_error_of_the_kernel(self, case):
        """Libraries print and compare these."""
        assert case.run(like_the_kernel) == [errno.EACCES, os.strerror(errno.EACCES), str(case.secret)]

    def test_a_denial_names_the_path_as_it_was_written(self, case):
        """Relative, with two slashes, as bytes or another string, like the kernel; the target is the resolved path."""
        assert case.run(as_written) == [True] * 12

    @pytest.fixture
    def told(self, case):
        (case.root / "leads-out").symlink_to(case.secret)
        return case.run(denial)

    def test_a_denial_says_who_what_and_where(self, case, told):
        """Class, errno, code shape and the attributes of each kind of denial."""
        secret, new = str(case.secret), str(case.outside / "new")
        expected = {
            "read": ("FilesystemDenied", f"sandbox_filesystem_denied:demo:{secret}", "read", secret),
            "write": ("FilesystemDenied", f"sandbox_filesystem_denied:demo:{new}", "create", new),
            "over": ("FilesystemDenied", f"sandbox_filesystem_denied:demo:{secret}", None, secret),
            "delete": ("FilesystemDenied", f"sandbox_filesystem_denied:demo:{secret}", "delete", secret),
            "link": ("FilesystemDenied", f"sandbox_filesystem_denied:demo:{secret}", "read", secret),
            "engine": ("FilesystemDenied", f"sandbox_filesystem_denied:demo:{case.outside}", "read", str(case.outside)),
            "tool": ("FilesystemDenied", f"sandbox_filesystem_denied:demo:{new}", "create", new),
            "fd": ("FilesystemFdDenied", "sandbox_filesystem_fd_denied:demo:dir_fd", None, None),
            "module": ("ModuleDenied", "sandbox_module_denied:ctypes", None, "ctypes"),
            "process": ("SubprocessDenied", "sandbox_subprocess_denied:os.system", None, None),
            "environment": ("EnvironmentDenied", "sandbox_env_denied:DEMOCRAI_ACCESS", None, None),
        }
        for name, (kind, text, operation, target) in expected.items():
            one = told[name]
            assert (one["type"], one["str"]) == (kind, text), name
            assert {"SandboxDenied", "SandboxError", "PermissionError", "OSError"} <= set(one["bases"]), name
            assert one["errno"] == 13, name
            assert one["layer"] == "guard", name
            assert one["code"] == text.partition(":")[0], name
            assert one["subject"] == "demo", name
            assert one["subject_kind"] == {"engine": "engine", "tool": "tool"}.get(name, "module"), name
            assert len(one["subject_chain"]) == 1, name
            assert operation is None or one["operation"] == operation, name
            assert target is None or one["target"] == target, name

    @pytest.mark.parametrize("name", ["read", "write", "delete", "engine"])
    def test_a_hint_is_a_ready_entry(self, told, name):
        """The hint names the guard's argument, and contains an entry that it and a manifest accept."""
        one = told[name]
        entry = entry_in(one["hint"])
        assert entry["resource_type"] == "filesystem"
        assert one["operation"] in entry["operation"]
        assert entry["target"] == one["target"]
        assert set(entry) == {"resource_type", "operation", "target"}
        assert "access=[...] of process_guard_context(" in one["hint"]

    def test_other_hints_name_their_own_cure(self, told):
        """For an import it names allowed_imports, for a process the task helper."""
        assert "allowed_imports" in told["module"]["hint"]
        assert "ctypes" in told["module"]["hint"]
        assert "subprocess" in told["process"]["hint"]
        assert told["environment"]["hint"]
        assert told["fd"]["hint"]

    def test_the_answer_is_the_same_whether_the_path_exists(self, case):
        """Type, text, attributes and hint about an outside path do not reveal whether it exists."""
        assert case.run(sameness) == {}


def entry_in(hint):
    """Return the first JSON object with a resource type in a text."""
    decoder = json.JSONDecoder()
    for position, letter in enumerate(hint):
        if letter == "{":
            try:
                found, _ = decoder.raw_decode(hint[position:])
            except ValueError:
                continue
            for candidate in (found, *found.get("access", []), *found.get("runtime", {}).get("access", [])):
                if isinstance(candidate, dict) and "resource_type" in candidate:
                    return candidate
    pytest.fail(f"no manifest entry in the hint: {hint}")
