"""What the guard alone does not stop on the network. A row that no longer succeeds fails the test, and is to be moved."""

from __future__ import annotations

from tests.guard.attacks.class_33_wire_text import sending
from tests.guard.attacks.kit import Ground, Residual
from tests.guard.attacks.network import here, network_attack, open_connection, request
from tests.guard.attacks.peer_http import Reading

FRAMES = Residual(
    why="HTTP/2 is let through once a connection was opened for a permitted request: its frames are checked by the "
    "adapters of the clients only, so frames made by hand reach other paths of the same server",
    closes="reading HTTP/2 frames on the wire, or refusing the preface where no rule covers the whole server",
)
SERVER = Residual(
    why="the server does not read the body that it was promised, and takes it for the next request",
    closes="nothing on this side: the request is well-formed, and permitted",
)


@network_attack("HTTP/2 frames are made by hand", expect=FRAMES)
def http2_by_hand(ground: Ground) -> None:
    def literal(name: bytes, value: bytes) -> bytes:
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

    def frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
        return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data

    fields = {b":method": b"GET", b":scheme": b"http", b":path": b"/secret", b":authority": here(ground, "HERE")}
    head = b"".join(literal(name, value) for name, value in fields.items())
    sock = open_connection(ground).sock
    sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(1, 5, 1, head))


@network_attack(
    "a server does not read the body of a permitted request",
    expect=SERVER,
    rules=sending,
    reading=Reading(length="none", sends=True),
)
def body_not_read(ground: Ground) -> None:
    hidden = request(ground, "/secret")
    sock = open_connection(ground).sock
    sock.sendall(request(ground, "/allowed", "POST", f"Content-Length: {len(hidden)}\r\n") + hidden)
