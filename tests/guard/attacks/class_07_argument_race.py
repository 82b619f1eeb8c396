"""Class 7, the argument or what it names changes between the check and the use."""

from __future__ import annotations

import os
import threading
import time

from tests.guard.attacks.kit import FILES, Ground, NoGuard, attack, attacks_of

SECONDS = {False: 2.0, True: 0.25}
"""Of the processor, under a guard or not: without one a race ends when it is won, which a busy machine delays."""


def is_guarded(ground: Ground) -> bool:
    """Whether the attack is played under a guard."""
    return ground.held.make is not NoGuard


def pair(ground: Ground) -> None:
    """A file and a link outward, a folder and a link outward; the subject may rename all of them."""
    os.symlink(ground.outside, f"{ground.inside}/bad")
    ground.write(f"{ground.inside}/good", "own")
    os.symlink(ground.outside_dir, f"{ground.inside}/bad_folder")
    os.mkdir(f"{ground.inside}/good_folder")
    ground.write(f"{ground.inside}/good_folder/secret.txt", "own")


def swapping(ground: Ground, suffix: str, act) -> object:
    """Rename good and bad in turn to one name in a second thread, while `act` is tried on that name."""
    name, good, bad = (f"{ground.inside}/{word}{suffix}" for word in ("name", "good", "bad"))
    end = time.process_time() + SECONDS[is_guarded(ground)]
    last: list[BaseException] = []
    over = threading.Event()

    def swap() -> None:
        while time.process_time() < end and not over.is_set():
            for source in (good, bad):
                os.rename(source, name)
                os.rename(name, source)

    thread = threading.Thread(target=swap)
    thread.start()
    found = None
    while time.process_time() < end and not found:
        try:
            found = act(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            last[:] = [error]
    over.set()
    thread.join()
    if not found and last:
        raise last[0]
    return found


def read(name: str) -> bytes:
    number = os.open(name, os.O_RDONLY)
    try:
        return os.read(number, 99)
    finally:
        os.close(number)  # one left open each time would use up what a process may have


def secret_in(text: object) -> object:
    return text if Ground.SECRET in str(text) else None


attacks_of(
    {
        "open": lambda ground: swapping(ground, "", lambda name: secret_in(open(name).read())),
        "os_open": lambda ground: swapping(ground, "", lambda name: secret_in(read(name))),
        "folder": lambda ground: swapping(ground, "_folder", lambda name: secret_in(open(f"{name}/secret.txt").read())),
        "write": lambda ground: swapping(ground, "_folder", lambda name: open(f"{name}/new", "w").close()),
        "remove": lambda ground: swapping(ground, "_folder", lambda name: os.remove(f"{name}/secret.txt")),
        "rename": lambda ground: swapping(
            ground, "_folder", lambda name: os.rename(f"{name}/secret.txt", f"{ground.inside}/x{time.monotonic()}")
        ),
        "mkdir": lambda ground: swapping(ground, "_folder", lambda name: os.mkdir(f"{name}/new{time.monotonic_ns()}")),
        "truncate": lambda ground: swapping(ground, "", lambda name: os.truncate(name, 1)),
        "chmod": lambda ground: swapping(ground, "", lambda name: os.chmod(name, 0o777)),
        "listdir": lambda ground: swapping(ground, "_folder", lambda name: "only_here" in os.listdir(name)),
    },
    "a name is swapped between something allowed and a link outward while {} is tried",
    expect=FILES,
    group="swapped_",
    prepare=lambda ground: (pair(ground), ground.write(f"{ground.outside_dir}/only_here", "")),
)


def flipping_buffer(ground: Ground, act) -> object:
    """A second thread rewrites the buffer that is the path."""
    good = f"{ground.inside}/own.txt".encode()
    bad = ground.outside.encode()
    width = max(len(good), len(bad))
    good, bad = (path.replace(b"/", b"/" * (width - len(path) + 1), 1) for path in (good, bad))
    buffer = bytearray(good)
    end = time.process_time() + SECONDS[is_guarded(ground)]

    def flip() -> None:
        turn = 0
        while time.process_time() < end:
            turn += 1
            buffer[:] = bad if turn % 2 else good

    thread = threading.Thread(target=flip)
    thread.start()
    found, last = None, None
    while time.process_time() < end and not found:
        try:
            found = act(buffer)
        except OSError as error:
            last = error
    thread.join()
    if not found and last:
        raise last
    return found


@attack(
    "a bytearray that is a path is rewritten while it is checked", expect=FILES.or_raises("TypeError"), until=(3, 11)
)
def flipping_bytearray(ground: Ground) -> object:
    return flipping_buffer(ground, lambda path: os.stat(path).st_size == len(ground.SECRET) or None)


@attack("the current folder changes while a relative name is checked", expect=FILES)
def cwd_race(ground: Ground) -> object:
    """A relative name is opened while another thread changes the folder it is relative to."""
    os.makedirs(f"{ground.inside}/here/outside")
    open(f"{ground.inside}/here/outside/secret.txt", "w").write("own")
    os.makedirs(f"{ground.inside}/here/deep")
    end = time.process_time() + SECONDS[is_guarded(ground)]

    def change() -> None:
        while time.process_time() < end:
            os.chdir(f"{ground.inside}/here/deep")
            os.chdir(ground.inside)

    thread = threading.Thread(target=change)
    thread.start()
    found, last = None, None
    while time.process_time() < end and not found:
        try:
            found = secret_in(open("../outside/secret.txt").read())
        except OSError as error:
            last = error
    thread.join()
    if not found and last:
        raise last
    return found
