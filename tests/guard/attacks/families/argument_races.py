"""An argument, or the object that it names, changes between check and use."""

from __future__ import annotations

import itertools
import os
import threading
import time

from tests.guard.attacks.kit import FILES, Ground, attack, attacks_of, is_free

PROCESSOR_SECONDS = 0.25
"""The shortest length of a race under a guard or in a confined process. Without them it lasts until it is won."""
REFUSALS = 20
"""A race under a guard lasts until this many attempts met the forbidden name."""
WALL_SECONDS = 15.0
"""The longest length of a race; less than the time that an attack may take."""


def changeable(ground: Ground) -> object:
    """The state of the files outside that these attacks try to change."""
    names, status = sorted(os.listdir(ground.outside_dir)), os.path.lexists(ground.outside) and os.stat(ground.outside)
    return names, status and (status.st_mode, status.st_size)


def refusals_needed(ground: Ground) -> int:
    """How many attempts a guard has to refuse; Landlock allows some of them, such as changing a mode."""
    has_guard = not isinstance(ground.held.make, type)
    return REFUSALS if has_guard else 0


def pair(ground: Ground) -> None:
    """A file and a link outward, a folder and a link outward; the subject may rename all of them."""
    os.symlink(ground.outside, f"{ground.inside}/bad")
    ground.write(f"{ground.inside}/good", "own")
    os.symlink(ground.outside_dir, f"{ground.inside}/bad_folder")
    os.mkdir(f"{ground.inside}/good_folder")
    ground.write(f"{ground.inside}/good_folder/secret.txt", "own")


def race(ground: Ground, change, attempt, ignored: tuple[type[OSError], ...] = ()) -> object:
    """Repeat `attempt` while a second thread repeats `change`: its first success, or its last refusal raised."""
    refused: list[OSError] = []
    found = None
    over = threading.Event()
    least = time.process_time() + PROCESSOR_SECONDS
    last = time.monotonic() + WALL_SECONDS
    before = changeable(ground) if is_free(ground) else None

    def repeat() -> None:
        while not over.is_set():
            change()

    def goes_on() -> bool:
        if is_free(ground):
            is_short = changeable(ground) == before
        else:
            is_short = time.process_time() < least or len(refused) < refusals_needed(ground)
        return is_short and time.monotonic() < last

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        while not found and goes_on():
            try:
                found = attempt()
            except ignored:
                continue
            except OSError as error:
                refused.append(error)
    finally:
        over.set()
        thread.join()
    if not found and refused:
        raise refused[-1]
    return found


def swapping(ground: Ground, suffix: str, act) -> object:
    """Rename good and bad in turn to one name in a second thread, while `act` is tried on that name."""
    name, good, bad = (f"{ground.inside}/{word}{suffix}" for word in ("name", "good", "bad"))

    def swap() -> None:
        for source in (good, bad):
            os.rename(source, name)
            os.rename(name, source)

    return race(ground, swap, lambda: act(name), ignored=(FileNotFoundError,))


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
    turns = itertools.cycle((bad, good))

    def flip() -> None:
        buffer[:] = next(turns)  # one turn per call, because the interpreter changes threads between calls

    return race(ground, flip, lambda: act(buffer))


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

    def change() -> None:
        os.chdir(f"{ground.inside}/here/deep")
        os.chdir(ground.inside)

    return race(ground, change, lambda: secret_in(open("../outside/secret.txt").read()))
