"""Request smuggling under TLS: only checked bytes are encrypted and sent."""

from __future__ import annotations

import os
import socket
import ssl

from tests.guard.attacks import aes_gcm, peer_tls
from tests.guard.attacks.families.shared_addresses import converse, open_context
from tests.guard.attacks.kit import FD, Ground
from tests.guard.attacks.network import (
    LIMIT,
    REFUSED,
    guarded,
    network_attack,
    network_attacks_of,
    one_path_secure,
    peers,
    url,
)
from tests.guard.attacks.peer_http import Reading

SWITCH_INTERVAL = 5
"""A thread runs until it calls the kernel; the host sets it, see runner.py."""

STOPPED = REFUSED | FD
OPTIONS = {"rules": one_path_secure, "servers": ("tls",), "expect": STOPPED}


def text(ground: Ground, path: str = "/secret", method: str = "GET", more: str = "", host: str = "") -> bytes:
    name = host or f"127.0.0.1:{peers(ground).tls}"
    return f"{method} {path} HTTP/1.1\r\nHost: {name}\r\n{more}\r\n".encode()


def secure_connection(ground: Ground, context: ssl.SSLContext | None = None):
    """A connection over which a permitted request has just gone."""
    import http.client

    connection = http.client.HTTPSConnection(
        "127.0.0.1", peers(ground).tls, timeout=LIMIT, context=context or open_context()
    )
    connection.request("GET", "/allowed")
    connection.getresponse().read()
    ground.held.connection = connection
    return connection.sock


def by_file(ground: Ground) -> None:
    with open(f"{ground.inside}/request", "wb") as file:
        file.write(text(ground))
    with open(f"{ground.inside}/request", "rb") as file:
        secure_connection(ground).sendfile(file)


network_attacks_of(
    {
        "sendall": lambda ground: secure_connection(ground).sendall(text(ground)),
        "send": lambda ground: secure_connection(ground).send(text(ground)),
        "write": lambda ground: secure_connection(ground).write(text(ground)),
        "C_object": lambda ground: secure_connection(ground)._sslobj.write(text(ground)),
        "makefile": lambda ground: secure_connection(ground).makefile("wb", buffering=0).write(text(ground)),
        "bytearray": lambda ground: secure_connection(ground)._sslobj.write(bytearray(text(ground))),
        "behind_a_permitted_one": lambda ground: secure_connection(ground).sendall(
            text(ground, "/allowed") + text(ground)
        ),
        "sendfile": by_file,
    },
    "a second request is written to a connection with TLS: {}",
    group="request_",
    **OPTIONS,
)


