"""``python -m demo [folder]``: serve the examples from a folder that is made anew, and tell the story until Ctrl-C."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import standin

from .house import House, NotStarted
from .story import Story

FOLDER = ".demo"


def main(arguments: list[str]) -> int:
    """Prepare, serve, tell, and wait."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(arguments[0] if arguments else FOLDER).absolute()
    world = standin.start()
    try:
        with House(folder, world) as house:
            print(f"The console is at    {house.url}")
            print(f"Sign in as           {house.admin}   with the password   {house.password}")
            print(f"Everything is in     {folder}, made anew at each start; the log is {house.log.name} in it.\n")
            Story(house, world).tell()
            print("\nThe console stays open. Ctrl-C ends it.", flush=True)
            house.wait()
    except NotStarted as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nEnded.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
