"""Class 33, ways to write to a connection that was opened for permitted requests, past what reads them."""

from __future__ import annotations

import os
import socket

from tests.guard.attacks.kit import FD, SANDBOX, USAGE, Ground
from tests.guard.attacks.network import (
    LIMIT,
    NETWORK,
    REFUSED,
    here,
    network_attack,
    network_attacks_of,
    one_path,
    open_connection,
    other,
    peers,
    request,
    url,
    web,
)

STOPPED = REFUSED | FD


def hidden(ground: Ground) -> bytes:
    return request(ground, "/secret")


def by_pipe(ground: Ground, number: int) -> None:
    read, write = os.pipe()
    os.write(write, hidden(ground))
    os.splice(read, number, len(hidden(ground)))


def by_sendfile(ground: Ground, number: int) -> None:
    with open(f"{ground.inside}/request", "wb") as file:
        file.write(hidden(ground))
    with open(f"{ground.inside}/request", "rb") as file:
        os.sendfile(number, file.fileno(), 0, len(hidden(ground)))


def by_mode(mode: str, make=open):
    def act(ground: Ground, number: int) -> None:
        with make(number, mode, 0, closefd=False) as file:
            file.write(hidden(ground))

    return act


def by_class(ground: Ground, number: int) -> None:
    import io

    io.FileIO(number, "w", closefd=False).write(hidden(ground))


def by_opener(ground: Ground, number: int) -> None:
    with open("x", "wb", 0, opener=lambda *_: os.dup(number)) as file:
        file.write(hidden(ground))


def by_python_file(ground: Ground, number: int) -> None:
    import _pyio

    _pyio.FileIO(number, "w", closefd=False).write(hidden(ground))


def copied(number: int) -> socket.socket:
    return socket.socket(fileno=number)


def by_dup2(ground: Ground, number: int) -> None:
    spare = socket.socket()
    os.dup2(number, spare.fileno())
    spare.sendall(hidden(ground))


def by_dup2_of_file(ground: Ground, number: int) -> None:
    """A file object of the subject's gets the connection under its number."""
    file = open(f"{ground.inside}/spare", "wb", 0)
    os.dup2(number, file.fileno())
    file.write(hidden(ground))


def by_fcntl(ground: Ground, number: int) -> None:
    import fcntl

    copied(fcntl.fcntl(number, fcntl.F_DUPFD, 0)).sendall(hidden(ground))


def by_passing(ground: Ground, number: int) -> None:
    here_end, there = socket.socketpair()
    socket.send_fds(here_end, [b"x"], [number])
    received = socket.recv_fds(there, 1, 1)[1][0]
    copied(received).sendall(hidden(ground))


def by_passing_and_writing(ground: Ground, number: int) -> None:
    here_end, there = socket.socketpair()
    socket.send_fds(here_end, [b"x"], [number])
    os.write(socket.recv_fds(there, 1, 1)[1][0], hidden(ground))


def by_multiprocessing(ground: Ground, number: int) -> None:
    """The library's connection object writes a length first; the server takes it for noise."""
    from multiprocessing.connection import Connection

    Connection(os.dup(number))._send(hidden(ground))


def by_closerange(ground: Ground, number: int) -> None:
    """A number that an object holds is freed, and the next connection gets it."""
    file = open(f"{ground.inside}/spare", "wb", 0)
    os.closerange(file.fileno(), file.fileno() + 1)
    ground.held.other = open_connection(ground)
    if ground.held.other.sock.fileno() != file.fileno():
        raise RuntimeError("the connection got another number")
    file.write(hidden(ground))


def by_second_object(ground: Ground, number: int) -> None:
    """Two objects share a number; one gives it back, the next connection gets it, the other one writes."""
    own = os.open(f"{ground.inside}/spare", os.O_RDWR | os.O_CREAT)
    first, second = open(own, "r+b", 0), open(own, "wb", 0, closefd=False)
    first.close()
    ground.held.other = open_connection(ground)
    if ground.held.other.sock.fileno() != own:
        raise RuntimeError("the connection got another number")
    second.write(hidden(ground))


