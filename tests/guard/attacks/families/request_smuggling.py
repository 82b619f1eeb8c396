"""Request smuggling: bytes that the guard and the server read differently.

All of them are written to a connection over which a permitted request has gone already.
"""

from __future__ import annotations

from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import (
    LIMIT,
    REFUSED,
    here,
    network_attack,
    network_attacks_of,
    one_path,
    open_connection,
    peers,
    url,
    web,
)
from tests.guard.attacks.peer_http import Reading

HIDDEN = "GET /secret HTTP/1.1\r\nHost: HERE\r\n\r\n"
GOOD = "GET /allowed HTTP/1.1\r\nHost: HERE\r\n"
POST = "POST /allowed HTTP/1.1\r\nHost: HERE\r\n"


def sending(ground: Ground) -> list[tuple[str, str]]:
    """The subject may also send to the path, with a body."""
    return [*one_path(ground), ("send", url(ground))]


def write(text: str, *more: str):
    """Send texts over an open connection, by its socket."""

    def act(ground: Ground) -> None:
        connection = open_connection(ground)
        for part in (text, *more):
            connection.sock.sendall(here(ground, part))

    return act


def with_body(head: str, body: str = HIDDEN):
    """A head with a body that is another request."""

    def act(ground: Ground) -> None:
        content = here(ground, body)
        head_text = head.replace("SIZE", str(len(content))).replace("HEX", f"{len(content):x}")
        open_connection(ground).sock.sendall(here(ground, head_text) + content)

    return act


network_attacks_of(
    {
        "after_a_permitted_one": write(GOOD + "\r\n" + HIDDEN),
        "alone": write(HIDDEN),
        "in_pieces": write(GOOD + "\r\nGET /se", "cret HTTP/1.1\r\nHo", "st: HERE\r\n\r\n"),
        "byte_by_byte": write(*HIDDEN),
        "other_method": write("DELETE /allowed HTTP/1.1\r\nHost: HERE\r\n\r\n"),
        "lower_case": write("get /secret HTTP/1.1\r\nhost: HERE\r\n\r\n"),
        "empty_lines_before": write("\r\n\r\n\r\n" + HIDDEN),
        "without_version": write("GET /secret\r\n"),
        "old_version": write("GET /secret HTTP/1.0\r\n\r\n"),
        "version_nine": write("GET /secret HTTP/0.9\r\n\r\n"),
        "odd_version": write("GET /secret HTTP/1.1x\r\nHost: HERE\r\n\r\n"),
        "version_lower_case": write("GET /secret http/1.1\r\nHost: HERE\r\n\r\n"),
        "many_spaces": write("GET  /secret  HTTP/1.1\r\nHost: HERE\r\n\r\n"),
        "tab": write("GET\t/secret\tHTTP/1.1\r\nHost: HERE\r\n\r\n"),
        "first_of_two_targets": write("GET /secret /allowed HTTP/1.1\r\nHost: HERE\r\n\r\n"),
        "space_in_front": write(" GET /secret HTTP/1.1\r\nHost: HERE\r\n\r\n"),
        "absolute": write("GET http://HERE/secret HTTP/1.1\r\nHost: HERE\r\n\r\n"),
        "bare_line_ends": write("GET /secret HTTP/1.1\nHost: HERE\n\n"),
        "bare_end_hides": write(GOOD + "X: y\n\nGET /secret HTTP/1.1\r\nHost: HERE\r\n\r\n"),
        "bare_end_half_hides": write(GOOD + "X: y\n\r\nGET /secret HTTP/1.1\r\nHost: HERE\r\n\r\n"),
        "dots": write("GET /allowed/../secret HTTP/1.1\r\nHost: HERE\r\n\r\n"),
        "long_head": write(GOOD + "X: " + "y" * 300_000 + "\r\n\r\n" + HIDDEN),
        "many_headers": write(GOOD + "X: y\r\n" * 20_000 + "\r\n" + HIDDEN),
    },
    "a second request is written behind a permitted one: {}",
    expect=REFUSED,
    reading=Reading(decodes=True),
    group="request_",
)
network_attacks_of(
    {"last_of_two_targets": write("GET /allowed /secret HTTP/1.1\r\nHost: HERE\r\n\r\n")},
    "the request line has two targets: {}",
    expect=REFUSED,
    reading=Reading(target="last"),
    group="request_",
)
network_attacks_of(
    {
        "bare_returns": write(GOOD + "X: y\r\rGET /secret HTTP/1.1\r\nHost: HERE\r\n\r\n"),
        "bare_return_in_line": write("GET /allowed HTTP/1.1\rX: y\r\rGET /secret HTTP/1.1\r\nHost: HERE\r\n\r\n"),
    },
    "a server takes a bare carriage return for the end of a line: {}",
    expect=REFUSED,
    reading=Reading(breaks="\r\n|\r|\n"),
    group="request_",
)

