"""Worker processes of the runtime in forks of a process that has imported what they need.

For tests whose point is what workers do: importing is most of what a fresh one spends. Each is a process of its own,
with its own session, variables and folder, that runs the very code of a worker. Where the start of the process is the
point, a case is ``fresh_workers``.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
from functools import cache
from pathlib import Path

from democrai_sandbox.runtime.child_process import BASE_INTERPRETER
from democrai_sandbox.runtime.worker import bootstrap, process

PROGRAM = Path(__file__).with_name("worker_forking.py")
STARTING = PROGRAM.with_name("worker_starting.py")


@cache
def worker_forks():
    """Return the place of the process that forks, and the words that commands of workers begin with."""
    place = f"democrai-workers-{os.getpid()}"
    words = [BASE_INTERPRETER, "-I", "-S", "-B", "-X", "utf8", bootstrap.__file__, str(process._PACKAGES)]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + place)
        listener.listen(100)
        number = listener.fileno()
        forks = subprocess.Popen(
            [*words[:6], PROGRAM, str(number), *words[6:]],
            env={"PATH": os.environ["PATH"]},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[number],
        )
    atexit.register(forks.communicate)
    return place, words
