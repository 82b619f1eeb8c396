"""The world of the traced process as the host makes it: places, descriptors, a process and servers."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import threading

PORT = 24242
BEGIN, END, LATE = 0x51000000, 0x52000000, 0x800000


def mark(number, where=BEGIN):
    """Tell the tracer that a window begins or ends; see tracer.c."""
    try:
        os.sched_get_priority_max(where + number)
    except OSError:
        pass


def lay_out(base):
    """Make the places; return their names."""
    places = {
        "BASE": base,
        "ROOT": f"{base}/root",
        "OUTSIDE": f"{base}/outside",
        "SECRET": f"{base}/outside/secret.txt",
        "SECRET_BYTES": os.fsencode(f"{base}/outside/secret.txt"),
        "MISSING": f"{base}/outside/missing",
        "UNIX_OUTSIDE": f"{base}/outside/socket",
        "PLANTED": f"{base}/outside/planted.db",
        "INSIDE": f"{base}/root/inside.txt",
        "INSIDE_FOLDER": f"{base}/root/folder",
        "DOTTED": f"{base}/root/folder/../../outside/secret.txt",
        "LINK": f"{base}/root/link",
        "FIFO": f"{base}/root/fifo",
    }
    for name in ("root/folder", "outside/folder", "tmp", "home"):
        os.makedirs(f"{base}/{name}", exist_ok=True)
    refresh(places)
    return places


def refresh(places, *, outside=True):
    """Make again what a call may have changed in the folder that is granted, or outside."""
    for name in ("ROOT", "OUTSIDE") if outside else ("ROOT",):
        os.chmod(places[name], 0o755)
    for name in os.listdir(places["ROOT"]):
        path = os.path.join(places["ROOT"], name)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o755)
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.remove(path)
    os.makedirs(places["INSIDE_FOLDER"], exist_ok=True)
    os.symlink(places["SECRET"], places["LINK"])
    os.mkfifo(places["FIFO"])
    for name in ("INSIDE", "SECRET") if outside else ("INSIDE",):
        with open(places[name], "w") as file:
            file.write("CONTENT of " + name)


def host_objects(places):
    """Open what belongs to the host: descriptors, servers on the loopback, a process; return their names."""
    listening = [socket.socket(socket.AF_INET), socket.socket(socket.AF_INET6), socket.socket(socket.AF_UNIX)]
    try:
        listening[0].bind(("127.0.0.1", PORT))  # always the same one, so that calls are the same in every run
    except OSError:
        listening[0].bind(("127.0.0.1", 0))
    port = listening[0].getsockname()[1]
    listening[1].bind(("::1", port))
    listening[2].bind(places["UNIX_OUTSIDE"])
    for one in listening:
        one.listen()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    pair, pipe = socket.socketpair(), os.pipe()
    victim = os.fork()
    if victim == 0:
        while True:
            signal.pause()
    held = [listening, datagrams, pair]
    return held, {
        "PORT": port,
        "UDP_PORT": datagrams.getsockname()[1],
        "HOST_FILE": os.open(places["SECRET"], os.O_RDWR),
        "HOST_FOLDER": os.open(places["OUTSIDE"], os.O_RDONLY),
        "HOST_SOCKET": pair[0].fileno(),
        "HOST_PIPE": pipe[0],
        "HOST_PIPE_WRITE": pipe[1],
        "VICTIM": victim,
    }


class Pulse:
    """A thread of the host that shows whether the interpreter lives, and interrupts calls that only wait."""

    def __init__(self, shared):
        self.shared = shared  # memory: call under way (8 bytes), beats (8 bytes)
        self.main = threading.main_thread().ident
        signal.signal(signal.SIGUSR1, _interrupt)
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self):
        pause = select.poll()
        seen, since = None, 0
        while True:
            pause.poll(50)
            beats = int.from_bytes(self.shared[8:16], "little") + 1
            self.shared[8:16] = beats.to_bytes(8, "little")
            now = self.shared[0:8]
            seen, since = (now, since) if now == seen else (now, beats)
            if beats - since > 5:
                since = beats
                signal.pthread_kill(self.main, signal.SIGUSR1)


class Interrupted(BaseException):
    """A call that waited was interrupted."""


ACTIVE = [False]


def _interrupt(number, frame):
    if ACTIVE[0]:
        raise Interrupted
