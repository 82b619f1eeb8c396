"""Application for the helper: ``application.py UID GID``. Runs code that arrives as lines of JSON."""

from __future__ import annotations

import ctypes
import encodings.idna
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback

libc = ctypes.CDLL(None, use_errno=True)


def connect(path):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(20)
    end = time.monotonic() + 20
    while True:
        try:
            connection.connect(path)
        except BlockingIOError:  # a full backlog, on a socket with a timeout
            assert time.monotonic() < end
            time.sleep(0.005)
        else:
            return connection


def answer_of(connection):
    """Read a whole line; return None without an answer."""
    data = b""
    try:
        while not data.endswith(b"\n"):
            part = connection.recv(65536)
            if not part:
                break
            data += part
    except OSError:
        pass
    return json.loads(data) if data.endswith(b"\n") else None


def ask_raw(path, data):
    with connect(path) as connection:
        try:
            connection.sendall(data)
        except OSError:
            pass  # refused before it was sent
        return answer_of(connection)


def ask(path, action, **fields):
    return ask_raw(path, json.dumps({"action": action, "version": 1, **fields}).encode() + b"\n")


def ask_with_descriptor(path, action, **fields):
    with connect(path) as connection:
        connection.sendall(json.dumps({"action": action, "version": 1, **fields}).encode() + b"\n")
        data, descriptors, _, _ = socket.recv_fds(connection, 65536, 4)
        return json.loads(data), descriptors


def rename(name):
    libc.prctl(15, name.encode(), 0, 0, 0)


def in_child(act, *, generations=1, orphaned=False):
    """Return the result of ``act`` in a descendant; the parent of an orphan has ended before it acts."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            for _ in range(generations - 1):
                before = os.getpid()
                child = os.fork()
                if child:
                    if not orphaned:
                        os.waitpid(child, 0)
                    os._exit(0)
            if orphaned:
                end = time.monotonic() + 10
                while os.getppid() == before and time.monotonic() < end:
                    time.sleep(0.01)
            os.write(writing, json.dumps(act()).encode())
        except BaseException:
            os.write(writing, json.dumps({"failed": traceback.format_exc()}).encode())
        finally:
            os._exit(0)
    os.close(writing)
    data = b""
    while part := os.read(reading, 65536):
        data += part
    os.close(reading)
    os.waitpid(pid, 0)
    return json.loads(data)


def main():
    user, group = int(sys.argv[1]), int(sys.argv[2])
    if user:
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    print(json.dumps("ready"), flush=True)
    known = globals()
    for line in sys.stdin:
        try:
            exec(json.loads(line), known)
            result = known.get("result")
        except BaseException:
            result = {"failed": traceback.format_exc()}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
