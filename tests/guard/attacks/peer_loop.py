"""One thread of the servers' process: accepts, reads, answers, and remembers what should not have come."""

from __future__ import annotations

import json
import os
import select
import socket
import stat

from tests.guard.attacks.peer_http import Reading, Request, is_permitted, take_request

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TEXT = "HTTP/1.1 {} X\r\nContent-Length: {}\r\n{}\r\n{}"


class Plain:
    """A connection without TLS."""

    def __init__(self, label: str, sock: socket.socket) -> None:
        self.label, self.sock = label, sock
        self.data, self.name = bytearray(), None
        self.raw = False
        self.rests = False

    def feed(self, received: bytes) -> bytes:
        """What the bytes off the wire mean."""
        return received

    def send(self, data: bytes) -> None:
        """Answer; whoever does not read it goes without."""
        try:
            self.sock.send(data)
        except OSError:
            pass


class Secure(Plain):
    """A connection with TLS, through memory."""

    def __init__(self, label: str, sock: socket.socket, context) -> None:
        import ssl

        super().__init__(label, sock)
        self.inward, self.outward = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self.inward, self.outward, server_side=True)
        self.object.peer = self
        self.ready = False

    def feed(self, received: bytes) -> bytes:
        self.inward.write(received)
        clear = b""
        try:
            if not self.ready:
                self.object.do_handshake()
                self.ready = True
            while True:
                part = self.object.read(65536)
                if not part:
                    break
                clear += part
        except OSError:
            pass  # more is to come, or the client does not know how to
        super().send(self.outward.read())
        return clear

    def send(self, data: bytes) -> None:
        try:
            self.object.write(data)
        except OSError:
            return
        super().send(self.outward.read())


