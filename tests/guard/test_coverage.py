"""Every function of the file modules is guarded, and an unclassified one fails the test."""

from __future__ import annotations

import os
import shutil
import sys
import types

import pytest

from tests.guard import file_callables


class Like:
    """Path that is neither str nor bytes."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


def tables(world):
    """Return the tables of file_callables.py, loaded as the child loads a body."""
    return types.SimpleNamespace(**world.load(world.args[0]))


def lay_out(world):
    """Create the outside and the inside again, and return the paths for recipes."""
    for top in (world.root, world.outside):
        shutil.rmtree(top, ignore_errors=True)
        os.makedirs(os.path.join(top, "dir", "sub"))
        os.mkdir(os.path.join(top, "empty"))
        for name in ("secret.txt", "dir/secret.txt"):
            with open(os.path.join(top, name), "w") as file:
                file.write("SECRET88")
        os.symlink("secret.txt", os.path.join(top, "link"))
        os.symlink("secret.txt", os.path.join(top, "dir", "link"))
        os.mkdir(os.path.join(top, "dir", "empty"))
        shutil.copyfile(world.args[1], os.path.join(top, "a.zip"))
        shutil.copyfile(world.args[2], os.path.join(top, "a.tar"))
        tool = os.path.join(top, "tool")
        with open(tool, "w") as file:
            file.write("#!/bin/sh\n")
        os.chmod(tool, 0o755)


def places(world, convert):
    """Return the paths for recipes, each converted with `convert`."""
    out, inside = world.out, world.inside
    named = {
        "file": out("secret.txt"),
        "dir": out("dir"),
        "missing": out("missing"),
        "empty": out("empty"),
        "link": out("link"),
        "zip": out("a.zip"),
        "tar": out("a.tar"),
        "tool": out("tool"),
        "inside": inside("secret.txt"),
        "insidedir": inside("dir"),
        "insidezip": inside("a.zip"),
        "new": inside("new"),
    }
    return types.SimpleNamespace(**{name: convert(path) for name, path in named.items()})


def descriptors(world):
    """Return descriptors of the host, and one of the caller."""
    read_end, write_end = os.pipe()
    os.write(write_end, b"SECRET88")
    return types.SimpleNamespace(
        file=os.open(world.secret, os.O_RDWR),
        spare=os.open(world.secret, os.O_RDONLY),
        dir=os.open(world.out("dir"), os.O_RDONLY),
        pipe=read_end,
        pipe_write=write_end,
    )


def own_descriptors(world, held):
    """Add descriptors of the caller, created under the guard, if any."""
    held.own = os.open(world.inside("own"), os.O_RDWR | os.O_CREAT)
    held.own_pipe_read, held.own_pipe = os.pipe()


def release(held):
    for number in vars(held).values():
        try:
            os.close(number)
        except OSError:
            pass


def picture(top):
    """Return a description of a tree: names, kinds, modes, contents, modification times."""
    seen = {}
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name)
            found = os.lstat(path)
            content = open(path, "rb").read() if os.path.isfile(path) and not os.path.islink(path) else None
            seen[path] = (
                found.st_mode,
                found.st_mtime_ns,
                found.st_ctime_ns if name != "link" else 0,
                found.st_nlink,
                content,
            )
    return seen


def say(function, *args):
    """Return how a recipe ended: 'denied', 'answered', or the error."""
    from democrai_sandbox.errors import SandboxDenied

    try:
        answer = function(*args)
    except SandboxDenied:
        return "denied"
    except OSError as error:
        return describe(error)
    except Exception as error:
        return f"broken {type(error).__name__}: {error}"
    return f"answered {answer!r}"[:60]


def control(world):
    """Without a guard, every recipe reaches its target, or the system refuses it."""
    known = tables(world)
    here = os.getcwd()
    broken = {}
    for module, paths, blind, numbers, _ in known.MODULES:
        names = known.own_doors(module)
        for name in sorted(names & (set(paths) | set(blind))):
            for index, recipe in enumerate((paths | blind).get(name, [])):
                for kind, convert in kinds(module.__name__, name):
                    lay_out(world)
                    result = say(recipe, module, places(world, convert))
                    os.chdir(here)
                    if result.startswith(("broken", "denied")):
                        broken[f"{module.__name__}.{name}[{index}] {kind}"] = result
        for name in sorted(names & set(numbers)):
            for index, recipe in enumerate(numbers[name]):
                lay_out(world)
                held = descriptors(world)
                own_descriptors(world, held)
                if name in {"execve", "login_tty"}:  # a success would end this process
                    continue
                result = say(recipe, module, held)
                os.chdir(here)
                release(held)
                if result.startswith(("broken", "denied")):
                    broken[f"{module.__name__}.{name}[{index}] fd"] = result
    return broken


def path_doors(world):
    """Under a guard, with str, bytes and PathLike: each recipe is denied and nothing outside has changed."""
    known = tables(world)
    from democrai_sandbox import process_guard_context

    passed = {}
    lay_out(world)
    before = picture(world.outside)
    for module, paths, _, _, _ in known.MODULES:
        for name in sorted(known.own_doors(module) & set(paths)):
            for index, recipe in enumerate(paths[name]):
                for kind, convert in kinds(module.__name__, name):
                    given = places(world, convert)
                    result = process_guard_context(subject="demo", allowed_paths=[world.root]).run(
                        say, recipe, module, given
                    )
                    if result != "denied":
                        passed[f"{module.__name__}.{name}[{index}] {kind}"] = result
    changed = sorted(set(picture(world.outside).items()) ^ set(before.items()))
    return passed, [path for path, _ in changed]


def kinds(module, name):
    """Return the forms in which this function takes a path."""
    forms = [("str", str), ("like", Like)]
    if module in {"posix", "io", "_io", "genericpath", "posixpath"}:
        forms += [("bytes", os.fsencode), ("like of bytes", lambda path: Like(os.fsencode(path)))]
    return forms


def blind_doors(world):
    """Functions that suppress errors treat an outside path like a missing one, or raise."""
    from democrai_sandbox import process_guard_context

    known = tables(world)
    lay_out(world)
    wrong = {}
    for module, _, blind, _, _ in known.MODULES:
        for name in sorted(known.own_doors(module) & set(blind)):
            for index, recipe in enumerate(blind[name]):
                there = places(world, str)
                gone = types.SimpleNamespace(**{key: path + "-gone" for key, path in vars(there).items()})
                guard = {"subject": "demo", "allowed_paths": [world.root]}
                answers = [process_guard_context(**guard).run(say, recipe, module, place) for place in (there, gone)]
                blank = [answer.replace("-gone", "") for answer in answers]
                if blank[0] != blank[1]:
                    wrong[f"{module.__name__}.{name}[{index}]"] = answers
    return wrong


def descriptor_doors(world):
    """Foreign descriptor numbers are refused by every function."""
    from democrai_sandbox import process_guard_context

    known = tables(world)
    lay_out(world)
    held = descriptors(world)
    guard = process_guard_context(subject="demo", allowed_paths=[world.root])
    guard.run(own_descriptors, world, held)
    before = picture(world.outside)
    passed = {}
    for module, _, _, numbers, _ in known.MODULES:
        for name in sorted(known.own_doors(module) & set(numbers)):
            for index, recipe in enumerate(numbers[name]):
                result = process_guard_context(subject="demo", allowed_paths=[world.root]).run(
                    say, recipe, module, held
                )
                if result != "denied":
                    passed[f"{module.__name__}.{name}[{index}]"] = result
    changed = sorted(set(picture(world.outside).items()) ^ set(before.items()))
    alive = [name for name, number in vars(held).items() if say(os.fstat, number).startswith("OSError")]
    return passed, [path for path, _ in changed], alive


def dir_fd_doors(world):
    """A relative name with a directory descriptor is refused before anything happens."""
    from democrai_sandbox import process_guard_context

    known = tables(world)
    lay_out(world)
    held = descriptors(world)
    before = picture(world.outside)
    passed = {}
    for name in known.accepting("dir_fd"):
        recipe = known.POSIX_DIR_FD.get(name)
        if recipe is None:
            passed[name] = "no recipe: add one to POSIX_DIR_FD"
            continue
        result = process_guard_context(subject="demo", allowed_paths=[world.root]).run(
            say, recipe, os, held, places(world, str)
        )
        if result != "denied":
            passed[name] = result
    changed = sorted(set(picture(world.outside).items()) ^ set(before.items()))
    return passed, [path for path, _ in changed]


def entries(world):
    """Return what a directory entry reveals about a link to the outside."""
    from democrai_sandbox import process_guard_context

    os.symlink(world.secret, world.inside("leads-out"))
    os.symlink(world.out("not-there"), world.inside("leads-nowhere"))

    def look():
        with os.scandir(world.root) as found:
            mine = {entry.name: entry for entry in found}
        return {
            "stat": say(mine["leads-out"].stat),
            "is_file": say(mine["leads-out"].is_file) == say(mine["leads-nowhere"].is_file),
            "is_dir": say(mine["leads-out"].is_dir) == say(mine["leads-nowhere"].is_dir),
            "own stat": say(lambda: mine["leads-out"].stat(follow_symlinks=False).st_size > 0),
        }

    return process_guard_context(subject="demo", allowed_paths=[world.root]).run(look)


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Create a zip and a tar for the recipes that unpack."""
    base = tmp_path_factory.mktemp("archives")
    (base / "content").mkdir()
    (base / "content" / "a.txt").write_text("a")
    return [shutil.make_archive(str(base / "a"), kind, base / "content") for kind in ("zip", "tar")]


