"""Server of the network cases: one process with one loop, which runs as long as its standard input is open."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable

HOST = "127.0.0.1"
LIFETIME = 2 * 3600
"""Seconds after which it ends in any case: far longer than a run."""
MOST = 1024
"""Maximum connections: a case that does not close its own must not use up the machine's descriptors."""
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n"

Answer = Callable[[bytes], bytes]


def _http(data: bytes) -> bytes:
    """Answer HTTP requests without a body, one for each end of a head."""
    return RESPONSE * data.count(b"\r\n\r\n")


SERVICES: dict[str, Answer] = {"echo": bytes, "http": _http}


class Server:
    """All services, level-triggered on one poll object: only one client is active at a time."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._listeners: dict[int, tuple[socket.socket, Answer]] = {}
        self._connections: dict[int, tuple[socket.socket, Answer]] = {}
        self._kept: list[socket.socket] = []
        self.ports = {name: self._listen(answer) for name, answer in SERVICES.items()}
        # The first has no listener and the second no reader, so that a refusal and a full buffer cost the same each
        # time.
        self.ports["closed"] = self._bound(socket.SOCK_STREAM)
        self.ports["datagrams"] = self._bound(socket.SOCK_DGRAM)

    def run(self, lifeline: int) -> None:
        """Serve until the lifeline ends."""
        self._poll.register(lifeline, select.EPOLLIN)
        while True:
            for number, _ in self._poll.poll():
                if number in self._connections:
                    self._answer(number)
                elif number in self._listeners:
                    self._accept(number)
                else:
                    return

    def _listen(self, answer: Answer) -> int:
        listener = socket.create_server((HOST, 0))
        self._listeners[listener.fileno()] = (listener, answer)
        self._poll.register(listener.fileno(), select.EPOLLIN)
        return int(listener.getsockname()[1])

    def _bound(self, kind: socket.SocketKind) -> int:
        sock = socket.socket(socket.AF_INET, kind)
        sock.bind((HOST, 0))
        self._kept.append(sock)
        return int(sock.getsockname()[1])

    def _accept(self, number: int) -> None:
        listener, answer = self._listeners[number]
        connection, _ = listener.accept()
        if len(self._connections) >= MOST:
            connection.close()
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[connection.fileno()] = (connection, answer)
        self._poll.register(connection.fileno(), select.EPOLLIN)

    def _answer(self, number: int) -> None:
        connection, answer = self._connections[number]
        try:
            data = connection.recv(65536)
            if data:
                connection.sendall(answer(data))
                return
        except OSError:
            pass
        # Closing also removes it from the poll object.
        del self._connections[number]
        connection.close()


def main() -> None:
    """Print the processor and the ports as one line of JSON, and serve."""
    signal.alarm(LIFETIME)
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})
    server = Server()
    print(json.dumps({"cpu": cpu, "ports": server.ports}), flush=True)
    server.run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
