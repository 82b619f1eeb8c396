"""Checks that fail because no descriptor is free: access is refused, and nothing is revealed."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import Denied, Ground, attack, attacks_of


def link(ground: Ground) -> None:
    """Links of the host's inside that lead out."""
    os.symlink(ground.outside, f"{ground.inside}/link")
    os.symlink(ground.outside_dir, f"{ground.inside}/folder")
    ground.held.size = os.stat(ground.outside).st_size
    limit_descriptors()


def limit_descriptors() -> None:
    """Have few of them, so that they are soon used up."""
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def entries(ground: Ground) -> dict[str, os.DirEntry[str]]:
    with os.scandir(ground.inside) as found:
        return {entry.name: entry for entry in found}


def exhausted(act):
    """Take every descriptor that the process may have, then look."""

    def attack_act(ground: Ground) -> object:
        found = entries(ground)
        held = []
        try:
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        try:
            return act(ground, found)
        finally:
            for number in held:
                os.close(number)

    return attack_act


def secret_if(condition: object, ground: Ground) -> object:
    return ground.SECRET if condition else None


attacks_of(
    {
        "stat": exhausted(lambda ground, found: secret_if(found["link"].stat().st_size == ground.held.size, ground)),
        "is_file": exhausted(lambda ground, found: secret_if(found["link"].is_file(), ground)),
        "is_dir": exhausted(lambda ground, found: secret_if(found["folder"].is_dir(), ground)),
        "os_stat": exhausted(lambda ground, found: secret_if(os.stat(f"{ground.inside}/link"), ground)),
        "exists": exhausted(lambda ground, found: secret_if(os.path.exists(f"{ground.inside}/link"), ground)),
        "access": exhausted(lambda ground, found: secret_if(os.access(f"{ground.inside}/link", os.R_OK), ground)),
        "chmod": exhausted(lambda ground, found: os.chmod(f"{ground.inside}/link", 0o600)),
        "readlink": exhausted(lambda ground, found: secret_if(os.readlink(f"{ground.inside}/folder/x"), ground)),
    },
    "metadata outside is asked for without a free descriptor: {}",
    expect=Denied(("sandbox_",), or_nothing=True, or_errors=("OSError",)),
    group="exhausted_",
    prepare=link,
    unguarded="shown with free descriptors elsewhere",
)


class Number:
    """A number that is not an int; a different one each time, when it is given several."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def __index__(self) -> int:
        return int(self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0])

    def __float__(self) -> float:
        return float(self.__index__())


def steal_later(ground: Ground) -> None:
    import signal

    signal.signal(Number(signal.SIGUSR1), lambda *_: ground.steal())


def send(ground: Ground) -> bool:
    """The host sends the signal to itself, and looks what the handler brought."""
    import signal

    if signal.getsignal(signal.SIGUSR1) in (signal.SIG_DFL, signal.SIG_IGN, None):
        return False
    signal.raise_signal(signal.SIGUSR1)
    return ground.SECRET in ground.loot


attack(
    "a signal handler is set by a number that is not an int",
    expect=Denied(("sandbox_",), or_nothing=True),
    after=send,
)(steal_later)


attacks_of(
    {
        "alarm": lambda ground: __import__("signal").alarm(Number(0, 1)),
        "timer": lambda ground: __import__("signal").setitimer(0, Number(0, 1)) and None,
        "which": lambda ground: __import__("signal").setitimer(Number(9, 0), 1) and None,
        "raised": lambda ground: __import__("signal").raise_signal(Number(0, 10)) and None,
    },
    "the host is ended by a signal whose number or time changes while it is checked: {}",
    expect=Denied(("sandbox_",), or_nothing=True, or_errors=("TypeError", "ValueError", "OSError", "itimer_error")),
    group="changing_",
    unguarded="would end the process",
)
