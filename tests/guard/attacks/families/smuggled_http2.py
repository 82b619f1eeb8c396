"""Handwritten HTTP/2 on a connection that was opened for permitted requests."""

from __future__ import annotations

from tests.guard.attacks.families.request_smuggling import sending
from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import LIMIT, REFUSED, here, network_attacks_of, open_connection, web
from tests.guard.attacks.peer_http import Reading

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PUSH, PING, GOODBYE, CONTINUATION, UNKNOWN = 0, 1, 3, 4, 5, 6, 7, 9, 77
END, COMPLETE, PADDED, PRIORITY = 1, 4, 8, 32


def frame(kind: int, flags: int = 0, stream: int = 0, data: bytes = b"") -> bytes:
    return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data


def text(value: bytes) -> bytes:
    """A string as it is, with its length in as many bytes as it takes."""
    if len(value) < 127:
        return bytes([len(value)]) + value
    rest, encoded = len(value) - 127, b"\x7f"
    while rest > 127:
        encoded += bytes([rest & 127 | 128])
        rest >>= 7
    return encoded + bytes([rest]) + value


def field(name: bytes, value: bytes, first: int = 0) -> bytes:
    """A header that is written out; with 0x40 it is also kept in the table."""
    return bytes([first]) + text(name) + text(value)


def head(
    ground: Ground, path: bytes = b"/secret", method: bytes = b"GET", host: bytes = b"", more: bytes = b""
) -> bytes:
    fields = {b":method": method, b":scheme": b"http", b":path": path, b":authority": host or here(ground, "HERE")}
    return b"".join(field(name, value) for name, value in fields.items()) + more


def write(*make, fresh: bool = True):
    """Frames behind the preface, on a new connection or behind a request in the old form."""

    def act(ground: Ground) -> None:
        import http.client

        if fresh:
            connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
            connection.connect()
        else:
            connection = open_connection(ground)
        ground.held.connection = connection
        connection.sock.sendall(PREFACE + frame(SETTINGS))
        for part in make:
            connection.sock.sendall(part(ground))

    return act


def request(path: bytes = b"/secret", flags: int = END | COMPLETE, **options: bytes):
    return lambda ground: frame(HEADERS, flags, 1, head(ground, path, **options))


def split(ground: Ground) -> bytes:
    block = head(ground)
    return (
        frame(HEADERS, END, 1, block[:7])
        + frame(CONTINUATION, 0, 1, block[7:20])
        + frame(CONTINUATION, COMPLETE, 1, block[20:])
    )


def padded(ground: Ground) -> bytes:
    return frame(HEADERS, END | COMPLETE | PADDED | PRIORITY, 1, b"\3" + bytes(5) + head(ground) + b"abc")


def kept_then_used(ground: Ground) -> bytes:
    """A harmless header whose value is the path; its value cannot be named by itself, but its name can be anything."""
    first = frame(HEADERS, END | COMPLETE, 1, head(ground, b"/allowed", more=field(b":path", b"/secret", 0x40)))
    rest = field(b":method", b"GET") + field(b":scheme", b"http") + field(b":authority", here(ground, "HERE")) + b"\xbe"
    return first + frame(HEADERS, END | COMPLETE, 3, rest)


def emptied(ground: Ground) -> bytes:
    """The table is emptied in the middle, so that an index means something else."""
    more = field(b":path", b"/secret", 0x40)
    return frame(HEADERS, END | COMPLETE, 1, b"\x20" + b"\x3f\xe1\x1f" + head(ground, b"/allowed")) + frame(
        HEADERS, END | COMPLETE, 3, head(ground, b"/allowed", more=more)
    )


