"""What the network attacks share: the servers, the usual rule, the verdicts, and small clients without any library."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from tests.guard.attacks.kit import FD, Companion, Denied, Expectation, Ground, attack
from tests.guard.attacks.peer_http import Reading
from tests.guard.attacks.peers import Peers

NETWORK = Denied(("External URL is locked. (sandbox_network_denied:",))
INVALID = Denied(("InvalidInputError",))
MISSING = Denied(("NetworkTargetMissingError",))
NETWORK_OR_FD = NETWORK | FD
REFUSED = NETWORK | INVALID
"""What is not permitted, or cannot be read in one way only: both are refusals."""
LIMIT = 30
"""Seconds after which a client of an attack gives up."""

Rules = Callable[[Ground], list[tuple[str, str]]]


def one_path(ground: Ground) -> list[tuple[str, str]]:
    """The usual rule: reading below one path of one server."""
    return [("receive", f"http://127.0.0.1:{peers(ground).web}/allowed")]


def one_path_secure(ground: Ground) -> list[tuple[str, str]]:
    """The same of the server with TLS."""
    return [("receive", f"https://127.0.0.1:{peers(ground).tls}/allowed")]


def one_socket(ground: Ground) -> list[tuple[str, str]]:
    """A rule in host form: any protocol, one server."""
    return [("connect", f"127.0.0.1:{peers(ground).web}")]


def peers(ground: Ground) -> Peers:
    """The servers of this attack."""
    return ground.held.peers


def enter_town(ground: Ground) -> None:
    """Move into a network where a name server of the attack's own answers."""
    from tests.guard.attacks import namespaces, peer_names

    files = {
        "/etc/resolv.conf": "nameserver 127.0.0.53\nsearch corp.test\noptions timeout:20 attempts:1\n",
        "/etc/hosts": "127.0.0.1 localhost\n",
        "/etc/nsswitch.conf": "hosts: files dns\n",
    }
    namespaces.enter(ground.base, files=files, name="attacked", addresses=peer_names.ADDRESSES)


enter_town.first = True
IN_TOWN = {"before": enter_town, "servers": ("town",), "needs": ("root", "namespaces", "IPv6", "/etc/nsswitch.conf")}
"""Options of an attack that is played there."""


def guarded(ground: Ground) -> bool:
    """Whether the attack is played under a guard."""
    return type(ground.held.make).__name__ != "type"


def policy_of(rules: Rules) -> Callable[[Ground], dict[str, object]]:
    """The arguments of a guard with these network rules."""

    def policy(ground: Ground) -> dict[str, object]:
        entries = [{"resource_type": "network", "operation": how, "target": where} for how, where in rules(ground)]
        return {"access": entries}

    return policy


def network_attack(
    text: str,
    *,
    expect: Expectation = NETWORK,
    rules: Rules = one_path,
    servers: tuple[str, ...] = (),
    reading: Reading | None = None,
    before: Companion | None = None,
    prepare: Companion | None = None,
    then: Companion | None = None,
    **options: object,
) -> Callable[[Companion], Companion]:
    """An attack that succeeds when its result is the secret, or when it reached a server in a way it should not have.

    The host's parts: `before` the guard is installed, `prepare` before the guard is entered, `then` after the attack.
    """

    chosen = {
        "early": _early(before, Servers(reading, servers)),
        "policy": policy_of(rules),
        "prepare": _prepare(prepare),
        "after": _after(then),
        "stage": "network",
    }
    return attack(text, expect=expect, **(chosen | options))


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers an attack wants besides the usual ones, and how they read."""

    reading: Reading | None
    names: tuple[str, ...]


def _is_async(function: Companion | None) -> bool:
    return function is not None and bool(function.__code__.co_flags & 0x80)


def _early(before: Companion | None, servers: Servers) -> Companion:
    def early(ground: Ground) -> None:
        if before is not None and getattr(before, "first", False):
            before(ground)
        ground.held.peers = Peers(ground.base, ground.SECRET, reading=servers.reading, more=servers.names)
        if before is not None and not getattr(before, "first", False):
            before(ground)

    # Servers are processes of their own, the same before and after the guard is installed.
    early.is_only_servers = before is None or before is enter_town
    return early


def _prepare(prepare: Companion | None) -> Companion | None:
    """The host's preparation; what the host itself asks the servers for is no hit."""
    if prepare is None:
        return None

    def plain(ground: Ground) -> None:
        prepare(ground)
        peers(ground).forget()

    async def waiting(ground: Ground) -> None:
        await prepare(ground)
        peers(ground).forget()

    return waiting if _is_async(prepare) else plain


def _after(then: Companion | None) -> Companion:
    def plain(ground: Ground) -> object:
        found = then(ground) if then is not None else None
        return peers(ground).hits() or found

    async def waiting(ground: Ground) -> object:
        found = await then(ground)
        return peers(ground).hits() or found

    return waiting if _is_async(then) else plain


def network_attacks_of(table: dict[str, Companion], text: str, *, group: str = "", **options: object) -> None:
    """One such attack per row of a table of small callables."""
    for name, act in table.items():
        network_attack(text.format(name), name=group + name, **options)(act)


def dial(address: object, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """A connected socket."""
    sock = socket.socket(family, kind)
    sock.settimeout(LIMIT)
    sock.connect(address)
    return sock


def ask(sock: socket.socket, path: str = "/secret", host: str = "") -> bytes:
    """Send a request over a connected socket and read the beginning of the answer."""
    name = host or "{}:{}".format(*sock.getpeername())
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
    return sock.recv(4096)


def request(ground: Ground, path: str, method: str = "GET", more: str = "") -> bytes:
    """A request to the server of the usual rule, as it goes over the wire."""
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{peers(ground).web}\r\n{more}\r\n".encode("latin-1")


def here(ground: Ground, text: str | bytes) -> bytes:
    """What is to be sent, with the server of the usual rule in the place of HERE."""
    data = text if isinstance(text, bytes) else text.encode("latin-1")
    return data.replace(b"HERE", b"127.0.0.1:%d" % peers(ground).web)


def other(ground: Ground) -> tuple[str, int]:
    """Where the server listens that no rule names."""
    return "127.0.0.1", peers(ground).other


def web(ground: Ground) -> tuple[str, int]:
    """Where the server of the usual rule listens."""
    return "127.0.0.1", peers(ground).web


def twin(ground: Ground) -> tuple[str, int]:
    """The same port at another address, which no rule names."""
    return "127.0.0.2", peers(ground).web


def url(ground: Ground, path: str = "/allowed", scheme: str = "http") -> str:
    """A URL of the server of the usual rule."""
    return f"{scheme}://127.0.0.1:{peers(ground).tls if scheme == 'https' else peers(ground).web}{path}"


def other_url(ground: Ground, path: str = "/secret") -> str:
    """A URL of the server that no rule names."""
    return f"http://127.0.0.1:{peers(ground).other}{path}"


def open_connection(ground: Ground, path: str = "/allowed"):
    """A connection of `http.client` over which a permitted request has just gone."""
    import http.client

    connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
    connection.request("GET", path)
    connection.getresponse().read()
    return connection
