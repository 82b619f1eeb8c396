"""The servers that the network attacks are played against: a process next to the attacked one, on loopback only.

They run in a fork, so that nothing a subject does to its own process changes what they saw. The host asks them for it
over a pair of sockets: whoever is asked first takes in everything that has arrived, so no attack has to be waited for.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import sys

from tests.guard.attacks.peer_http import Reading
from tests.guard.attacks.peer_loop import Loop

TRIES = 5
HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]", "::1", "front.test", "api.test", "rebound.test", "db"})


class Peers:
    """What the host knows of its peers: their ports and paths, and how to ask them what they saw.

    `web` is the server of the usual rule, `other` one that no rule names, `twin` has the port of `web` at another
    address. Any connection to the last two is a hit; on `web` a request that the usual rule does not cover is.
    """

    def __init__(self, base: str, secret: str, *, reading: Reading | None = None, more: tuple[str, ...] = ()) -> None:
        self.base = base
        self.listeners: list[tuple[str, socket.socket]] = []
        for name in ("usual", *more):
            self._add(name)
        self.seen: list[str] = []
        self.control, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self.control.close()
            self._serve(theirs, secret, reading or Reading())
        theirs.close()
        for _, listener in self.listeners:
            listener.close()

    def _add(self, name: str) -> None:
        """Open servers; some need one port for two of them, and another process may have it for the second."""
        before = len(self.listeners)
        for _ in range(TRIES):
            try:
                getattr(self, f"_add_{name}")()
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                while len(self.listeners) > before:
                    self.listeners.pop()[1].close()
            else:
                return
        raise OSError("no free ports")

    def _add_usual(self) -> None:
        self.web = self._listen("web", "127.0.0.1", 0)
        self.other = self._listen("other", "127.0.0.1", 0)
        self.twin = self._listen("other", "127.0.0.2", self.web)

    def _serve(self, control: socket.socket, secret: str, reading: Reading) -> None:
        """The life of the other process; it ends when the host has gone."""
        try:
            Loop(self.listeners, control, secret, reading, HOSTS).run()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)

    def _listen(self, label: str, address: object, port: int, kind: int = socket.SOCK_STREAM) -> int:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, kind)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        return self._take(label, listener, kind).getsockname()[1]

    def _take(self, label: str, listener: socket.socket, kind: int) -> socket.socket:
        if kind != socket.SOCK_DGRAM:
            listener.listen(64)
        listener.setblocking(False)
        self.listeners.append((label, listener))
        return listener

    def _add_udp(self) -> None:
        """The ports of `web` and of `other` for datagrams too; when somebody has them, all begins anew."""
        for _ in range(TRIES):
            try:
                for port in (self.web, self.other):
                    self._listen("other", "127.0.0.1", port, socket.SOCK_DGRAM)
            except OSError:
                while self.listeners:
                    self.listeners.pop()[1].close()
                self._add("usual")
            else:
                return

    def _add_banner(self) -> None:
        """A server of the kind that speaks first."""
        self.banner = self._listen("banner", "127.0.0.1", 0)

    def _add_proxy(self) -> None:
        self.proxy = self._listen("proxy", "127.0.0.1", 0)

    def _add_tls(self) -> None:
        self.tls = self._listen("tls", "127.0.0.1", 0)

    def _add_six(self) -> None:
        """The port of `other` on the IPv6 loopback address too."""
        self._listen("other", "::1", self.other)

    def _add_any(self) -> None:
        """A port that listens on every address of the machine."""
        self.any = self._listen("other", "0.0.0.0", 0)

    def _add_unix(self) -> None:
        """Sockets in the file system, one where the subject has no rights, one in the temp directory, and so on."""
        self.sockets = {
            "outside": f"{self.base}/outside/s",
            "protected": f"{self.base}/inside/holder/vault/s",
            "temporary": f"{os.environ['TMPDIR']}/docker.sock",
            "readonly": f"{self.base}/readonly/s",
            "abstract": f"\0attack-{os.getpid()}",
        }
        self.datagrams = {name: f"{path}d" for name, path in self.sockets.items()}
        for paths, kind in ((self.sockets, socket.SOCK_STREAM), (self.datagrams, socket.SOCK_DGRAM)):
            for path in paths.values():
                listener = socket.socket(socket.AF_UNIX, kind)
                listener.bind(path)
                self._take("plain", listener, kind)

    def _add_taker(self) -> None:
        """Another process that the subject may talk to, and that takes descriptors."""
        self.taker = f"{self.base}/inside/take"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.taker)
        self._take("taker", listener, socket.SOCK_STREAM)

    def _add_town(self) -> None:
        """In a network of the attack's own: a name server, and one port at the addresses that names lead to."""
        from tests.guard.attacks.peer_names import ADDRESSES, GOOD

        self._listen("names", "127.0.0.53", 53, socket.SOCK_DGRAM)
        self.town = self._listen("town", GOOD, 0)
        for address in {"127.0.0.1", "127.0.0.2", "::1", *ADDRESSES} - {GOOD}:
            self._listen("other", address, self.town)

    def ask(self, word: str) -> object:
        """Send an order to the servers and wait for their answer."""
        self.control.sendall(word.encode() + b"\n")
        data = b""
        while not data.endswith(b"\n"):
            if not select.select([self.control], [], [], 60)[0]:
                raise TimeoutError("the servers do not answer")
            data += self.control.recv(65536)
        return json.loads(data)

    def hits(self) -> bool | None:
        """Whether something reached them that should not have."""
        self.seen = self.ask("report")
        if self.seen:
            os.write(2, f"reached: {self.seen}\n".encode())
        return True if self.seen else None

    def forget(self) -> None:
        """What has come until now was the host's own doing."""
        self.ask("forget")