class Taking:
    """In the place of a context: takes the plain socket of a connection away before TLS begins."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []

    def wrap_socket(self, sock: socket.socket, **_: object) -> None:
        self.sockets.append(sock)
        raise InterruptedError


def plain_socket(ground: Ground) -> socket.socket:
    """A socket that was opened for a permitted request over TLS, still without TLS."""
    import http.client

    context = Taking()
    connection = http.client.HTTPSConnection("127.0.0.1", peers(ground).tls, timeout=LIMIT, context=open_context())
    connection._context = context
    try:
        connection.connect()
    except InterruptedError:
        pass
    return context.sockets[0]


def by_memory(ground: Ground, data: bytes, name: str | None = "127.0.0.1") -> object:
    """TLS in memory, its bytes carried by hand over that socket."""
    sock = plain_socket(ground)
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    tunnel = open_context().wrap_bio(inward, outward, server_hostname=name)
    return converse(sock, tunnel, inward, outward, data)


def with_socket_rule(ground: Ground) -> list[tuple[str, str]]:
    """Besides the usual rule, sockets may be opened to some host."""
    return [*one_path_secure(ground), ("connect", "raw.test"), ("connect", "127.0.0.9:9")]


def with_wide_rules(ground: Ground) -> list[tuple[str, str]]:
    """Besides the usual rule, everything may be read from two other places."""
    wide = [("receive", "https://elsewhere.test"), ("receive", f"https://127.0.0.1:{peers(ground).other}")]
    return [*one_path_secure(ground), *wide]


network_attacks_of(
    {
        "own_name": lambda ground: by_memory(ground, text(ground)),
        "no_name": lambda ground: by_memory(ground, text(ground), None),
        "piece_by_piece": lambda ground: by_memory(ground, text(ground, "/allowed") + text(ground)),
    },
    "TLS is made in memory over a connection for a permitted request: {}",
    group="memory_",
    **OPTIONS,
)
network_attacks_of(
    {
        "unknown_name": lambda ground: by_memory(ground, text(ground), "unknown.test"),
        "socket_name": lambda ground: by_memory(ground, text(ground), "raw.test"),
        "socket_address": lambda ground: by_memory(ground, text(ground), "127.0.0.9"),
        "no_name_but_rules": lambda ground: by_memory(ground, text(ground), None),
    },
    "TLS in memory is made for a host that sockets may reach, and carried to another: {}",
    group="memory_",
    **(OPTIONS | {"rules": with_socket_rule}),
)
network_attacks_of(
    {
        "wide_name": lambda ground: by_memory(ground, text(ground, host="elsewhere.test"), "elsewhere.test"),
        "wide_port": lambda ground: by_memory(ground, text(ground, host=f"127.0.0.1:{peers(ground).other}")),
    },
    "TLS in memory is made for a host with wider rules, and carried to another: {}",
    group="memory_",
    **(OPTIONS | {"rules": with_wide_rules}),
)


def server_side(ground: Ground) -> bool:
    """The subject plays the server on a connection of its own making: what it says then is nobody's request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    path = f"{ground.inside}/key"
    with open(path, "w") as file:
        file.write(peer_tls.KEY + peer_tls.CERTIFICATE)
    context.load_cert_chain(path)
    return context.wrap_socket(plain_socket(ground), server_side=True, do_handshake_on_connect=False) is not None


network_attack("the subject plays the server of TLS on its own connection", name="server_side", **OPTIONS)(server_side)


@network_attack("a record is encrypted by hand, with keys that OpenSSL was asked to log", **OPTIONS)
def record_by_hand(ground: Ground) -> object:
    """The request never passes through OpenSSL, so nobody but the server can read it."""
    context = open_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.keylog_filename = f"{ground.inside}/keys"
    sock = secure_connection(ground, context)
    hash_name = "sha384" if "384" in sock.cipher()[0] else "sha256"
    if "GCM" not in sock.cipher()[0]:
        raise RuntimeError(f"the attack knows AES-GCM only, not {sock.cipher()[0]}")
    return send_by_hand(ground, sock, hash_name)


def send_by_hand(ground: Ground, sock: ssl.SSLSocket, hash_name: str) -> object:
    with open(f"{ground.inside}/keys") as file:
        keys = dict(line.split()[::2] for line in file if line.startswith("CLIENT_TRAFFIC_SECRET_0"))
    secret = bytes.fromhex(keys["CLIENT_TRAFFIC_SECRET_0"])
    data = aes_gcm.record(secret, hash_name, 1, text(ground))
    socket.socket(fileno=os.dup(sock.fileno())).sendall(data)


@network_attack("a record by hand is sent where TLS in memory is carried over a socket", **OPTIONS)
def record_beside_memory(ground: Ground) -> object:
    """There the guard cannot forbid plain sending: that is how the encrypted bytes go out."""
    context = open_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.keylog_filename = f"{ground.inside}/keys"
    sock = plain_socket(ground)
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    tunnel = context.wrap_bio(inward, outward, server_hostname="127.0.0.1")
    converse(sock, tunnel, inward, outward, text(ground, "/allowed"))
    hash_name = "sha384" if "384" in tunnel.cipher()[0] else "sha256"
    send_by_hand(ground, sock, hash_name)
    return None


def sending(ground: Ground) -> list[tuple[str, str]]:
    """The subject may also send to the path, with a body."""
    return [*one_path_secure(ground), ("send", url(ground, scheme="https"))]