network_attacks_of(
    {
        "get": with_body(GOOD + "Content-Length: SIZE\r\n\r\n"),
        "head": with_body("HEAD /allowed HTTP/1.1\r\nHost: HERE\r\nContent-Length: SIZE\r\n\r\n"),
        "chunked": with_body(GOOD + "Transfer-Encoding: chunked\r\n\r\nHEX\r\n", HIDDEN + "\r\n0\r\n\r\n"),
    },
    "a request for reading has a body, which the server does not expect: {}",
    expect=REFUSED,
    reading=Reading(length="none", chunked="never"),
    group="body_",
)
network_attacks_of(
    {
        "two_lengths": with_body(POST + "Content-Length: SIZE\r\nContent-Length: 0\r\n\r\n"),
        "list_of_lengths": with_body(POST + "Content-Length: 0, SIZE\r\n\r\n"),
        "plus": with_body(POST + "Content-Length: +0\r\nX-Content-Length: SIZE\r\n\r\n"),
        "far_too_great": with_body(POST + "Content-Length: 18446744073709551616\r\n\r\n"),
        "negative": with_body(POST + "Content-Length: -1\r\n\r\n"),
        "hexadecimal": with_body(POST + "Content-Length: 0xSIZE\r\n\r\n"),
        "space_before_colon": with_body(POST + "Content-Length: SIZE\r\nContent-Length : 0\r\n\r\n"),
        "folded": with_body(POST + "Content-Length: SIZE\r\nX: y\r\n z\r\nContent-Length: 0\r\n\r\n"),
        "folded_length": with_body(POST + "Content-Length:\r\n 0\r\nX: SIZE\r\n\r\n"),
        "bare_end": with_body(POST + "X: y\nContent-Length: 0\r\nContent-Length: SIZE\r\nContent-Length: 0\r\n\r\n"),
        "zero_byte": with_body(POST + "Content-Length: SIZE\r\nX: \0\r\nContent-Length: 0\r\n\r\n"),
        "expectation": with_body(POST + "Content-Length: SIZE\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n"),
    },
    "the length of a body is told in a way that servers read differently: {}",
    expect=REFUSED,
    rules=sending,
    reading=Reading(sends=True, length="last"),
    group="length_",
)
network_attacks_of(
    {"expectation": with_body(POST + "Content-Length: SIZE\r\nExpect: 100-continue\r\n\r\n")},
    "the server refuses the expectation, and reads on where the body begins: {}",
    expect=REFUSED,
    rules=sending,
    reading=Reading(sends=True, refuses_expectation=True),
    group="server_",
)
CODING = "Content-Length: SIZE\r\nTransfer-Encoding: {}\r\n\r\n"
network_attacks_of(
    {
        name: with_body(POST + CODING.format(value), "0\r\n\r\n" + HIDDEN)
        for name, value in {
            "both": "chunked",
            "upper_case": "CHUNKED",
            "twice": "chunked\r\nTransfer-Encoding: chunked",
            "list": "identity, chunked",
            "list_behind": "chunked, identity",
            "quoted": '"chunked"',
            "prefixed": "xchunked",
            "vertical_tab": "\x0bchunked",
            "folded": "\r\n chunked",
        }.items()
    },
    "a body has a length and a coding, and the server goes by the coding: {}",
    expect=REFUSED,
    rules=sending,
    reading=Reading(sends=True, chunked="contains"),
    group="coding_",
)
CHUNKED = POST + "Transfer-Encoding: chunked\r\n\r\n"
network_attacks_of(
    {
        "length_only": with_body(
            POST + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
            "HEX\r\n".replace("HEX", "ff") + "\r\n" + HIDDEN.ljust(400),
        ),
        "old_version": with_body(
            "POST /allowed HTTP/1.0\r\nHost: HERE\r\nTransfer-Encoding: chunked\r\n\r\n",
            f"{len(HIDDEN) + 40:x}\r\n\r\n{HIDDEN}".ljust(400),
        ),
    },
    "a body is chunked, and the server does not go by that: {}",
    expect=REFUSED,
    rules=sending,
    reading=Reading(sends=True, chunked="never", breaks="\r?\n"),
    group="uncoded_",
)


def chunk(size_line: str, *, end: str = "\r\n"):
    """One chunk that reads as the last one to the server, with another request behind it."""
    return with_body(CHUNKED, size_line + "\r\n" + end + HIDDEN + "\r\n0\r\n\r\n")