class TestClassification:
    def test_every_callable_of_the_file_modules_is_classified(self):
        """A callable that no table lists fails: classify it in file_callables.py as path, descriptor, or neither."""
        unknown, twice = file_callables.unclassified()
        assert not unknown, f"classify these in tests/guard/file_callables.py: {unknown}"
        assert not twice, f"classified as taking and as not taking a path: {twice}"

    def test_signatures_agree_with_the_tables(self):
        """A `path` parameter means a path function, an `fd` parameter a descriptor function."""
        for word, table in (
            ("path", file_callables.POSIX_PATH),
            ("src", file_callables.POSIX_PATH),
            ("dir_fd", file_callables.POSIX_DIR_FD),
        ):
            by_number = {"copy_file_range", "splice"}  # their src is a descriptor
            missing = parameters(word) - set(table) - file_callables.LEXICAL - by_number
            assert not missing, f"{word}: {missing}"
        assert not parameters("fd") - set(file_callables.POSIX_FD) - file_callables.POSIX_FD_HARMLESS

    def test_every_recipe_reaches_its_target_without_a_guard(self, case, archives):
        """A recipe that fails by mistake would prove nothing under a guard."""
        assert case.run(control, file_callables.__file__, *archives) == {}


class TestDoors:
    def test_every_path_door_denies_a_path_outside(self, case, archives):
        """Each callable that takes a path refuses one outside, as str, bytes and PathLike, and changes nothing."""
        passed, changed = case.run(path_doors, file_callables.__file__, *archives)
        assert passed == {}
        assert changed == []

    def test_doors_that_swallow_errors_tell_nothing(self, case, archives):
        """walk, glob, realpath and which treat an outside path like a missing one."""
        assert case.run(blind_doors, file_callables.__file__, *archives) == {}

    def test_every_descriptor_door_denies_a_number_of_others(self, case, archives):
        """A number that leads outside is refused by every function that takes one, and stays open."""
        passed, changed, closed = case.run(descriptor_doors, file_callables.__file__, *archives)
        assert passed == {}
        assert changed == []
        assert closed == []

    def test_every_dir_fd_argument_is_refused(self, case, archives):
        """dir_fd, src_dir_fd and dst_dir_fd are refused wherever posix accepts them."""
        passed, changed = case.run(dir_fd_doors, file_callables.__file__, *archives)
        assert passed == {}
        assert changed == []

    def test_directory_entries_do_not_look_through_links(self, case):
        """DirEntry.stat follows links: it is refused if the link leads outside."""
        assert case.run(entries) == {
            "stat": "denied",
            "is_file": True,
            "is_dir": True,
            "own stat": "answered True",
        }


def parameters(word):
    """Return the posix functions with a parameter of this name in their text signature."""
    found = set()
    for name in file_callables.callables(file_callables.posix):
        signature = getattr(getattr(file_callables.posix, name), "__text_signature__", None) or ""
        names = {part.partition("=")[0].strip(" ()$*/") for part in signature.split(",")}
        if word in names:
            found.add(name)
    return found
