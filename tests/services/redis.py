"""A real Redis server of one's own, on a free port of the loopback."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time

import pytest

from tests.services.ports import kept_port


class RedisServer:
    """Keeps nothing on disk: a server that is killed forgets everything, unless it is told to keep a log."""

    def __init__(self, folder, *, keeps=False, password="", address="127.0.0.1"):
        self._program = shutil.which("redis-server")
        if self._program is None:
            pytest.skip("Redis is not installed")
        self.folder = folder
        self.keeps = keeps
        self.password = password
        self.address = address
        self._keeper = kept_port()  # also while the server is down: it comes back on the same one
        self.port = self._keeper.getsockname()[1]
        self.process = None

    @property
    def url(self):
        secret = f":{self.password}@" if self.password else ""
        return f"redis://{secret}{self.address}:{self.port}/0"

    def start(self):
        """Start it, on the same port each time; return when it answers."""
        settings = {
            "port": self.port,
            "bind": self.address,
            "dir": self.folder,
            "save": "",
            "appendonly": "yes" if self.keeps else "no",
            "appendfsync": "always",
            "daemonize": "no",
            "enable-debug-command": "yes",
        }
        if self.password:
            settings["requirepass"] = self.password
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        with open(self.folder / "redis.log", "ab") as log:
            self.process = subprocess.Popen([self._program, *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._wait()
        return self

    def command(self, *words):
        """Send one command of plain words; return the raw answer."""
        with socket.create_connection((self.address, self.port), timeout=5) as link:
            parts = [str(word).encode() if not isinstance(word, bytes) else word for word in words]
            if self.password:
                link.sendall(_packed([b"AUTH", self.password.encode()]))
                assert link.recv(100) == b"+OK\r\n"
            link.sendall(_packed(parts))
            return link.recv(65536)

    def kill(self):
        """End it with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self):
        """End it, if it runs, for good."""
        self._end(signal.SIGKILL)
        self._keeper.close()

    def signal(self, number):
        self.process.send_signal(number)

    def _end(self, number):
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(timeout=10)
            self.process = None

    def _wait(self):
        deadline = time.monotonic() + 30
        while True:
            try:
                if self.command("PING").startswith(b"+PONG"):
                    return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "redis.log").read_text(errors="replace")[-2000:])
            time.sleep(0.02)


def _packed(parts):
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