network_attacks_of(
    {
        "far_too_great": chunk("10000000000000000"),
        "prefix": chunk("0x0"),
        "minus": chunk("-1"),
        "plus": chunk("+5"),
        "empty": chunk(""),
        "extension": chunk("0;x=\n40"),
        "underscore": chunk("_40"),
        "last_then_more": with_body(CHUNKED, "0\r\n\r\n" + HIDDEN),
        "bare_line_end": with_body(CHUNKED, "0\n\n" + HIDDEN),
        "trailer": with_body(CHUNKED, "0\r\nX: y\r\n\r\n" + HIDDEN),
    },
    "the size of a chunk is told in a way that servers read differently: {}",
    expect=REFUSED,
    rules=sending,
    reading=Reading(sends=True),
    group="chunk_",
)


def connects(ground: Ground) -> list[tuple[str, str]]:
    return [*one_path(ground), ("connect", f"127.0.0.1:{peers(ground).other}")]


@network_attack("CONNECT to a server that is no proxy, with a request behind it", expect=REFUSED, rules=connects)
def connect_to_server(ground: Ground) -> None:
    """What follows CONNECT is the business of its target, if the server is a proxy; this one is not."""
    connection = open_connection(ground)
    connection.sock.sendall(here(ground, f"CONNECT 127.0.0.1:{peers(ground).other} HTTP/1.1\r\nHost: HERE\r\n\r\n"))
    connection.sock.sendall(here(ground, HIDDEN))


def websocket(*operations: str):
    def rules(ground: Ground) -> list[tuple[str, str]]:
        socket_url = url(ground).replace("http:", "ws:")
        return [*one_path(ground), *((operation, socket_url) for operation in operations)]

    return rules


UPGRADE = GOOD + "Connection: Upgrade\r\nUpgrade: {}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n\r\n"


def frame_request(ground: Ground) -> None:
    """A request that reads as a control frame: H is one, E is the length of what follows."""
    head = here(ground, "HEAD /secret HTTP/1.1\r\nHost: HERE\r\nX: ")
    open_connection(ground).sock.sendall(
        here(ground, UPGRADE.format("websocket")) + head.ljust(ord("E") + 2 - 4, b"y") + b"\r\n\r\n"
    )


network_attacks_of(
    {"frame": frame_request, "text": write(UPGRADE.format("websocket"), HIDDEN)},
    "a server ignores an upgrade to a websocket, and reads on as before: {}",
    expect=REFUSED,
    rules=websocket("connect"),
    group="upgrade_",
)
network_attacks_of(
    {"sending": write(UPGRADE.format("websocket"), HIDDEN)},
    "a server ignores an upgrade to a websocket that may send: {}",
    expect=REFUSED,
    rules=websocket("connect", "send", "receive"),
    group="upgrade_",
)
network_attacks_of(
    {
        "http2": write(UPGRADE.format("h2c"), HIDDEN),
        "tls": write(UPGRADE.format("TLS/1.0"), HIDDEN),
        "list": write(UPGRADE.format("websocket, h2c"), HIDDEN),
    },
    "an upgrade to something else is asked for: {}",
    expect=REFUSED,
    rules=websocket("connect"),
    group="upgrade_",
)


@network_attack(
    "a websocket that may only be opened is read",
    expect=REFUSED,
    rules=lambda ground: [("connect", url(ground).replace("http:", "ws:"))],
)
def websocket_read(ground: Ground) -> object:
    import http.client

    connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
    connection.connect()
    connection.sock.sendall(here(ground, UPGRADE.format("websocket").replace("/allowed", "/allowed/socket")))
    data = b""
    while b"101" not in data or ground.SECRET.encode() not in data:
        data += connection.sock.recv(4096)
    return data


def other_rule(ground: Ground) -> list[tuple[str, str]]:
    """Another site may be read from, wherever it is."""
    return [*one_path(ground), ("receive", "http://elsewhere.test/secret")]


@network_attack("the absolute form names a permitted URL of another server", expect=REFUSED, rules=other_rule)
def absolute_of_another(ground: Ground) -> None:
    write("GET http://elsewhere.test/secret HTTP/1.1\r\nHost: elsewhere.test\r\n\r\n")(ground)


@network_attack("the Host header names a permitted site, the path is that site's", expect=REFUSED, rules=other_rule)
def path_of_another(ground: Ground) -> None:
    write("GET /secret HTTP/1.1\r\nHost: elsewhere.test\r\n\r\n")(ground)


@network_attack("the head of a request is never finished", expect=REFUSED, reading=Reading(hasty=True))
def unfinished_head(ground: Ground) -> None:
    """A hasty server acts on the first line, and a log has it in any case."""
    write("GET /secret?the-data HTTP/1.1\r\nHost: HERE\r\n")(ground)
