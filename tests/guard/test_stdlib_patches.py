"""Probes of outside paths raise for the subject, return "missing" to libraries, and are recorded in both cases."""

from __future__ import annotations

import os
import sys
import types

LIBRARY = """
import os, pathlib

def look(path):
    there = pathlib.Path(path)
    return {
        "exists": os.path.exists(path), "isfile": os.path.isfile(path), "isdir": os.path.isdir(path),
        "islink": os.path.islink(path), "lexists": os.path.lexists(path), "access": os.access(path, os.R_OK),
        "Path.exists": there.exists(), "Path.is_file": there.is_file(), "Path.is_dir": there.is_dir(),
        "stat": kind(os.stat, path), "lstat": kind(os.lstat, path), "getsize": kind(os.path.getsize, path),
        "readlink": kind(os.readlink, path),
    }

def kind(function, *args):
    try:
        function(*args)
    except Exception as error:
        return type(error).__name__
    return "ok"

def touch(path):
    return {
        "open": kind(open, path), "write": kind(open, path, "w"), "listdir": kind(os.listdir, path),
        "unlink": kind(os.unlink, path), "mkdir": kind(os.mkdir, path),
    }

def call(function, *args):
    return kind(function, *args)
"""


def guard_of(world, **more):
    from democrai_sandbox import process_guard_context

    return process_guard_context(subject="demo", allowed_paths=[world.root], **more)


def install_library(world, text=LIBRARY, name="somelibrary"):
    """Install a module into a site-packages folder of this process, before the code roots are computed."""
    import site

    site.PREFIXES.append(world.base)
    folder = site.getsitepackages()[-1]
    os.makedirs(folder)
    with open(os.path.join(folder, f"{name}.py"), "w") as file:
        file.write(text)
    sys.path.append(folder)
    return folder


def subject_probes(world):
    """Probe from the subject's code in every way, directly and through containers."""
    import pathlib

    there = pathlib.Path(world.secret)
    probes = {
        "exists": lambda: os.path.exists(world.secret),
        "isfile": lambda: os.path.isfile(world.secret),
        "isdir": lambda: os.path.isdir(world.outside),
        "islink": lambda: os.path.islink(world.secret),
        "lexists": lambda: os.path.lexists(world.secret),
        "ismount": lambda: os.path.ismount(world.outside),
        "getsize": lambda: os.path.getsize(world.secret),
        "samefile": lambda: os.path.samefile(world.secret, world.root),
        "access": lambda: os.access(world.secret, os.F_OK),
        "stat": lambda: os.stat(world.secret),
        "missing exists": lambda: os.path.exists(world.out("missing")),
        "Path.exists": there.exists,
        "Path.is_file": there.is_file,
        "Path.is_dir": there.parent.is_dir,
        "Path.is_symlink": there.is_symlink,
        "Path.stat": there.stat,
        "through link": lambda: os.path.exists(world.inside("link")),
        "map": lambda: list(map(os.path.exists, [world.secret])),
        "filter": lambda: list(filter(os.path.isfile, [world.secret])),
        "getattr": lambda: getattr(os.path, "exists")(world.secret),
    }
    os.symlink(world.secret, world.inside("link"))
    inside = {"exists": lambda: os.path.exists(world.inside("nothing")), "isdir": lambda: os.path.isdir(world.root)}

    def subject():
        return {name: world.verdict(probe) for name, probe in probes.items()}, {
            name: probe() for name, probe in inside.items()
        }

    return guard_of(world).run(subject)


def library_probes(world):
    """Probe and then access from a library in site-packages on the subject's behalf."""
    install_library(world)
    import somelibrary

    os.symlink(world.secret, world.inside("link"))
    write(world.inside("f"))

    def subject():
        return {
            "there": somelibrary.look(world.secret),
            "missing": somelibrary.look(world.out("missing")),
            "through link": somelibrary.look(world.inside("link")),
            "inside": somelibrary.look(world.inside("f")),
            "touch": somelibrary.touch(world.secret),
            "touch missing": somelibrary.touch(world.out("missing")),
        }

    return guard_of(world).run(subject)


def forged(world):
    """Probe from code that only claims to be a library: it learns no more than "missing"."""
    folder = install_library(world)

    def subject():
        space = {}
        exec(compile(world.args[0], os.path.join(folder, "forged.py"), "exec"), space)
        return [space["look"](world.secret), space["touch"](world.secret)]

    return guard_of(world).run(subject)


def recorded(world):
    """Return what the host finds afterwards."""
    install_library(world)
    import somelibrary

    from democrai_sandbox import recent_denials

    before = len(recent_denials())

    def subject():
        caught(os.path.exists, world.secret)
        somelibrary.kind(os.path.exists, world.out("by-library"))
        caught(open, world.out("opened"))
        return describe(error) if (error := caught(recent_denials)) else "told"

    inside = guard_of(world).run(subject)
    found = recent_denials()[before:]
    return inside, [str(one) for one in found]


def recorder(world):
    """The host's recorder gets every denial, and its failure allows nothing."""
    from democrai_sandbox import configure_guard

    kept = []

    class Recorder:
        def record(self, denial):
            kept.append(str(denial))
            if len(kept) > 1:
                raise RuntimeError("full")

        __call__ = record

    configure_guard(recorder=Recorder())
    seen = guard_of(world).run(
        lambda: [world.can_read(), world.can_read(world.out("two")), world.can_read(world.out("three"))]
    )
    return seen, kept


