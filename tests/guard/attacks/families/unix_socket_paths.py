"""Unix sockets: other spellings of their paths, races, abstract names and binding."""

from __future__ import annotations

import os
import socket

from tests.guard.attacks.families.unix_sockets import OPTIONS, STOPPED, UNIX, talk
from tests.guard.attacks.kit import FD, FILES, Ground, is_free
from tests.guard.attacks.network import LIMIT, REFUSED, network_attack, network_attacks_of, peers

SWITCH_INTERVAL = 1e-6
"""Threads take turns as often as they can; the host sets it, see runner.py."""


def spelled(spelling):
    """The socket outside, in another spelling of its path."""
    return lambda ground: talk(spelling(peers(ground).sockets["outside"]))


def relative(ground: Ground) -> object:
    os.chdir(ground.inside)
    return talk("../outside/s")


def linked(ground: Ground) -> object:
    os.symlink(peers(ground).sockets["outside"], f"{ground.inside}/link")
    return talk(f"{ground.inside}/link")


def linked_folder(ground: Ground) -> object:
    os.symlink(ground.outside_dir, f"{ground.inside}/folder")
    return talk(f"{ground.inside}/folder/s")


def hard_linked(ground: Ground) -> object:
    os.link(peers(ground).sockets["outside"], f"{ground.inside}/hard")
    return talk(f"{ground.inside}/hard")


def moved(ground: Ground) -> object:
    os.rename(peers(ground).sockets["temporary"], f"{ground.inside}/moved")
    return talk(f"{ground.inside}/moved")


def linked_from_temporary(ground: Ground) -> object:
    os.link(peers(ground).sockets["temporary"], f"{ground.inside}/hard")
    return talk(f"{ground.inside}/hard")


def through_descriptor(ground: Ground) -> object:
    return talk(f"/proc/self/fd/{ground.held.folder}/s")


def hold_folder(ground: Ground) -> None:
    ground.held.folder = os.open(ground.outside_dir, os.O_RDONLY)


network_attacks_of(
    {
        "dots": spelled(lambda path: path.replace("/outside/", "/inside/../outside/")),
        "slashes": spelled(lambda path: path.replace("/", "//")),
        "relative": relative,
        "link": linked,
        "linked_folder": linked_folder,
        "hard_link": hard_linked,
        "hard_link_from_temporary": linked_from_temporary,
        "moved_from_temporary": moved,
        "proc_root": spelled(lambda path: f"/proc/self/root{path}"),
        "proc_descriptor": through_descriptor,
    },
    "a socket that no rule names is reached by another spelling of its path: {}",
    expect=STOPPED | FD,
    group="path_",
    prepare=hold_folder,
    **OPTIONS,
)


def rounds(ground: Ground, is_over=lambda: False):
    """Try for a while, or until it is over if nothing stops it, with threads that take turns as often as they can."""
    import sys
    import time

    end = time.monotonic() + (LIMIT if is_free(ground) else 0.4)
    while time.monotonic() < end and not (is_free(ground) and is_over()):
        yield


def swapped(ground: Ground) -> object:
    """A link points to a socket of the subject and to the host's by turns."""
    import threading

    mine = socket.socket(UNIX)
    mine.bind(f"{ground.inside}/mine")
    mine.listen(900)
    for name, target in (("a", f"{ground.inside}/mine"), ("b", peers(ground).sockets["outside"])):
        os.symlink(target, f"{ground.inside}/{name}")
    os.symlink(f"{ground.inside}/mine", f"{ground.inside}/link")
    done = threading.Event()

    def flip() -> None:
        while not done.is_set():
            for name in ("b", "a"):
                os.symlink(os.readlink(f"{ground.inside}/{name}"), f"{ground.inside}/new")
                os.rename(f"{ground.inside}/new", f"{ground.inside}/link")

    thread = threading.Thread(target=flip, daemon=True)
    thread.start()
    try:
        for _ in rounds(ground):
            sock = socket.socket(UNIX)
            sock.settimeout(0.01)
            try:
                sock.connect(f"{ground.inside}/link")
            except PermissionError as error:
                ground.errors[:] = [error]
                continue
            if sock.getpeername() == peers(ground).sockets["outside"]:
                sock.settimeout(LIMIT)
                return sock.recv(99)
            mine.accept()[0].close()
    finally:
        done.set()
        thread.join()
    return None


