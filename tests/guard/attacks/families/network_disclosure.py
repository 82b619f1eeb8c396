"""Denials on the network reveal nothing: the same answer whether a server, socket or name exists or not."""

from __future__ import annotations

import socket

from tests.guard.attacks import namespaces, peer_names  # noqa: F401 - loaded here, used in the attacked process
from tests.guard.attacks.kit import Fruitless, Ground
from tests.guard.attacks.network import IN_TOWN, LIMIT, network_attacks_of, one_path, peers

SAME = Fruitless("the answers are equal in type, text and attributes")


def answer(act, *words: str) -> str:
    """What the caller learns, without the names that were asked for."""
    try:
        text = f"value {act()!r}"
    except BaseException as error:
        seen = [type(error).__name__, str(error), repr(error), str(error.__cause__)]
        for name in ("errno", "strerror", "filename", "code", "layer", "operation", "target", "hint", "decision"):
            seen.append(str(getattr(error, name, None)))
        text = "\n".join(seen)
    for word in words:
        text = text.replace(word, "NAME")
    return text


def closed_port() -> int:
    """A port where nobody listens; it stays taken, so that nobody begins to."""
    KEPT.append(socket.socket())
    KEPT[-1].bind(("127.0.0.1", 0))
    return KEPT[-1].getsockname()[1]


KEPT: list[socket.socket] = []


def connect(address: object, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> None:
    with socket.socket(family, kind) as sock:
        sock.settimeout(LIMIT)
        sock.connect(address)


def ports(act):
    def play(ground: Ground) -> bool:
        here, there = peers(ground).other, closed_port()
        return answer(lambda: act(here), str(here)) != answer(lambda: act(there), str(there))

    return play


def fetch(port: int) -> None:
    import urllib.request

    urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=LIMIT).close()


def without_hits(ground: Ground) -> None:
    """Only the answers count here."""
    peers(ground).forget()


network_attacks_of(
    {
        "connect": ports(lambda port: connect(("127.0.0.1", port))),
        "connect_ex": ports(lambda port: socket.socket().connect_ex(("127.0.0.1", port))),
        "urllib": ports(fetch),
    },
    "what is said about a port where somebody listens is compared with one where nobody does: {}",
    expect=SAME,
    group="port_",
    then=without_hits,
)


def sockets(kind: int):
    def play(ground: Ground) -> bool:
        names = peers(ground).sockets if kind == socket.SOCK_STREAM else peers(ground).datagrams
        here, there = names["outside"], f"{ground.outside_dir}/missing"
        first = answer(lambda: connect(here, socket.AF_UNIX, kind), here)
        return first != answer(lambda: connect(there, socket.AF_UNIX, kind), there)

    return play


def abstract(ground: Ground) -> bool:
    here, there = peers(ground).sockets["abstract"], "\0attack-missing"
    first = answer(lambda: connect(here, socket.AF_UNIX), here[1:])
    return first != answer(lambda: connect(there, socket.AF_UNIX), there[1:])


def bound(ground: Ground) -> bool:
    here, there = peers(ground).sockets["outside"], f"{ground.outside_dir}/missing"
    first = answer(lambda: socket.socket(socket.AF_UNIX).bind(here), here)
    return first != answer(lambda: socket.socket(socket.AF_UNIX).bind(there), there)


network_attacks_of(
    {
        "stream": sockets(socket.SOCK_STREAM),
        "datagram": sockets(socket.SOCK_DGRAM),
        "abstract": abstract,
        "bind": bound,
    },
    "what is said about a unix socket that exists is compared with one that does not: {}",
    expect=SAME,
    group="unix_",
    servers=("unix",),
    host_writes=True,
    then=without_hits,
)


def names(act):
    def play(ground: Ground) -> bool:
        here, there = "evil.test", "none.test"
        return answer(lambda: act(here), here) != answer(lambda: act(there), there)

    return play


network_attacks_of(
    {
        "getaddrinfo": names(lambda name: socket.getaddrinfo(name, 80)),
        "gethostbyname": names(socket.gethostbyname),
        "connect": names(lambda name: connect((name, 9))),
    },
    "what is said about a name that exists is compared with one that does not: {}",
    expect=SAME,
    rules=one_path,
    group="name_",
    then=without_hits,
    **IN_TOWN,
)