def netrc(world):
    """Let requests look for ~/.netrc before each request; nothing of it may show."""
    import requests
    from requests.utils import get_netrc_auth

    with open(os.path.join(world.home, ".netrc"), "w") as file:
        file.write("machine example.com login me password secret\n")
    os.chmod(os.path.join(world.home, ".netrc"), 0o600)

    def subject():
        session = requests.Session()
        prepared = session.prepare_request(requests.Request("GET", "https://example.com/"))
        return [get_netrc_auth("https://example.com/"), prepared.headers.get("Authorization")]

    return [get_netrc_auth("https://example.com/") is not None, guard_of(world).run(subject)]


class TestSubject:
    def test_probes_raise_when_the_subject_asks(self, case):
        """exists, isfile, access and similar raise for an outside path, existing or not; inside they answer."""
        seen, inside = case.run(subject_probes)
        assert {name for name, verdict in seen.items() if verdict != "FilesystemDenied"} == set()
        assert inside == {"exists": False, "isdir": True}


class TestLibraries:
    def test_probes_by_a_library_answer_as_if_nothing_were_there(self, case):
        """The results for an existing outside path equal those for a missing one; inside they are true."""
        seen = case.run(library_probes)
        nothing = {
            "exists": False,
            "isfile": False,
            "isdir": False,
            "islink": False,
            "lexists": False,
            "access": False,
            "Path.exists": False,
            "Path.is_file": False,
            "Path.is_dir": False,
            "stat": "FileNotFoundError",
            "lstat": "FileNotFoundError",
            "getsize": "FileNotFoundError",
            "readlink": "FileNotFoundError",
        }
        assert seen["there"] == nothing
        assert seen["missing"] == nothing
        through = seen["through link"]
        assert [through[name] for name in ("exists", "isfile", "stat")] == [False, False, "FileNotFoundError"]
        assert through["islink"] is True
        assert [seen["inside"][name] for name in ("exists", "isfile", "access", "stat")] == [True, True, True, "ok"]

    def test_real_access_by_a_library_is_denied(self, case):
        """A library that opens, lists, writes or deletes for the subject gets the denial."""
        seen = case.run(library_probes)
        assert set(seen["touch"].values()) == {"FilesystemDenied"}
        assert seen["touch missing"] == seen["touch"]

    def test_a_forged_file_name_buys_only_silence(self, case):
        """Code compiled under a library's name gets no truer result and no access."""
        look, touch = case.run(forged, LIBRARY)
        assert not any(value is True or value == "ok" for value in look.values())
        assert set(touch.values()) == {"FilesystemDenied"}

    def test_clients_that_look_for_dot_files_keep_working(self, case):
        """requests finds the host's ~/.netrc unguarded and none under a guard, without an error."""
        assert case.run(netrc) == [True, [None, None]]


class TestRecords:
    def test_every_denial_is_recorded_for_the_host(self, case):
        """Raised or silent, a denial can be read by the host and not by the subject."""
        inside, found = case.run(recorded)
        assert inside != "told"
        for name in (str(case.secret), str(case.outside / "by-library"), str(case.outside / "opened")):
            assert any(name in one for one in found), (name, found)

    def test_a_failing_recorder_lets_nothing_through(self, case):
        """The host's recorder sees the denials; if it raises, the denial stays in force."""
        seen, kept = case.run(recorder)
        assert seen == ["FilesystemDenied"] * 3
        assert len(kept) == 3


def swallowing(world):
    """Call functions of the standard library that suppress a refusal."""
    import pathlib
    import shutil
    import zipfile

    outside, inside = os.path.dirname(world.secret), os.path.join(world.root, "inside")
    os.makedirs(inside)
    for folder in (outside, inside):
        with zipfile.ZipFile(os.path.join(folder, "a.zip"), "w") as archive:
            archive.writestr("name", "text")

    def code(function, *args):
        try:
            return [str(found)[-8:] for found in function(*args) or ()]
        except Exception as error:
            return getattr(error, "code", type(error).__name__)

    with guard_of(world):
        return {
            "glob": code(pathlib.Path(outside).glob, "*"),
            "rglob": code(pathlib.Path(outside).rglob, "*.zip"),
            "unpack": code(shutil.unpack_archive, os.path.join(outside, "a.zip"), inside),
            "missing": code(pathlib.Path(inside, "missing").rglob, "*"),
            "own glob": code(pathlib.Path(world.root).glob, "*/*.zip"),
            "own unpack": code(shutil.unpack_archive, os.path.join(inside, "a.zip"), inside),
            "no archive": code(shutil.unpack_archive, os.path.join(inside, "name"), inside, "zip"),
        }


def test_a_denial_is_not_taken_for_an_empty_folder_or_for_a_bad_archive(case):
    assert case.run(swallowing) == {
        "glob": "sandbox_filesystem_denied",
        "rglob": "sandbox_filesystem_denied",
        "unpack": "sandbox_filesystem_denied",
        "missing": [],
        "own glob": ["de/a.zip"],
        "own unpack": [],
        "no archive": "ReadError",
    }
