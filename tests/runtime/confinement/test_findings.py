"""Escapes from the confinement of children and workers, found by attack: each test failed before the fix."""

from __future__ import annotations

import os

import pytest

LAB = os.path.join(os.path.dirname(__file__), "confined_host.py")

MODULE = """
import array, dataclasses, enum, itertools, os, resource, socket, struct, sys, time
import _socket
from democrai_sandbox import sdk


def lie_about_texts(target):
    real = os.fsencode
    os.fsencode = lambda text: real(text).replace(b"/usr\\0", b"/\\0")
    os.fspath = lambda path: "/nowhere"
    os.fsdecode = lambda path: "/nowhere"


def lie_about_places(target):
    os.path.realpath = lambda path, **_: "/usr"
    os.readlink = lambda path, **_: "/usr"
    os.lstat = os.stat
    os.scandir = lambda path: iter(())


def lie_about_descriptors(target):
    real = array.array
    def made(kind, values=()):
        values = list(values)
        return real(kind, values[:1] + [int(target)] * (len(values) - 1) if kind == "i" and values else values)
    array.array = made
    os.pipe2 = lambda flags: (int(target), int(target))
    os.dup = lambda number: int(target)


def lie_about_sockets(target):
    def never(*_, **__):
        raise SystemExit("seen")
    for name in ("sendmsg", "recvmsg"):
        setattr(socket.socket, name, never)
    _socket.socketpair = socket.socketpair = never


def lie_about_numbers(target):
    for kind in (enum.Flag, enum.IntFlag):
        for name in ("__or__", "__ror__", "__and__", "__rand__"):
            setattr(kind, name, lambda one, other: 0)
    enum.IntFlag.__int__ = lambda one: 0
    enum.Enum.__hash__ = lambda one: 0
    enum.StrEnum.__eq__ = lambda one, other: True
    resource.RLIMIT_NOFILE = 10
    struct.pack = lambda *_: b""
    dataclasses.fields = lambda *_: ()
    os.uname = lambda: type("U", (), {"machine": "none"})


@sdk.action("replace")
async def replace(folder, temporary):
    # It leads to a place of its own where it is made, and elsewhere where it is moved.
    os.makedirs(temporary + "/secret", exist_ok=True)
    os.symlink("secret", temporary + "/link")
    os.rmdir(folder)
    os.rename(temporary + "/link", folder)
    return os.path.islink(folder)


LIES = {name: made for name, made in list(globals().items()) if name.startswith("lie_")}


@sdk.action("lie")
async def lie(name, target):
    LIES[name](target)


@sdk.action("sh")
async def sh(script, **options):
    done = await sdk.tasks.run_subprocess(["sh", "-c", script], **options)
    return [done.returncode, done.text, done.stderr.decode(), list(done.unenforced)]
"""

SCRIPT = """
    cat {state}/keys >/dev/null 2>&1 && echo "read the keys"
    cat /etc/shadow >/dev/null 2>&1 && echo "read a file of the system's"
    ls {base}/data >/dev/null 2>&1 && echo "saw the data"
    (echo x > {readable}/new) 2>/dev/null && echo "wrote where it may read"
    grep -q "^Seccomp:.2" /proc/$$/status || echo "no filter"
    echo "$(ulimit -n) files"
"""


def lies(world):
    (name,) = world.args
    lab = (parts := world.load(LAB))["Lab"](world)
    house, entry = lab.house, parts["entry"]
    secret = house.file("secret/file", "SECRET")
    readable = os.path.dirname(house.file("readable/file"))
    mine = os.open(secret, os.O_RDWR | os.O_CLOEXEC)
    rules = [entry("read", house.base), entry("read", readable)]
    house.extension("demo", MODULE, access=rules, limits={"open_files": 77})
    script = SCRIPT.format(state=house.state, base=house.base, readable=readable)
    close, pread = os.close, os.pread

    async def story():
        told = await lab.action("demo", "lie", name=name, target=str(mine))
        done = await lab.action("demo", "sh", script=script)
        found = pread(mine, 100, 0).decode()
        close(mine)
        return [told, done, found]

    return lab.serve(story)


@pytest.mark.parametrize("about", ["texts", "places", "descriptors", "sockets", "numbers"])
def test_what_a_module_puts_in_the_place_of_library_functions_decides_nothing(case, about):
    """A module in the host's process can replace them; orders for children do not use them."""
    told, done, secret = case.run(lies, f"lie_about_{about}")
    assert told is None
    assert done[:2] == [0, "77 files\n"], done
    assert done[3] == []
    assert secret == "SECRET"


def planted(world):
    lab = (parts := world.load(LAB))["Lab"](world)
    house, entry = lab.house, parts["entry"]
    secret = house.file("secret/file", "SECRET")
    shared = os.path.dirname(house.file("shared/file"))
    os.symlink(shared, f"{house.base}/alias")
    declared = [entry("read", f"{shared}/later"), entry("read", f"{house.base}/alias/later/deep")]
    house.extension("demo", MODULE, access=declared)

    async def story():
        house.decide("approval", "module:demo", "filesystem", "create", shared)
        # As its worker could by native code, or another of its programs.
        os.symlink(os.path.dirname(secret), f"{shared}/later")
        os.makedirs(f"{os.path.dirname(secret)}/deep")
        os.rename(secret, f"{os.path.dirname(secret)}/deep/file")
        script = f"cat {os.path.dirname(secret)}/deep/file {shared}/later/deep/file {house.base}/alias/later/deep/file"
        return await lab.action("demo", "sh", script=script)

    return lab.serve(story)


def test_a_link_in_a_folder_that_a_subject_was_allowed_to_write_opens_nothing(case):
    """By an approval, which is not a rule of its children, and for every path of the rule to the folder."""
    assert case.run(planted)[1] == ""


def replaced(world):
    lab = (parts := world.load(LAB))["Lab"](world)
    house, entry = lab.house, parts["entry"]
    secret = house.file("secret/file", "SECRET")
    folder = os.path.dirname(house.file("folder/file"))
    os.unlink(f"{folder}/file")
    house.extension("demo", MODULE, access=[entry(act, folder) for act in ("read", "create", "modify", "delete")])

    async def story():
        done = await lab.action("demo", "replace", folder=folder, temporary=world.tmp)
        return [done, (await lab.action("demo", "sh", script=f"cat {secret}; echo x > {folder}/new"))[1]]

    return [*lab.serve(story), os.listdir(os.path.dirname(secret))]


def test_a_folder_that_a_module_has_replaced_by_a_link_opens_nothing(case):
    """The module may remove and replace the target of the rule, and the folder itself."""
    made, read, found = case.run(replaced)
    assert made is True
    assert read == ""
    assert found == ["file"]