def by_closing_number(ground: Ground, number: int) -> None:
    """The same with a plain number and an object that only borrows it."""
    own = os.open(f"{ground.inside}/spare", os.O_RDWR | os.O_CREAT)
    second = open(own, "wb", 0, closefd=False)
    os.close(own)
    ground.held.other = open_connection(ground)
    if ground.held.other.sock.fileno() != own:
        raise RuntimeError("the connection got another number")
    second.write(hidden(ground))


def by_pipe_object(ground: Ground, number: int) -> None:
    """The same with an end of a pipe."""
    read, write = os.pipe()
    first, second = open(write, "wb", 0), open(write, "wb", 0, closefd=False)
    first.close()
    ground.held.other = open_connection(ground)
    if ground.held.other.sock.fileno() != write:
        raise RuntimeError("the connection got another number")
    second.write(hidden(ground))


BY_NUMBER = {
    "os_write": lambda ground, number: os.write(number, hidden(ground)),
    "os_writev": lambda ground, number: os.writev(number, [hidden(ground)]),
    "os_splice": by_pipe,
    "os_sendfile": by_sendfile,
    "open": by_mode("wb"),
    "open_both_ways": by_mode("r+b"),
    "open_append": by_mode("ab"),
    "os_fdopen": by_mode("wb", os.fdopen),
    "FileIO": by_class,
    "opener": by_opener,
    "python_FileIO": by_python_file,
    "dup": lambda ground, number: os.write(os.dup(number), hidden(ground)),
    "dup_socket": lambda ground, number: copied(os.dup(number)).sendall(hidden(ground)),
    "C_dup": lambda ground, number: copied(__import__("_socket").dup(number)).sendall(hidden(ground)),
    "fromfd": lambda ground, number: socket.fromfd(number, 2, 1).sendall(hidden(ground)),
    "fileno": lambda ground, number: copied(number).sendall(hidden(ground)),
    "dup2": by_dup2,
    "dup2_of_file": by_dup2_of_file,
    "F_DUPFD": by_fcntl,
    "passed": by_passing,
    "passed_and_written": by_passing_and_writing,
    "multiprocessing": by_multiprocessing,
    "closerange": by_closerange,
    "second_object": by_second_object,
    "closed_number": by_closing_number,
    "pipe_object": by_pipe_object,
}


def on_number(write):
    def act(ground: Ground) -> None:
        ground.held.connection = open_connection(ground)
        write(ground, ground.held.connection.sock.fileno())

    return act


network_attacks_of(
    {name: on_number(write) for name, write in BY_NUMBER.items()},
    "the number of a connection is written to: {}",
    expect=STOPPED.or_raises("RuntimeError"),
    group="number_",
)


def claiming(sock: socket.socket, family: int = 38) -> socket.socket:
    """The same connection under an object that says it is of another family: kernel crypto has a method of its own."""
    return socket.socket(family, socket.SOCK_STREAM, 0, os.dup(sock.fileno()))


def by_makefile(ground: Ground, sock: socket.socket) -> None:
    with sock.makefile("wb", buffering=0) as file:
        file.write(hidden(ground))


def by_text_file(ground: Ground, sock: socket.socket) -> None:
    with sock.makefile("w", newline="") as file:
        file.write(hidden(ground).decode())


def by_buffered(ground: Ground, sock: socket.socket) -> None:
    import io

    io.BufferedWriter(socket.SocketIO(sock, "rw")).write(hidden(ground) * 400)


def by_urgent(ground: Ground, sock: socket.socket) -> None:
    """An urgent byte is not part of what the server reads: here it is the one that made the path a permitted one."""
    first, _, second = here(ground, "GET /allowed*secret HTTP/1.1\r\nHost: HERE\r\n\r\n").partition(b"*")
    sock.sendall(first)
    sock.send(b"/", socket.MSG_OOB)
    sock.sendall(second)


def by_urgent_message(ground: Ground, sock: socket.socket) -> None:
    first, _, second = here(ground, "GET /allowed*secret HTTP/1.1\r\nHost: HERE\r\n\r\n").partition(b"*")
    sock.sendall(first)
    sock.sendmsg([b"/"], [], socket.MSG_OOB)
    sock.sendall(second)


async def by_loop(ground: Ground, sock: socket.socket) -> None:
    import asyncio

    sock.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(sock, hidden(ground))


async def by_transport(ground: Ground, sock: socket.socket) -> None:
    import asyncio

    sock.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=sock)
    transport.write(hidden(ground))
    await asyncio.sleep(0)


