"""Other types for addresses, and other ways to call the same methods."""

from __future__ import annotations

import socket

from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import LIMIT, REFUSED, ask, dial, network_attacks_of, one_path, other, peers


def both_forms(ground: Ground) -> list[tuple[str, str]]:
    """The permitted server, as a URL and as a socket."""
    return [*one_path(ground), ("connect", f"127.0.0.1:{peers(ground).web}")]


class Port:
    """A port that is another one after it was looked at a number of times."""

    def __init__(self, left: int, first: int, then: int) -> None:
        self.left, self.first, self.then = left, first, then

    def __index__(self) -> int:
        self.left -= 1
        return self.first if self.left >= 0 else self.then


class ForgedPort(int):
    """A port that claims to be another one."""

    claim = 0

    def __index__(self) -> int:
        return self.claim

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Host(str):
    """The text of one address; encoded, it is another one."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return b"127.0.0.2"


class Pair(tuple):
    """An address that gives other parts to Python than to C."""

    __slots__ = ()

    def __getitem__(self, index: object) -> object:
        return ("127.0.0.1", 1)[index]

    def __iter__(self):
        return iter(("127.0.0.1", 1))

    def __len__(self) -> int:
        return 2


def changing_port(method: str):
    def act(ground: Ground) -> object:
        for count in range(4):
            sock = socket.socket()
            sock.settimeout(LIMIT)
            try:
                getattr(sock, method)(("127.0.0.1", Port(count, peers(ground).web, peers(ground).other)))
                if sock.getpeername() == other(ground):
                    return ask(sock)
            except (PermissionError, ValueError, TypeError) as error:
                ground.errors[:] = [error]
        return None

    return act


def forged_port(ground: Ground) -> object:
    port = ForgedPort(peers(ground).other)
    ForgedPort.claim = peers(ground).web
    return ask(dial(("127.0.0.1", port)))


def changing_datagram(ground: Ground) -> None:
    for count in range(4):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.sendto(b"x", ("127.0.0.1", Port(count, peers(ground).web, peers(ground).other)))
        except (PermissionError, ValueError, TypeError) as error:
            ground.errors[:] = [error]


network_attacks_of(
    {
        "changing_port": changing_port("connect"),
        "changing_port_ex": changing_port("connect_ex"),
        "forged_port": forged_port,
        "host_by_encoding": lambda ground: ask(dial((Host("127.0.0.1"), peers(ground).web)), "/allowed"),
        "forged_pair": lambda ground: ask(dial(Pair(other(ground)))),
        "bytes": lambda ground: ask(dial((b"127.0.0.1", peers(ground).other))),
        "bytearray": lambda ground: ask(dial((bytearray(b"127.0.0.1"), peers(ground).other))),
    },
    "an address is not what it looks like: {}",
    expect=REFUSED.quietly.or_raises("TypeError"),
    rules=both_forms,
    group="address_",
)
network_attacks_of(
    {"changing_port": changing_datagram},
    "the address of a datagram is not what it looks like: {}",
    expect=REFUSED.quietly.or_raises("TypeError"),
    rules=lambda ground: [("connect", f"127.0.0.1:{peers(ground).proxy}"), *one_path(ground)],
    servers=("udp", "proxy"),
    group="datagram_",
)


def hold_methods(ground: Ground) -> None:
    """Taken before the guard was installed."""
    import _socket

    ground.held.connect = socket.socket.connect
    ground.held.raw = _socket.socket.connect
    ground.held.bound = (ready := socket.socket()).connect
    ground.held.ready = ready
    ground.held.create = socket.create_connection
    ground.held.entry = vars(_socket.socket)["connect"]


def with_method(find):
    def act(ground: Ground) -> object:
        sock = socket.socket()
        sock.settimeout(LIMIT)
        find(ground, sock)(other(ground))
        return ask(sock)

    return act


def by_bound(ground: Ground) -> object:
    ground.held.bound(other(ground))
    return ask(ground.held.ready)


def by_subclass(ground: Ground) -> object:
    class Mine(socket.socket):
        family = socket.AF_UNIX

        def connect(self, address: object) -> None:
            super(socket.socket, self).connect(address)

        def fileno(self) -> int:
            return -1

    sock = Mine()
    sock.connect(other(ground))
    return ask(socket.socket(fileno=sock.detach()))


def by_proxy(ground: Ground) -> object:
    import weakref

    sock = socket.socket()
    weakref.proxy(sock).connect(other(ground))
    return ask(sock)


def by_map(ground: Ground) -> object:
    sock = socket.socket()
    list(map(sock.connect, [other(ground)]))
    return ask(sock)


def by_key(ground: Ground) -> object:
    """C code of the library calls the method: a sort, with the method as its key."""
    sock = socket.socket()
    sorted([other(ground)], key=sock.connect)
    return ask(sock)


def by_family(ground: Ground) -> object:
    """The object is made with the wrong family for its number."""
    number = socket.socket().detach()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, number)
    again = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, sock.detach())
    again.connect(other(ground))
    return ask(again)


def by_wrong_family(ground: Ground) -> object:
    """An IPv4 address in the bytes of a unix address: the kernel goes by what it finds there."""
    number = socket.socket().detach()
    sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, number)
    try:
        sock.connect(("::ffff:127.0.0.1", peers(ground).other))
    except OSError as error:
        if isinstance(error, PermissionError):
            raise
        return ask(dial(other(ground)))
    return ask(socket.socket(fileno=sock.detach()))


def by_caller(ground: Ground) -> object:
    import operator

    sock = socket.socket()
    operator.methodcaller("connect", other(ground))(sock)
    return ask(sock)


network_attacks_of(
    {
        "by_class": with_method(lambda ground, sock: socket.socket.connect.__get__(sock)),
        "by_C_class": with_method(lambda ground, sock: __import__("_socket").socket.connect.__get__(sock)),
        "by_base": with_method(lambda ground, sock: super(socket.socket, sock).connect),
        "captured": with_method(lambda ground, sock: lambda where: ground.held.connect(sock, where)),
        "captured_raw": with_method(lambda ground, sock: lambda where: ground.held.raw(sock, where)),
        "captured_entry": with_method(lambda ground, sock: ground.held.entry.__get__(sock)),
        "captured_bound": by_bound,
        "captured_function": lambda ground: ask(ground.held.create(other(ground))),
        "partial": with_method(lambda ground, sock: __import__("functools").partial(sock.connect)),
        "methodcaller": by_caller,
        "subclass": by_subclass,
        "proxy": by_proxy,
        "map": by_map,
        "key": by_key,
        "family": by_family,
        "wrong_family": by_wrong_family,
    },
    "the method that connects is reached in another way: {}",
    expect=REFUSED,
    before=hold_methods,
    group="method_",
)