network_attacks_of(
    {
        "path": write(request()),
        "behind_a_request": write(request(), fresh=False),
        "split": write(split),
        "padded": write(padded),
        "twice": write(request(b"/allowed"), request()),
        "table": write(kept_then_used),
        "emptied": write(emptied),
        "other_host": write(request(b"/allowed/secret", host=b"hidden.test")),
        "other_method": write(request(b"/allowed/secret", method=b"DELETE")),
        "method_with_path": write(request(b"/allowed", method=b"GET /secret HTTP/1.1")),
        "two_paths": write(
            lambda ground: frame(HEADERS, 5, 1, head(ground, b"/allowed", more=field(b":path", b"/secret")))
        ),
        "upper_case": write(
            lambda ground: frame(HEADERS, 5, 1, head(ground, b"/allowed", more=field(b":PATH", b"/secret")))
        ),
        "connect": write(
            lambda ground: frame(HEADERS, 4, 1, field(b":method", b"CONNECT") + field(b":authority", b"/secret"))
        ),
        "protocol": write(request(b"/allowed", method=b"CONNECT", more=field(b":protocol", b"/secret"))),
        "dots": write(request(b"/allowed/../secret")),
        "pushed": write(lambda ground: frame(PUSH, 4, 1, bytes([0, 0, 0, 2]) + head(ground))),
    },
    "a request is written in HTTP/2, by hand: {}",
    expect=REFUSED,
    group="request_",
)
INJECTED = b"x\r\n\r\nGET /secret HTTP/1.1\r\nHost: x\r\n\r\n"
network_attacks_of(
    {
        "value": write(lambda ground: frame(HEADERS, 5, 1, head(ground, b"/allowed", more=field(b"x", INJECTED)))),
        "name": write(lambda ground: frame(HEADERS, 5, 1, head(ground, b"/allowed", more=field(INJECTED, b"x")))),
        "method": write(request(b"/allowed", method=b"GET\r\n/secret")),
        "host_header": write(
            lambda ground: frame(HEADERS, 5, 1, head(ground, b"/allowed", more=field(b"Host", b"hidden.test/secret")))
        ),
    },
    "a header in HTTP/2 holds what a front server writes into HTTP/1.1: {}",
    expect=REFUSED,
    group="header_",
)
BODY = b"0\r\n\r\nGET /secret HTTP/1.1\r\nHost: x\r\n\r\n"
network_attacks_of(
    {
        "coding": write(
            request(b"/allowed", COMPLETE, method=b"POST", more=field(b"transfer-encoding", b"chunked")),
            lambda ground: frame(DATA, END, 1, BODY),
        ),
        "length": write(
            request(b"/allowed", COMPLETE, method=b"POST", more=field(b"content-length", b"0")),
            lambda ground: frame(DATA, END, 1, BODY),
        ),
        "connection": write(
            request(b"/allowed", COMPLETE, method=b"POST", more=field(b"connection", b"transfer-encoding")),
            lambda ground: frame(DATA, END, 1, BODY),
        ),
    },
    "a body in HTTP/2 is framed in a way that a front server passes on in HTTP/1.1: {}",
    expect=REFUSED,
    rules=sending,
    reading=Reading(sends=True),
    group="body_",
)
RAW = b"\r\nGET /secret HTTP/1.1\r\nHost: x\r\n\r\n"
network_attacks_of(
    {
        "data": write(lambda ground: frame(DATA, 0, 1, RAW)),
        "data_of_finished": write(request(b"/allowed"), lambda ground: frame(DATA, END, 1, RAW)),
        "unknown_frame": write(lambda ground: frame(UNKNOWN, 0, 0, RAW)),
        "goodbye": write(lambda ground: frame(GOODBYE, 0, 0, bytes(8) + RAW)),
        "settings": write(lambda ground: frame(SETTINGS, 0, 0, RAW.ljust(42))),
        "behind_a_request": write(lambda ground: frame(DATA, 0, 1, RAW), fresh=False),
    },
    "a server that knows no HTTP/2 finds a request in the frames: {}",
    expect=REFUSED,
    group="frame_",
)


def before_complete(ground: Ground) -> None:
    """Half a preface, and then something else."""
    sock = open_connection(ground).sock
    sock.sendall(b"PRI * HTTP/2.0\r\n\r\n")
    sock.sendall(here(ground, "GET /secret HTTP/1.1\r\nHost: HERE\r\n\r\n"))


network_attacks_of(
    {"half": before_complete}, "the preface of HTTP/2 is not what it seems: {}", expect=REFUSED, group="preface_"
)
