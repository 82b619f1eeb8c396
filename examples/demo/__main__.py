"""``python -m demo [folder]``: serve the examples from a folder that is made anew, and tell the story until Ctrl-C."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import standin

from .house import House, NotStarted
from .story import Story

FOLDER = ".demo"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: list[str]) -> int:
    """Prepare, serve, tell, and wait; at the end everything is removed."""
    for number in ENDING:
        signal.signal(number, _interrupt)
    folder = Path(arguments[0] if arguments else FOLDER).absolute()
    try:
        _show(folder)
    except NotStarted as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"{folder} cannot be used: {error.strerror}; name another folder, or free some space", file=sys.stderr)
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be gone
            print("\nEnded.", flush=True)
        return 0
    return 1


def _show(folder: Path) -> NoReturn:
    """Serve until the server ends, which it should not, or until a signal."""
    world = standin.start()
    with House(folder, world) as house:
        print(f"The console is at    {house.url}")
        print(f"Sign in as           {house.admin}   with the password   {house.password}")
        print(f"Everything is in     {folder}, until the end; the log is {house.log.name} in it.\n")
        Story(house, world).tell()
        print("\nThe console stays open. Ctrl-C ends it.", flush=True)
        house.wait()


def _interrupt(*_: object) -> NoReturn:
    """Leave in order, once: a second signal must not keep the server from being ended."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