async def by_write_pipe(ground: Ground, sock: socket.socket) -> None:
    import asyncio

    transport, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, sock)
    transport.write(hidden(ground))


async def by_streams(ground: Ground, sock: socket.socket) -> None:
    import asyncio

    sock.setblocking(False)
    _, writer = await asyncio.open_connection(sock=sock)
    writer.writelines([hidden(ground)[:9], hidden(ground)[9:]])
    await writer.drain()


BY_SOCKET = {
    "send": lambda ground, sock: sock.send(hidden(ground)),
    "sendall": lambda ground, sock: sock.sendall(hidden(ground)),
    "sendmsg": lambda ground, sock: sock.sendmsg([hidden(ground)[:5], hidden(ground)[5:]]),
    "sendmsg_extra": lambda ground, sock: sock.sendmsg([hidden(ground)], [], 0),
    "sendto": lambda ground, sock: sock.sendto(hidden(ground), web(ground)),
    "C_send": lambda ground, sock: __import__("_socket").socket.send(sock, hidden(ground)),
    "super_send": lambda ground, sock: super(socket.socket, sock).send(hidden(ground)),
    "captured_send": lambda ground, sock: ground.held.send(sock, hidden(ground)),
    "dup": lambda ground, sock: sock.dup().sendall(hidden(ground)),
    "detach": lambda ground, sock: copied(sock.detach()).sendall(hidden(ground)),
    "makefile": by_makefile,
    "text_file": by_text_file,
    "SocketIO": by_buffered,
    "urgent": by_urgent,
    "urgent_message": by_urgent_message,
    "encrypting": lambda ground, sock: claiming(sock).sendmsg_afalg([hidden(ground)], op=socket.ALG_OP_ENCRYPT),
    "more": lambda ground, sock: sock.send(hidden(ground), socket.MSG_MORE) and sock.send(b"\r\n"),
}
ASYNC = {
    "sock_sendall": by_loop,
    "transport": by_transport,
    "write_pipe": by_write_pipe,
    "streams": by_streams,
}


def hold_send(ground: Ground) -> None:
    import _socket

    ground.held.send = _socket.socket.send


def on_socket(write):
    return lambda ground: write(ground, open_connection(ground).sock)


def on_socket_async(write):
    async def act(ground: Ground) -> None:
        await write(ground, open_connection(ground).sock)

    return act


network_attacks_of(
    {name: on_socket(write) for name, write in BY_SOCKET.items()},
    "the socket of a connection is written to: {}",
    expect=STOPPED,
    before=hold_send,
    group="socket_",
)
network_attacks_of(
    {name: on_socket_async(write) for name, write in ASYNC.items()},
    "the socket of a connection is written to over the host's loop, which may keep the error to itself: {}",
    expect=STOPPED.quietly.or_raises("ConnectionResetError"),
    group="socket_",
)


def by_connection(write):
    return lambda ground: write(ground, open_connection(ground))


def put_buffer(ground: Ground, connection) -> None:
    connection._buffer.append(hidden(ground)[:-4])
    connection._send_output()


def with_file_body(ground: Ground, connection) -> None:
    import io

    connection.request("GET", "/allowed", body=io.BytesIO(hidden(ground)), headers={"Content-Length": "0"})


def with_header(ground: Ground, connection) -> None:
    """The library refuses line ends in headers by an expression that can be replaced."""
    import http.client

    http.client._is_illegal_header_value = lambda value: None
    value = "y\r\n\r\n" + hidden(ground).decode().rstrip()
    connection.request("GET", "/allowed", headers={"X": value})


network_attacks_of(
    {
        "send": by_connection(lambda ground, connection: connection.send(hidden(ground))),
        "send_iterable": by_connection(lambda ground, connection: connection.send([hidden(ground)])),
        "buffer": by_connection(put_buffer),
        "body": by_connection(with_file_body),
        "header": by_connection(with_header),
        "request": by_connection(lambda ground, connection: connection.request("GET", "/secret")),
        "post": by_connection(lambda ground, connection: connection.request("POST", "/allowed", b"x")),
    },
    "a connection of http.client is given another request: {}",
    expect=STOPPED,
    group="connection_",
)


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
