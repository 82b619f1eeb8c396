"""Permitted work beside the attacks, which the guard must not stop."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import Ground, Works, attack, attacks_of


def removed_tree(ground: Ground) -> bool:
    import shutil

    os.makedirs(f"{ground.inside}/tree/with/folders")
    open(f"{ground.inside}/tree/with/file", "w").close()
    shutil.rmtree(f"{ground.inside}/tree")
    return not os.path.exists(f"{ground.inside}/tree")


def temporary_folder(ground: Ground) -> bool:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/deeper")
        open(f"{folder}/deeper/file", "w").close()
    return not os.path.exists(folder)


def timed_statement(ground: Ground) -> bool:
    import gc
    import timeit

    return timeit.timeit("1 + 1", number=10) >= 0 and gc.isenabled()  # the module switches the collector off


def own_error_handler(ground: Ground) -> bool:
    import codecs
    import threading

    codecs.register_error("of_the_subject", lambda error: ("?", error.end))
    return "é".encode("ascii", "of_the_subject") == b"?" and threading.stack_size() >= 0


def lock_of_multiprocessing(ground: Ground) -> bool:
    import multiprocessing

    with multiprocessing.get_context("fork").RLock():
        return True


def own_semaphores(ground: Ground) -> bool:
    from _multiprocessing import SemLock

    class Own(SemLock):
        __slots__ = ("handle", "kind", "maxvalue")

    for kind in (0, 1):
        lock = Own(kind, 1, 1, "/own", True)
        lock.handle = lock.kind = lock.maxvalue = lock
        taken = lock.acquire() and lock._count() == 1
        lock.release()
        if not taken or lock._get_value() != 1 or lock.name is not None:
            return False
    try:
        SemLock(2, 1, 1, "/own", True)
    except ValueError:
        return all(SemLock(1, 1, 1, "/own", True).acquire() for _ in range(100_000))
    return False


def ordered_proxies(ground: Ground) -> bool:
    from collections import OrderedDict
    from types import MappingProxyType

    one, other = ({1: 1, 2: 2}, {2: 2, 1: 1})
    proxies = [MappingProxyType(OrderedDict(pairs)) for pairs in (one, other)]
    return proxies[0] != proxies[1] and MappingProxyType(one) == MappingProxyType(other)


def dumb_database(ground: Ground) -> bool:
    import dbm.dumb

    with dbm.dumb.open(f"{ground.inside}/numbers", "n") as database:
        database["one"] = "1"
        return database["one"] == b"1"


def attached_database(ground: Ground) -> bool:
    import sqlite3

    for name in ("first", "second"):
        with sqlite3.connect(f"{ground.inside}/{name}.db") as connection:
            connection.execute("create table t (x)")
    connection = sqlite3.connect(f"{ground.inside}/first.db")
    connection.execute("attach ? as other", (f"{ground.inside}/second.db",))
    connection.execute(f"attach '{ground.inside}/third.db' as third")
    connection.execute("insert into other.t values (1)")
    return connection.execute("select x from other.t").fetchone() == (1,)


def table_of_attachments(ground: Ground) -> bool:
    import sqlite3

    connection = sqlite3.connect(":memory:")
    connection.execute("create table attachments (name text)")
    connection.execute("insert into attachments values (?)", ("/etc/anything",))
    return connection.execute("select name from attachments where name = ?", ("/etc/anything",)).fetchone() is not None


def vacuumed_database(ground: Ground) -> bool:
    import sqlite3

    connection = sqlite3.connect(f"{ground.inside}/first.db")
    connection.execute("create table t (x)")
    connection.execute("vacuum")
    connection.execute("vacuum into ?", (f"{ground.inside}/copy.db",))
    return os.path.exists(f"{ground.inside}/copy.db")


def own_event_loop(ground: Ground) -> bool:
    import asyncio

    async def work() -> bool:
        return await asyncio.to_thread(os.path.exists, f"{ground.inside}/own.txt")

    return asyncio.run(work())


def own_pool(ground: Ground) -> bool:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        return all(pool.map(os.path.exists, [f"{ground.inside}/own.txt"] * 4))


def closed_number(ground: Ground) -> bool:
    number = os.open(f"{ground.inside}/own.txt", os.O_RDONLY)
    os.close(number)
    with open(f"{ground.inside}/own.txt") as file:
        number = file.fileno()
    return os.open(f"{ground.inside}/own.txt", os.O_RDONLY) == number


def borrowed_number(ground: Ground) -> bool:
    number = os.open(f"{ground.inside}/own.txt", os.O_RDWR)
    with open(number, closefd=False) as file:
        text = file.read()
    os.close(number)
    return text == "own"


def pipe(ground: Ground) -> bool:
    read, write = os.pipe()
    with open(write, "wb") as file:
        file.write(b"x")
    with open(read, "rb") as file:
        return file.read() == b"x"


def generated_class(ground: Ground) -> bool:
    from collections import namedtuple
    from dataclasses import dataclass

    @dataclass(frozen=True, slots=True)
    class Point:
        x: int

    return Point(1) == Point(1) and namedtuple("Pair", "a b")(1, 2).b == 2


def host_future(ground: Ground) -> bool:
    ground.held.future.add_done_callback(lambda future: None)
    ground.held.future.set_result(1)
    return ground.held.future.result() == 1


def hold_future(ground: Ground) -> None:
    from concurrent.futures import Future

    ground.held.future = Future()


def archived(ground: Ground) -> bool:
    import shutil
    import tarfile

    with tarfile.open(f"{ground.inside}/a.tar", "w") as archive:
        archive.add(f"{ground.inside}/own.txt", "own.txt")
    shutil.unpack_archive(f"{ground.inside}/a.tar", f"{ground.inside}/unpacked")
    return open(f"{ground.inside}/unpacked/own.txt").read() == "own"


attacks_of(
    {
        "read": lambda ground: open(f"{ground.inside}/own.txt").read() == "own",
        "read_only_root": lambda ground: open(ground.readonly_file).read() == "data",
        "write": lambda ground: open(f"{ground.inside}/new", "w").write("x") == 1,
        "append_null_device": lambda ground: open(os.devnull, "w").write("x") == 1,
        "list": lambda ground: "own.txt" in os.listdir(ground.inside),
        "link_inside": lambda ground: (
            os.symlink("own.txt", f"{ground.inside}/l") or os.path.exists(f"{ground.inside}/l")
        ),
        "dots_inside": lambda ground: open(f"{ground.inside}/holder/../own.txt").read() == "own",
        "environment": lambda ground: os.environ.__setitem__("HARMLESS", "1") is None,
        "removed_tree": removed_tree,
        "temporary_folder": temporary_folder,
        "timed_statement": timed_statement,
        "lock_of_multiprocessing": lock_of_multiprocessing,
        "own_semaphores": own_semaphores,
        "ordered_proxies": ordered_proxies,
        "own_error_handler": own_error_handler,
        "dumb_database": dumb_database,
        "attached_database": attached_database,
        "table_of_attachments": table_of_attachments,
        "vacuumed_database": vacuumed_database,
        "own_event_loop": own_event_loop,
        "own_pool": own_pool,
        "closed_number": closed_number,
        "borrowed_number": borrowed_number,
        "pipe": pipe,
        "generated_class": generated_class,
        "archived": archived,
    },
    "honest work: {}",
    expect=Works(),
)
attack("honest work: a future of the host is used", expect=Works(), prepare=hold_future)(host_future)


@attack(
    "honest work: a child is started where the host allows it",
    expect=Works(),
    policy=lambda ground: {"allow_subprocess": True},
)
def child(ground: Ground) -> bool:
    import subprocess

    return subprocess.run(["/bin/echo", "x"], stdout=subprocess.PIPE, check=True).stdout == b"x\n"


@attack(
    "honest work: ctypes is used where the host allows it",
    expect=Works(),
    policy=lambda ground: {"allowed_imports": ["ctypes"]},
)
def allowed_ctypes(ground: Ground) -> bool:
    import ctypes

    return ctypes.CDLL(None).getpid() == os.getpid()


@attack("honest work: numpy, which imports ctypes by itself, is used", expect=Works(), needs=("numpy",))
def numpy_array(ground: Ground) -> bool:
    import numpy as np

    np.save(f"{ground.inside}/a.npy", np.arange(4))
    return int(np.load(f"{ground.inside}/a.npy").sum()) == 6
