"""Landlock audit records: a second witness, which shows that the tracer misses nothing.

The calls of the file modules are made once more, under a Landlock ruleset that grants what the guard grants. The kernel
writes a record for each access that Landlock refuses; each of their paths must be in the tracer's report as well. One
access without a guard shows that records arrive.
"""

from __future__ import annotations

import re
import socket
import struct
import threading

from tests.oracle import callables
from tests.oracle.judge import LATE

GET, SET, ACCESS = 1000, 1001, 1423
READLOG = 1
MODULES = ("posix", "_io", "_sqlite3", "_ssl", "_socket", "_multiprocessing", "_posixshmem", "readline")


class Records:
    """The Landlock records that the kernel writes while this is open."""

    def __enter__(self):
        self.paths, self.count = set(), 0
        self.control = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)
        self.listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)
        self.listener.bind((0, READLOG))
        self.listener.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
        self.listener.settimeout(0.2)
        self.was = self._status()
        self._set(1)
        self.going = True
        self.thread = threading.Thread(target=self._read)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self._set(self.was)
        self.going = False
        self.thread.join()
        self.listener.close()
        self.control.close()

    def _status(self):
        self.control.send(struct.pack("=IHHII", 16, GET, 1, 1, 0))
        while True:
            answer = self.control.recv(1 << 16)
            length, kind = struct.unpack_from("=IH", answer)
            if kind == GET:
                return struct.unpack_from("=II", answer, 16)[1]

    def _set(self, enabled):
        body = struct.pack("=II", 1, enabled) + bytes(32)
        self.control.send(struct.pack("=IHHII", 16 + len(body), SET, 1, 2, 0) + body)

    def _read(self):
        while True:
            try:
                message = self.listener.recv(1 << 16)
            except TimeoutError:
                if not self.going:
                    return
                continue
            if struct.unpack_from("=IH", message)[1] == ACCESS:
                self.count += 1
                text = message[16:].decode(errors="replace")
                for quoted, plain in re.findall(r' path=(?:"([^"]*)"|([0-9A-F]+))', text):
                    self.paths.add(quoted or bytes.fromhex(plain).decode(errors="replace"))


def cross_check(python, work):
    """Return a sentence about the records; raise if the tracer missed what one of them names."""
    try:
        with Records() as records:
            run = callables.Run(python, work, landlock=True, only_modules=MODULES)
    except OSError as error:
        return f"no Landlock audit records on this machine: {error}"
    if not run.calls or not any(path == run.places["SECRET"] for path in records.paths):
        raise RuntimeError(f"{records.count} Landlock records in {run.calls} calls: this shows nothing")
    seen = set()
    with open(run.report_path) as report:
        for line in report:
            seen.update(part[1:] for part in line.rstrip("\n").split("\t")[4:] if part[0] == "P")
    base = run.places["BASE"]
    ours = {path for path in records.paths if path.startswith(base) or path.startswith("/dev/shm")}
    missed = {
        path for path in ours if not any(name == path or name.startswith(path.rstrip("/") + "/") for name in seen)
    }
    if missed:
        raise RuntimeError(f"Landlock refused what the tracer did not see: {sorted(missed)}")
    return f"{records.count} Landlock audit records in {run.calls} calls, {len(ours)} places, all seen by the tracer"
