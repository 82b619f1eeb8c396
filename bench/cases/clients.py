"""HTTP clients: one small GET after another on a kept connection."""

from __future__ import annotations

import asyncio
from importlib import import_module
from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from bench.cases.sockets import IDLE, LIMIT
from bench.discard_server import HOST
from bench.registry import SHORT_PARTS, UnavailableError, case

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from bench.fixture import Fixture
    from bench.registry import Access, Loop

STRETCH = 5
"""Limit of the rows with a target."""
KEPT_LIMIT = 1.10
"""Limit for clients that do little work, so that the checks are a larger part."""
BODY = b"ok\n"


def _client(name: str) -> ModuleType:
    """Import a client before any guard, like a host's imports."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise UnavailableError(f"{name} is not installed: make setup") from None


def _origin(bed: Fixture) -> str:
    return f"http://{HOST}:{bed.ground.port('http')}"


def _receiving(bed: Fixture) -> Access:
    return (("receive", f"{_origin(bed)}/v1/"),)


def _get_loop(make: Callable[[], Callable[[], bytes]]) -> Loop:
    """Repeat the GET of a client that the first turn creates, so that it belongs to the subject."""
    get: Callable[[], bytes] | None = None

    def loop(turns: int) -> int:
        nonlocal get
        if get is None:
            get = make()
            if get() != BODY:
                raise AssertionError("the server sent an unexpected answer")
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            get()
        return perf_counter_ns() - start

    return loop


@case(
    "requests keep-alive GET",
    limit=LIMIT,
    idle=IDLE,
    access=_receiving,
    parts=SHORT_PARTS,
    stretch=STRETCH,
    beside=True,
)
def with_requests(bed: Fixture) -> Loop:
    requests = _client("requests")
    url = f"{_origin(bed)}/v1/item"

    def make() -> Callable[[], bytes]:
        session = requests.Session()
        return lambda: session.get(url).content

    return _get_loop(make)


def _with_httpx(bed: Fixture, name: str) -> Loop:
    httpx = _client(name)
    url = f"{_origin(bed)}/v1/item"

    def make() -> Callable[[], bytes]:
        client = httpx.Client()
        return lambda: client.get(url).content

    return _get_loop(make)


@case(
    "httpx2 keep-alive GET",
    limit=LIMIT,
    idle=IDLE,
    access=_receiving,
    reference=False,
    parts=SHORT_PARTS,
    stretch=STRETCH,
    beside=True,
)
def with_httpx2(bed: Fixture) -> Loop:
    return _with_httpx(bed, "httpx2")


@case("httpx keep-alive GET", access=_receiving, parts=SHORT_PARTS, beside=True)
def with_httpx(bed: Fixture) -> Loop:
    return _with_httpx(bed, "httpx")


@case(
    "urllib3 keep-alive GET",
    limit=KEPT_LIMIT,
    access=_receiving,
    parts=SHORT_PARTS,
    stretch=STRETCH,
    beside=True,
)
def with_urllib3(bed: Fixture) -> Loop:
    urllib3 = _client("urllib3")
    url = f"{_origin(bed)}/v1/item"

    def make() -> Callable[[], bytes]:
        pools = urllib3.PoolManager()
        return lambda: pools.request("GET", url).data

    return _get_loop(make)


@case(
    "http.client keep-alive GET",
    limit=KEPT_LIMIT,
    access=_receiving,
    parts=SHORT_PARTS,
    stretch=STRETCH,
    beside=True,
)
def with_http_client(bed: Fixture) -> Loop:
    client = _client("http.client")
    port = bed.ground.port("http")

    def make() -> Callable[[], bytes]:
        connection = client.HTTPConnection(HOST, port)

        def get() -> bytes:
            connection.request("GET", "/v1/item")
            body: bytes = connection.getresponse().read()
            return body

        return get

    return _get_loop(make)


@case(
    "aiohttp keep-alive GET",
    limit=KEPT_LIMIT,
    wrapped=False,
    parts=SHORT_PARTS,
    stretch=STRETCH,
    beside=True,
)
def with_aiohttp(bed: Fixture) -> Loop:
    aiohttp = _client("aiohttp")
    url = f"{_origin(bed)}/v1/item"
    access = _receiving(bed)
    events = asyncio.new_event_loop()
    session: Any = None

    async def get() -> bytes:
        async with session.get(url) as response:
            body: bytes = await response.read()
            return body

    async def guarded(turns: int) -> int:
        nonlocal session
        with bed.guard(access=access):
            session = session or aiohttp.ClientSession()
            if await get() != BODY:
                raise AssertionError("the server sent an unexpected answer")
            start = perf_counter_ns()
            for _ in repeat(None, turns):
                await get()
            return perf_counter_ns() - start

    return lambda turns: events.run_until_complete(guarded(turns))
