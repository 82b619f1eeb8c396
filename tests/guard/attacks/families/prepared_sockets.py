"""Sockets prepared before they become checked connections, and changed during a request."""

from __future__ import annotations

import os
import socket
import sys
import threading

from tests.guard.attacks.families.connection_writes import STOPPED, hidden
from tests.guard.attacks.kit import SANDBOX, USAGE, Ground
from tests.guard.attacks.network import (
    LIMIT,
    guarded,
    here,
    network_attack,
    network_attacks_of,
    one_path,
    open_connection,
    other,
    peers,
    web,
)

SWITCH_INTERVAL = 5
"""A thread runs until it calls the kernel; the host sets it, see runner.py."""


def before_connecting(prepare):
    """Something is made of the number before the socket is connected under a permitted request."""

    def act(ground: Ground) -> None:
        import http.client

        sock = socket.socket()
        sock.settimeout(LIMIT)
        write = prepare(ground, sock)
        connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
        connection._create_connection = lambda *_, **__: (sock.connect(web(ground)), sock)[1]
        connection.request("GET", "/allowed")
        write(hidden(ground))

    return act


def file_before(ground: Ground, sock: socket.socket):
    return open(sock.fileno(), "wb", 0, closefd=False).write


def buffered_before(ground: Ground, sock: socket.socket):
    file = open(sock.fileno(), "r+b", 0, closefd=False)
    return file.write


def copy_before(ground: Ground, sock: socket.socket):
    number = os.dup(sock.fileno())
    return lambda data: os.write(number, data)


def socket_copy_before(ground: Ground, sock: socket.socket):
    return sock.dup().sendall


def file_of_copy_before(ground: Ground, sock: socket.socket):
    return open(os.dup(sock.fileno()), "wb", 0).write


def socket_file_before(ground: Ground, sock: socket.socket):
    return sock.makefile("wb", buffering=0).write


def transport_before(ground: Ground, sock: socket.socket):
    return socket.SocketIO(sock, "w").write


network_attacks_of(
    {
        "file": before_connecting(file_before),
        "file_both_ways": before_connecting(buffered_before),
        "file_of_copy": before_connecting(file_of_copy_before),
        "copy": before_connecting(copy_before),
        "socket_copy": before_connecting(socket_copy_before),
        "socket_file": before_connecting(socket_file_before),
        "SocketIO": before_connecting(transport_before),
    },
    "the socket of a connection was prepared before it was one: {}",
    expect=STOPPED,
    group="before_",
)


@network_attack("signals write line ends into the middle of a header", expect=STOPPED | SANDBOX | USAGE)
def wakeup_number(ground: Ground) -> None:
    """The interpreter writes the number of a signal to a descriptor; one of them is a line feed."""
    import http.client
    import signal

    sock = socket.socket()
    sock.setblocking(False)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.set_wakeup_fd(sock.fileno(), warn_on_full_buffer=False)
    sock.settimeout(LIMIT)
    connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
    connection._create_connection = lambda *_, **__: (sock.connect(web(ground)), sock)[1]
    connection.connect()
    sock.setblocking(False)
    sock.send(here(ground, "GET /allowed HTTP/1.1\r\nHost: HERE\r\nX: y"))
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    signal.set_wakeup_fd(-1)
    sock.send(here(ground, "GET /secret HTTP/1.1\r\nHost: HERE\r\n\r\n"))


def with_socket_rule(ground: Ground) -> list[tuple[str, str]]:
    """Besides the usual rule, sockets may be opened to a port where nobody listens."""
    return [*one_path(ground), ("connect", "127.0.0.1:9")]


@network_attack(
    "a connection is told to connect again, to an address that sockets may reach",
    expect=STOPPED,
    rules=with_socket_rule,
)
def connected_again(ground: Ground) -> None:
    sock = open_connection(ground).sock
    try:
        sock.connect(("127.0.0.1", 9))
    except PermissionError:
        raise
    except OSError:
        pass  # it is connected already
    sock.sendall(hidden(ground))


def with_wide_rule(ground: Ground) -> list[tuple[str, str]]:
    """Besides the usual rule, everything may be read from another server."""
    return [*one_path(ground), ("receive", f"http://127.0.0.1:{peers(ground).proxy}")]


@network_attack(
    "a connection is told to connect again, for a request to another server",
    expect=STOPPED,
    rules=with_wide_rule,
    servers=("proxy",),
)
def connected_for_another(ground: Ground) -> None:
    import http.client

    sock = open_connection(ground).sock

    def connect(*_: object, **__: object) -> socket.socket:
        try:
            sock.connect(("127.0.0.1", peers(ground).proxy))
        except PermissionError:
            raise
        except OSError:
            pass
        return sock

    connection = http.client.HTTPConnection("127.0.0.1", peers(ground).proxy, timeout=LIMIT)
    connection._create_connection = connect
    connection.request("GET", "/secret")


@network_attack("inside a permitted request, datagrams are sent to its server", servers=("udp",), expect=STOPPED)
def datagram_inside(ground: Ground) -> None:
    inside(ground, lambda: datagram(ground))