class Loop:
    """All servers of an attack."""

    def __init__(self, listeners, control, secret: str, reading: Reading, hosts: frozenset[str]) -> None:
        self.secret, self.reading, self.hosts = secret, reading, hosts
        self.control = control
        self.hits: list[str] = []
        self.connections: dict[int, Plain] = {}
        self.listeners = {listener.fileno(): (label, listener) for label, listener in listeners}
        self.poll = select.poll()
        for number in (control.fileno(), *self.listeners):
            self.poll.register(number, select.POLLIN)
        self.context = None

    def run(self) -> None:
        """Serve until the host hangs up."""
        while True:
            ready = self.step(None)
            if self.control.fileno() not in ready:
                continue
            order = self.control.recv(100)
            if not order:
                return
            self.settle()
            if order.startswith(b"forget"):
                self.hits.clear()
            self.control.sendall(json.dumps(self.hits).encode() + b"\n")

    def step(self, timeout: float | None) -> set[int]:
        ready = {number for number, _ in self.poll.poll(timeout)}
        for number in ready:
            if number in self.listeners:
                self.accept(*self.listeners[number])
            elif number in self.connections:
                self.receive(self.connections[number])
        return ready

    def wake(self) -> None:
        """Read again what comes over the connections that were not read."""
        for connection in self.connections.values():
            if connection.rests:
                connection.rests = False
                self.poll.register(connection.sock.fileno(), select.POLLIN)

    def settle(self) -> None:
        """Take in everything that has come, also where nothing was read for a while."""
        self.wake()
        while self.step(0) - {self.control.fileno()}:
            self.wake()
            self.step(5)

    def accept(self, label: str, listener: socket.socket) -> None:
        if listener.type == socket.SOCK_DGRAM:
            self.take_datagram(label, listener)
            return
        sock, _ = listener.accept()
        sock.setblocking(False)
        if label in ("other", "banner", "plain"):
            self.hits.append(f"{label}: a connection")
        if label in ("banner", "plain"):
            sock.send(f"220 {self.secret}\r\n".encode())
        if label == "banner":
            sock.close()
            return
        connection = Secure(label, sock, self.secure_context()) if label == "tls" else Plain(label, sock)
        self.connections[sock.fileno()] = connection
        self.poll.register(sock.fileno(), select.POLLIN)

    def take_datagram(self, label: str, listener: socket.socket) -> None:
        data, sender = listener.recvfrom(65536)
        if label == "names":
            from tests.guard.attacks.peer_names import answer

            self.hits += answer(listener, data, sender)
            return
        self.hits.append(f"{label}: a datagram")
        try:
            listener.sendto(self.secret.encode(), sender)
        except (OSError, TypeError):
            pass  # the sender has no address, or has gone

    def secure_context(self):
        if self.context is None:
            from tests.guard.attacks.peer_tls import server_context

            self.context = server_context()
        return self.context

    def receive(self, connection: Plain) -> None:
        if connection.label == "taker":
            self.take_descriptor(connection)
            return
        try:
            received = connection.sock.recv(1 << 20)
        except OSError:
            received = b""
        speaks_tls = received[:1] == b"\x16"
        if not received or (speaks_tls and connection.label == "other"):
            self.close(connection)
            return
        connection.data += connection.feed(received)
        self.read_requests(connection)

    def take_descriptor(self, connection: Plain) -> None:
        """Whether somebody handed over a descriptor that leads to the secret."""
        data, numbers, *_ = socket.recv_fds(connection.sock, 99, 9)
        for number in numbers:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, b"GET /secret HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            elif self.secret.encode() in os.read(number, 999):
                self.hits.append("taker: a descriptor of the host")
        if not data:
            self.close(connection)

    def close(self, connection: Plain) -> None:
        number = connection.sock.fileno()
        self.poll.unregister(number)
        del self.connections[number]
        connection.sock.close()

    def read_requests(self, connection: Plain) -> None:
        if connection.data.startswith(PREFACE):
            connection.raw = True
        if connection.raw:
            if b"/secret" in connection.data:
                self.hits.append(f"{connection.label}: /secret in frames")
            return
        while taken := take_request(connection.data, self.reading):
            request, body = taken
            self.answer(connection, request, body)
            if connection.rests:
                return

    def answer(self, connection: Plain, request: Request, body: bytes) -> None:
        """Say what there is to say at that path, and note what should not have been asked."""
        what = f"{connection.label}: {request.method} {request.target} Host: {request.host}"
        if connection.label == "proxy":
            self.answer_as_proxy(connection, request, what)
            return
        if request.method in ("CONNECT", "PRI"):
            connection.send(TEXT.format(405, 0, "", "").encode())
            return
        permitted = connection.label != "other" and is_permitted(request, self.reading, self.hosts)
        if self.reading.routes_by == "name" and connection.label == "tls":
            permitted = permitted and connection.name in (None, *self.hosts)
        if request.values("expect") and self.reading.refuses_expectation:
            connection.send(TEXT.format(417, 0, "", "").encode())
            return
        if not permitted:
            self.hits.append(what)
        elif request.target.startswith("/allowed/to?"):
            place = request.target.partition("?")[2]
            connection.send(TEXT.format(302, 0, f"Location: {place}\r\n", "").encode())
            return
        elif request.target.startswith("/allowed/again?"):
            place = request.target.partition("?")[2]
            connection.send(TEXT.format(307, 0, f"Location: {place}\r\n", "").encode())
            return
        elif request.target == "/allowed/socket" and request.values("upgrade"):
            frame = b"\x81" + bytes([len(self.secret)]) + self.secret.encode()
            connection.send(b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n" + frame)
            connection.raw = True
            return
        elif request.target == "/allowed/slow":
            connection.rests = True
            self.poll.unregister(connection.sock.fileno())
            return
        elif request.target == "/allowed/wake":
            self.wake()
        text = "public" if permitted else self.secret
        connection.send(TEXT.format(200, len(text), "", "" if request.method == "HEAD" else text).encode())

    def answer_as_proxy(self, connection: Plain, request: Request, what: str) -> None:
        """A proxy that takes everybody anywhere; only the way to the usual place is harmless."""
        if request.method == "CONNECT":
            self.hits.append(what)
            connection.send(b"HTTP/1.1 200 X\r\n\r\n")
            return
        if not is_permitted(request, self.reading, self.hosts) or "/secret" in request.target:
            self.hits.append(what)
        connection.send(TEXT.format(200, len(self.secret), "", self.secret).encode())