class Second:
    """Gives other bytes the second time it is asked for them."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])


@network_attack(
    "an object gives other bytes the second time OpenSSL asks for them",
    since=(3, 12),
    **(OPTIONS | {"rules": sending, "reading": Reading(sends=True), "expect": STOPPED.quietly}),
)
def second_buffer(ground: Ground) -> None:
    for times in range(4):
        sock = secure_connection(ground)
        sock.sendall(text(ground, "/allowed", "POST", "Content-Length: 20\r\n"))
        try:
            sock._sslobj.write(Second(*[b"x" * 20] * times, b"x" * 20 + text(ground)))
        except (PermissionError, ValueError) as error:
            ground.errors[:] = [error]


def connect_plain(ground: Ground, sock: socket.socket) -> None:
    """Connect a socket while a permitted request is under way."""
    import http.client

    connection = http.client.HTTPSConnection("127.0.0.1", peers(ground).tls, timeout=LIMIT, context=open_context())
    connection._create_connection = lambda *_, **__: (sock.connect(("127.0.0.1", peers(ground).tls)), sock)[1]
    connection._context = Taking()
    try:
        connection.connect()
    except InterruptedError:
        pass


def wrapped_before(ground: Ground) -> None:
    """The TLS object is made while the socket has no peer yet, and so is nobody's."""
    sock = ground.held.sock = socket.socket()
    tunnel = open_context()._wrap_socket(sock, False, "127.0.0.1")
    connect_plain(ground, sock)
    tunnel.do_handshake()
    tunnel.write(text(ground))


def wrapped_by_library(ground: Ground) -> None:
    """The same as the library does it by itself."""
    sock = ground.held.sock = open_context().wrap_socket(socket.socket(), server_hostname="127.0.0.1")
    connect_plain(ground, sock)
    sock.sendall(text(ground))


class Side:
    """A flag that, when it is looked at, connects the socket that is just being wrapped."""

    def __init__(self, ground: Ground, sock: socket.socket) -> None:
        self.ground, self.sock = ground, sock

    def __index__(self) -> int:
        connect_plain(self.ground, self.sock)
        return 0

    def __bool__(self) -> bool:
        """Answer for interpreters that take the flag as a truth value."""
        return bool(self.__index__())


def wrapped_meanwhile(ground: Ground) -> None:
    sock = ground.held.sock = socket.socket()
    tunnel = open_context()._wrap_socket(sock, Side(ground, sock), "127.0.0.1")
    tunnel.do_handshake()
    tunnel.write(text(ground))


def wrapped_copy(ground: Ground) -> None:
    """The TLS object is made over a copy of the socket."""
    sock = ground.held.sock = socket.socket()
    copy = ground.held.copy = sock.dup()
    tunnel = open_context()._wrap_socket(copy, False, "127.0.0.1")
    connect_plain(ground, sock)
    tunnel.do_handshake()
    tunnel.write(text(ground))


network_attacks_of(
    {
        "before": wrapped_before,
        "by_library": wrapped_by_library,
        "meanwhile": wrapped_meanwhile,
        "copy": wrapped_copy,
    },
    "a TLS object is made over a socket before that is connected for a permitted request: {}",
    group="wrapped_",
    **(OPTIONS | {"expect": STOPPED.or_raises("TypeError", "SSLError")}),
)


def written_by_thread(ground: Ground) -> None:
    """A thread waits in the middle of writing, which begins with the handshake; meanwhile the socket gets a peer."""
    import sys
    import threading

    for _ in range(40):
        sock = ground.held.sock = socket.socket()
        sock.settimeout(1 if guarded(ground) else LIMIT)
        if not guarded(ground):
            connect_plain(ground, sock)  # without a guard nothing depends on the moment
        tunnel = open_context()._wrap_socket(sock, False, "127.0.0.1")
        errors: list[BaseException] = []
        thread = threading.Thread(target=attempt, args=(errors, lambda tunnel=tunnel: tunnel.write(text(ground))))
        thread.start()
        if guarded(ground):
            attempt(errors, lambda sock=sock: connect_plain(ground, sock))
        thread.join()
        ground.errors += [error for error in errors if isinstance(error, (PermissionError, ValueError))]
        if not errors:
            break


def attempt(errors: list[BaseException], act) -> None:
    try:
        act()
    except BaseException as error:
        errors.append(error)


network_attack(
    "a socket is connected for a permitted request while a thread is writing to its TLS object",
    name="written_by_thread",
    **(OPTIONS | {"expect": STOPPED.quietly}),
)(written_by_thread)