def datagram(ground: Ground) -> None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(web(ground))
    sock.send(b"x")


def inside(ground: Ground, act) -> None:
    """Run something while a permitted request is under way: the client asks the subject for a connection."""
    import http.client

    connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
    connection._create_connection = lambda *_, **__: act()
    connection.request("GET", "/allowed")


@network_attack("inside a permitted request, a datagram is sent without a connection", servers=("udp",), expect=STOPPED)
def datagram_inside_sendto(ground: Ground) -> None:
    inside(ground, lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", web(ground)))


@network_attack("inside a permitted request, another server is dialled", expect=STOPPED)
def other_inside(ground: Ground) -> None:
    inside(ground, lambda: socket.create_connection(other(ground)))


@network_attack("inside a permitted request, its server is dialled, and asked for something else", expect=STOPPED)
def same_inside(ground: Ground) -> None:
    inside(ground, lambda: socket.create_connection(web(ground)).sendall(hidden(ground)))


def connect_for_request(ground: Ground, sock: socket.socket) -> None:
    """Connect a socket while a permitted request is under way."""
    import http.client

    connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
    connection._create_connection = lambda *_, **__: (sock.connect(web(ground)), sock)[1]
    connection.connect()
    ground.held.connection = connection


class Connecting:
    """A number that, when it is looked at, connects the socket that is just about to send."""

    def __init__(self, ground: Ground, sock: socket.socket) -> None:
        self.ground, self.sock = ground, sock

    def __index__(self) -> int:
        connect_for_request(self.ground, self.sock)
        return 0


class ConnectingBuffer(Connecting):
    """The same for the bytes that are to be sent."""

    def __buffer__(self, flags: int) -> memoryview:
        connect_for_request(self.ground, self.sock)
        return memoryview(hidden(self.ground))


class ConnectingList(Connecting):
    """The same for a list of buffers."""

    def __iter__(self):
        connect_for_request(self.ground, self.sock)
        yield hidden(self.ground)


class ConnectingMessages(Connecting):
    """The same for what is sent besides."""

    def __iter__(self):
        connect_for_request(self.ground, self.sock)
        return iter(())

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> object:
        raise IndexError


def while_sending(send):
    def act(ground: Ground) -> None:
        sock = ground.held.sock = socket.socket()
        sock.settimeout(LIMIT)
        send(ground, sock)

    return act


network_attacks_of(
    {
        "flags": while_sending(lambda ground, sock: sock.send(hidden(ground), Connecting(ground, sock))),
        "flags_of_sendall": while_sending(lambda ground, sock: sock.sendall(hidden(ground), Connecting(ground, sock))),
        "list": while_sending(lambda ground, sock: sock.sendmsg(ConnectingList(ground, sock))),
        "list_of_files": while_sending(
            lambda ground, sock: sock.sendmsg([hidden(ground)], ConnectingMessages(ground, sock))
        ),
    },
    "a socket is connected for a permitted request while it is already sending: {}",
    expect=STOPPED.or_raises("TypeError"),
    group="connects_while_sending_",
)
network_attacks_of(
    {
        "buffer": while_sending(lambda ground, sock: sock.send(ConnectingBuffer(ground, sock))),
        "buffer_of_sendall": while_sending(lambda ground, sock: sock.sendall(ConnectingBuffer(ground, sock))),
        "buffer_of_sendmsg": while_sending(lambda ground, sock: sock.sendmsg([ConnectingBuffer(ground, sock)])),
    },
    "a buffer connects the socket that is about to send it: {}",
    expect=STOPPED.or_raises("TypeError"),
    group="connects_while_sending_",
    since=(3, 12),
)


def attempt(errors: list[BaseException], act) -> None:
    try:
        act()
    except BaseException as error:
        errors.append(error)


def while_a_thread_sends(send):
    """A thread waits for the interpreter in the middle of sending on a socket without a peer; meanwhile it gets one."""

    def act(ground: Ground) -> None:
        for _ in range(40):
            sock = ground.held.kept = socket.socket()
            sock.settimeout(1 if guarded(ground) else LIMIT)
            if not guarded(ground):
                connect_for_request(ground, sock)  # without a guard nothing depends on the moment
            errors: list[BaseException] = []
            thread = threading.Thread(target=attempt, args=(errors, lambda sock=sock: send(sock, hidden(ground))))
            thread.start()
            if guarded(ground):
                attempt(errors, lambda sock=sock: connect_for_request(ground, sock))
            thread.join()
            ground.errors += [error for error in errors if isinstance(error, (PermissionError, ValueError))]
            if not errors:
                break

    return act


network_attacks_of(
    {
        "send": while_a_thread_sends(lambda sock, data: sock.send(data)),
        "sendall": while_a_thread_sends(lambda sock, data: sock.sendall(data)),
        "sendmsg": while_a_thread_sends(lambda sock, data: sock.sendmsg([data])),
    },
    "a socket is connected for a permitted request while a thread is sending on it: {}",
    expect=STOPPED.quietly,
    group="connects_while_thread_",
)