def mutable_path(ground: Ground) -> object:
    """The path is a bytearray that another thread changes."""
    import threading

    mine = socket.socket(UNIX)
    good = f"{ground.inside}/xx".encode()
    mine.bind(good)
    mine.listen(900)
    bad = peers(ground).sockets["outside"].encode()
    good = good.ljust(len(bad), b"x")[: len(bad)]
    if len(good) != len(bad):
        raise RuntimeError("the paths differ in length")
    path, done = bytearray(good), threading.Event()

    def flip() -> None:
        while not done.is_set():
            path[:] = bad if path[0:] == good else good

    thread = threading.Thread(target=flip, daemon=True)
    thread.start()
    try:
        for _ in rounds(ground):
            sock = socket.socket(UNIX)
            try:
                sock.connect(path)
            except (FileNotFoundError, BlockingIOError):
                continue
            except PermissionError as error:
                ground.errors[:] = [error]
                continue
            if sock.getpeername() == bad.decode():
                return sock.recv(99)
            mine.accept()[0].close()
    finally:
        done.set()
        thread.join()
    return None


network_attacks_of(
    {"link": swapped, "bytearray": mutable_path},
    "the path of a socket changes between the check and the connection: {}",
    expect=STOPPED.quietly,
    group="race_",
    **OPTIONS,
)


@network_attack(
    "a rule for one socket does not open another whose name begins the same",
    rules=lambda ground: [("connect", f"unix:{ground.outside_dir}/sd"), ("connect", "unix:@attack")],
    servers=("unix",),
)
def other_name(ground: Ground) -> object:
    return talk(peers(ground).sockets["abstract"])


def hold_zero(ground: Ground) -> None:
    """The host listens at such a name."""
    import threading

    name = f"\0attack-{os.getpid()}x\0hidden"
    server = socket.socket(UNIX)
    server.bind(name)
    server.listen()

    def serve() -> None:
        connection, _ = server.accept()
        connection.sendall(ground.SECRET.encode())

    threading.Thread(target=serve, daemon=True).start()
    ground.held.listener = name.encode()


@network_attack(
    "a name in the abstract namespace has a zero byte behind the one that a rule names",
    rules=lambda ground: [("connect", f"unix:@attack-{os.getpid()}x")],
    expect=REFUSED,
    before=hold_zero,
)
def abstract_zero(ground: Ground) -> object:
    """The kernel counts every byte; what reads the name as a C string sees only the beginning."""
    return talk(ground.held.listener)


BINDS = {
    "outside": lambda ground: socket.socket(UNIX).bind(f"{ground.outside_dir}/new"),
    "outside_datagram": lambda ground: socket.socket(UNIX, socket.SOCK_DGRAM).bind(f"{ground.outside_dir}/new"),
    "protected": lambda ground: socket.socket(UNIX).bind(f"{ground.vault}/new"),
    "readonly": lambda ground: socket.socket(UNIX).bind(f"{ground.readonly}/new"),
    "C_type": lambda ground: __import__("_socket").socket(1, 1).bind(f"{ground.outside_dir}/new"),
    "bytes": lambda ground: socket.socket(UNIX).bind(f"{ground.outside_dir}/new".encode()),
    "server": lambda ground: __import__("socketserver").UnixStreamServer(f"{ground.outside_dir}/new", None) and None,
    "listener": lambda ground: setattr(
        ground.held, "kept", __import__("multiprocessing.connection").connection.Listener(f"{ground.outside_dir}/new")
    ),
}
network_attacks_of(
    BINDS, "a socket is made in a folder where the subject may not create anything: {}", expect=FILES, group="bind_"
)


@network_attack("a server is opened over the loop in a folder outside", expect=FILES)
async def bind_loop(ground: Ground) -> None:
    import asyncio

    await asyncio.start_unix_server(lambda *_: None, f"{ground.outside_dir}/new")


@network_attack("a name in the abstract namespace is taken before the host takes it")
def bind_abstract(ground: Ground) -> bool:
    socket.socket(UNIX).bind("\0the-helper-of-the-host")
    return True


def bind_race(ground: Ground) -> None:
    """The folder in which a socket is made is exchanged for a link to another one, time and again."""
    import threading

    os.mkdir(f"{ground.inside}/real")
    os.symlink(ground.outside_dir, f"{ground.inside}/link")
    where, done = f"{ground.inside}/folder", threading.Event()
    os.rename(f"{ground.inside}/real", where)
    before = os.listdir(ground.outside_dir)

    def flip() -> None:
        while not done.is_set():
            os.rename(where, f"{ground.inside}/real")
            os.rename(f"{ground.inside}/link", where)
            os.rename(where, f"{ground.inside}/link")
            os.rename(f"{ground.inside}/real", where)

    thread = threading.Thread(target=flip, daemon=True)
    thread.start()
    try:
        for number, _ in enumerate(rounds(ground, lambda: os.listdir(ground.outside_dir) != before)):
            try:
                socket.socket(UNIX).bind(f"{where}/new{number}")
            except PermissionError as error:
                ground.errors[:] = [error]
            except OSError:
                continue
    finally:
        done.set()
        thread.join()


network_attack(
    "the folder in which a socket is made is exchanged for a link meanwhile",
    expect=STOPPED.quietly,
    name="bind_race",
)(bind_race)
