"""Example servers as forks of one process that has imported the library: ``python serving.py server.py``.

Each line of its input has the arguments of a server; each line of its output is that server's port. They end with it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys


def main(example):
    """Start servers until the input ends."""
    found = importlib.util.spec_from_file_location("server", example)
    server = importlib.util.module_from_spec(found)
    sys.modules["server"] = server
    found.loader.exec_module(server)
    started = []
    try:
        for line in sys.stdin:
            reader, writer = os.pipe()
            started.append(os.fork())
            if started[-1] == 0:
                os.close(reader)
                os.dup2(writer, 1)
                serve(server, line.rstrip("\n").split("\t"))
            os.close(writer)
            with open(reader) as told:
                os.write(1, told.readline().encode())
    finally:
        for process in started:
            if process:
                os.kill(process, signal.SIGKILL)


def serve(server, arguments):
    """Run one of the servers."""
    sys.argv = ["server.py", *arguments]
    try:
        server.main()
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
