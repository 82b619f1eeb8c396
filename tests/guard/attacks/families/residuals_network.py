"""Network attacks that the guard alone does not stop; one that no longer succeeds fails the test."""

from __future__ import annotations

from tests.guard.attacks.families.request_smuggling import sending
from tests.guard.attacks.kit import Ground, Residual, settle_on_loop
from tests.guard.attacks.network import network_attack, open_connection, other, request
from tests.guard.attacks.peer_http import Reading

PROTOCOL = Residual(
    why="the host's loop calls a protocol that the subject has put in the place of the host's",
    closes="code provenance bounds what the protocol does with it; what it is given, it is given",
)
SERVER = Residual(
    why="the server does not read the body that it was promised, and takes it for the next request",
    closes="nothing on this side: the request is well-formed, and permitted",
)


@network_attack(
    "a server does not read the body of a permitted request",
    expect=SERVER,
    rules=sending,
    reading=Reading(length="none", sends=True),
)
def body_not_read(ground: Ground) -> None:
    hidden = request(ground, "/secret")
    sock = open_connection(ground).sock
    sock.sendall(request(ground, "/allowed", "POST", f"Content-Length: {len(hidden)}\r\n") + hidden)


async def hold_transport(ground: Ground) -> None:
    """The host has an open connection on its loop, and waits for an answer."""
    import asyncio

    _, ground.held.writer = await asyncio.open_connection(*other(ground))
    ground.held.writer.write(b"GET /secret HTTP/1.1\r\n\r\n")


@network_attack(
    "the protocol of a connection of the host is exchanged",
    expect=PROTOCOL,
    prepare=hold_transport,
    then=settle_on_loop,
)
async def protocol_exchanged(ground: Ground) -> None:
    import asyncio

    class Mine(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            ground.loot.append(data)
            ground.steal()

    ground.held.writer.transport.set_protocol(Mine())
