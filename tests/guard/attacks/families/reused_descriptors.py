"""Reused numbers of descriptors: a number that now belongs to the host once belonged to the subject."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import FILES_OR_FD, Ground, attack, attacks_of


def hold_reopen(ground: Ground) -> None:
    """A host thread that opens the secret whenever it is asked to, outside every guard."""
    reopen_by_host(ground, ground.outside)


def reopen_by_host(ground: Ground, path: str) -> None:
    import queue
    import threading

    orders, answers = queue.SimpleQueue(), queue.SimpleQueue()

    def serve() -> None:
        while True:
            orders.get()
            answers.put(os.open(path, os.O_RDONLY))

    threading.Thread(target=serve, daemon=True).start()
    ground.held.reopen = lambda number: (orders.put(number), answers.get())[1]


@attack(
    "a number made by the subject is closed, reused by the host and read again", expect=FILES_OR_FD, prepare=hold_reopen
)
def recycled_number(ground: Ground) -> object:
    number = os.open(f"{ground.inside}/own.txt", os.O_RDONLY)
    os.close(number)
    again = ground.held.reopen(number)
    return os.pread(again, 99, 0)


def closed_under(ground: Ground, number: int) -> None:
    """Close a number under the object that uses it, and let the host open the secret: it gets the same number."""
    os.close(number)
    taken = ground.held.reopen(number)
    if taken != number:
        raise RuntimeError(f"the host got another number: {taken}")


def recycled_file(ground: Ground) -> object:
    file = open(f"{ground.inside}/own.txt", "rb", 0)
    closed_under(ground, file.fileno())
    return file.read(99)


def recycled_borrowed(ground: Ground) -> object:
    number = os.open(f"{ground.inside}/own.txt", os.O_RDONLY)
    file = open(number, "rb", 0, closefd=False)
    closed_under(ground, number)
    return file.read(99)


def recycled_text(ground: Ground) -> object:
    file = open(f"{ground.inside}/own.txt")
    closed_under(ground, file.fileno())
    return file.read(99)


def recycled_duplicate(ground: Ground) -> object:
    """The number is freed by putting another file in its place first."""
    file = open(f"{ground.inside}/own.txt", "rb", 0)
    other = os.open(f"{ground.inside}/own.txt", os.O_RDONLY)
    os.dup2(other, file.fileno())
    os.close(other)
    closed_under(ground, file.fileno())
    return file.read(99)


attacks_of(
    {
        "file": recycled_file,
        "borrowed": recycled_borrowed,
        "text": recycled_text,
        "duplicate": recycled_duplicate,
    },
    "an object of the subject goes on using a number that now is the host's: {}",
    expect=FILES_OR_FD.or_raises("RuntimeError"),
    group="recycled_",
    prepare=hold_reopen,
)


def hold_folders(ground: Ground) -> None:
    """Two folders with the same names in them; a host thread opens the one outside."""
    os.mkdir(f"{ground.inside}/listed")
    ground.write(f"{ground.inside}/listed/secret.txt", "short")
    ground.write(f"{ground.inside}/listed/target.txt", "short")
    os.symlink("target.txt", f"{ground.inside}/listed/link")
    os.symlink("secret.txt", f"{ground.outside_dir}/link")
    reopen_by_host(ground, ground.outside_dir)


def recycled_entry(ground: Ground, name: str) -> os.DirEntry[str]:
    """List a folder by its number, and have the host use that number for another folder."""
    number = os.open(f"{ground.inside}/listed", os.O_RDONLY)
    with os.scandir(number) as entries:
        found = next(entry for entry in entries if entry.name == name)
    closed_under(ground, number)
    return found


attacks_of(
    {
        "stat": lambda ground: recycled_entry(ground, "secret.txt").stat().st_size == len(ground.SECRET),
        "lstat": lambda ground: recycled_entry(ground, "secret.txt").stat(follow_symlinks=False).st_size > len("short"),
        "link": lambda ground: recycled_entry(ground, "link").stat().st_size == len(ground.SECRET),
        "is_file": lambda ground: recycled_entry(ground, "link").is_file(),
        "is_dir": lambda ground: recycled_entry(ground, "link").is_dir() in (True, False),
    },
    "an entry of a listed folder asks by a number that now is the host's: {}",
    expect=FILES_OR_FD.or_raises("RuntimeError", "FileNotFoundError"),
    group="recycled_entry_",
    prepare=hold_folders,
)


def serve_pipe(ground: Ground) -> None:
    """A host thread that opens a socket pair when asked to, and sends the secret through it."""
    import queue
    import socket
    import threading

    orders, answers = queue.SimpleQueue(), queue.SimpleQueue()

    def serve() -> None:
        orders.get()
        ours, theirs = socket.socketpair()
        theirs.sendall(ground.SECRET.encode())
        ground.held.pair = ours, theirs
        answers.put(ours.fileno())

    threading.Thread(target=serve, daemon=True).start()
    ground.held.reopen = lambda number: (orders.put(number), answers.get())[1]


@attack(
    "a socket of the subject goes on receiving from a number that now is the host's",
    expect=FILES_OR_FD.or_raises("RuntimeError"),
    prepare=serve_pipe,
)
def recycled_socket(ground: Ground) -> object:
    import socket

    mine, _ = socket.socketpair()
    closed_under(ground, mine.fileno())
    return mine.recv(99)
