"""Metadata of host code, which the core asks for by name instead of through a handle."""

from __future__ import annotations

import pytest

from tests.services.environments import Environment

PARTS = """
import json, os, sys, time
from democrai_sandbox import process_guard_context

outside, packages, scratch = sys.argv[1:]
here = packages + "/here"

def told(function, *arguments, **options):
    try:
        found = function(*arguments, **options)
    except OSError as error:
        return [type(error).__name__, error.errno, error.filename]
    return [*found[:7], *found[8:]] if isinstance(found, os.stat_result) else found  # without the time of access

def guarded(function, *arguments, **grants):
    return process_guard_context(subject="demo", allowed_paths=[scratch], **grants).run(function, *arguments)

def becomes_refused(function, *arguments):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if told(function, *arguments)[0] == "FilesystemDenied":
            return True
        time.sleep(0.05)
    return False
"""

SAME = """
def answers():
    names = ["", "__init__.py", "missing", "inner", "inner/", "link", "link/", "dangling", "dangling/", "to_inner"]
    names += ["__init__.py/", "__init__.py/below", "to_inner/plain.py", "inner/../__init__.py"]
    names += ["to_inner/../__init__.py"]
    found = {}
    for name in names:
        path = here + "/" + name
        for function in (os.stat, os.lstat, os.path.exists, os.path.isfile, os.path.isdir, os.path.islink,
                         os.path.getsize):
            for each in (path, os.fsencode(path)):
                found[f"{function.__name__} {each!r}"] = told(function, each)
    with os.scandir(here) as entries:
        for entry in entries:
            found["entry " + entry.name] = [entry.is_file(), entry.is_dir(), entry.is_symlink(), told(entry.stat)]
    return json.loads(json.dumps(found, default=os.fsdecode))

plain = answers()
under = guarded(answers)
print(json.dumps({name: [plain[name], under[name]] for name in plain if plain[name] != under[name]}))
"""

LINKS = """
def reached(path):
    return [told(os.stat, path), told(os.path.getsize, path), told(lambda: os.lstat(path).st_size)]

def attempt():
    return {"link": told(os.stat, here + "/away")[0], "below": [each[0] for each in reached(here + "/folder/secret")]}

print(json.dumps(guarded(attempt)))
"""

REPLACED = """
def attempt():
    before = told(os.path.isfile, here + "/inner/secret")
    ready.append(before)
    return becomes_refused(os.stat, here + "/inner/secret")

ready = []
def replace():
    os.rename(here + "/inner", here + "/was")
    os.symlink(outside, here + "/inner")

import threading
def waits():
    while not ready:
        time.sleep(0.01)
    replace()
host = threading.Thread(target=waits)
host.start()
refused = guarded(attempt)
host.join()
print(json.dumps([ready[0], refused]))
"""

PLANTED = """
def write():
    os.makedirs(here + "/cache/folder")
    os.close(os.open(here + "/cache/folder/secret", os.O_CREAT | os.O_WRONLY))
    return look()

def look():
    return told(os.stat, here + "/cache/folder/secret")[0]

first = process_guard_context(subject="writer", allowed_paths=[here + "/cache"]).run(write)
before = guarded(look)
os.rename(here + "/cache/folder", here + "/cache/moved")
os.symlink(outside, here + "/cache/folder")
print(json.dumps([isinstance(first, int), isinstance(before, int), guarded(look)]))
"""


@pytest.fixture
def made(tmp_path):
    """An environment with a package, and a folder outside that no subject may use."""
    environment = Environment(tmp_path / "env")
    here = environment.package("here", "x = 1\n")
    (here / "inner").mkdir()
    (here / "inner" / "plain.py").write_text("")
    (here / "inner" / "secret").write_text("")
    (here / "link").symlink_to("__init__.py")
    (here / "to_inner").symlink_to("inner")
    (here / "dangling").symlink_to("missing")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s" * 77)
    return environment


def _found(made, program, tmp_path):
    for name in ("scratch", "temp"):
        (tmp_path / name).mkdir()
    outside, scratch = tmp_path / "outside", tmp_path / "scratch"
    return made.answers(PARTS + program, outside, made.packages, scratch, TMPDIR=str(tmp_path / "temp"))


def test_answers_are_the_same_as_without_a_guard(made, tmp_path):
    """Values and errors of every form of path are those of the kernel."""
    assert _found(made, SAME, tmp_path) == {}


def test_a_link_that_leads_outside_is_refused(made, tmp_path):
    """A link in host code, or a folder that is one, does not lead to files outside."""
    here = made.packages / "here"
    (here / "away").symlink_to(tmp_path / "outside" / "secret")
    (here / "folder").symlink_to(tmp_path / "outside")
    assert _found(made, LINKS, tmp_path) == {"link": "FilesystemDenied", "below": ["FilesystemDenied"] * 3}


def test_a_folder_that_becomes_a_link_is_noticed(made, tmp_path):
    """The core remembers for a second at most that a folder of host code is reached without a link."""
    assert _found(made, REPLACED, tmp_path) == [True, True]


def test_a_link_is_noticed_at_once_where_a_subject_may_write(made, tmp_path):
    """After a subject got a narrower rule for writing, the name is resolved every time, for all subjects."""
    assert _found(made, PLANTED, tmp_path) == [True, True, "FilesystemDenied"]
