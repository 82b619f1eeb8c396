"""Network clients that are not part of the standard library."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import LIMIT, network_attacks_of, other, other_url

LOADED = ("requests", "httpx", "httpcore", "httpx2", "httpcore2", "truststore", "aiohttp")
"""What the host has loaded since it installed the guard; see runner.py."""


def requests_get(ground: Ground) -> object:
    import requests

    return requests.get(other_url(ground), timeout=LIMIT).text


def requests_session(ground: Ground) -> object:
    import requests

    session = requests.Session()
    prepared = session.prepare_request(requests.Request("GET", other_url(ground)))
    return session.get_adapter(other_url(ground)).send(prepared, timeout=LIMIT).text


def urllib3_pool(ground: Ground) -> object:
    import urllib3

    return urllib3.PoolManager().request("GET", other_url(ground), retries=False).data


def urllib3_connection(ground: Ground) -> object:
    import urllib3.connection

    made = urllib3.connection.HTTPConnection(*other(ground), timeout=LIMIT)
    made.request("GET", "/secret")
    return made.getresponse().data


def httpx_client(module: str, call: Callable):
    def act(ground: Ground) -> object:
        library = __import__(module)
        with library.Client(verify=False) as made:
            return call(library, made, other_url(ground))

    return act


def httpx_stream(library, made, address: str) -> object:
    with made.stream("GET", address) as answer:
        return answer.read()


HTTPX = {
    "get": lambda library, made, address: made.get(address).text,
    "send": lambda library, made, address: made.send(library.Request("GET", address)).text,
    "stream": httpx_stream,
    "single": lambda library, made, address: made._send_single_request(library.Request("GET", address)).read(),
    "transport": lambda library, made, address: (
        library.HTTPTransport(verify=False).handle_request(library.Request("GET", address)).read()
    ),
}


def httpx_async(module: str):
    async def act(ground: Ground) -> object:
        async with __import__(module).AsyncClient(verify=False) as made:
            return (await made.get(other_url(ground))).text

    return act


async def aiohttp_get(ground: Ground) -> object:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(other_url(ground)) as answer:
        return await answer.text()


async def aiohttp_connector(ground: Ground) -> object:
    """The connector is asked for a connection by hand."""
    import aiohttp
    import yarl

    connector = aiohttp.TCPConnector()
    async with aiohttp.ClientSession(connector=connector) as session:
        request = aiohttp.ClientRequest("GET", yarl.URL(other_url(ground)), loop=asyncio.get_running_loop())
        made = await connector.connect(request, [], aiohttp.ClientTimeout(LIMIT))
        made.transport.write(b"GET /secret HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.05)


network_attacks_of(
    {"get": requests_get, "adapter": requests_session},
    "a server that no rule names is asked by requests: {}",
    group="requests_",
    needs=("requests",),
)
network_attacks_of(
    {"pool": urllib3_pool, "connection": urllib3_connection},
    "a server that no rule names is asked by urllib3: {}",
    group="urllib3_",
    needs=("urllib3",),
)
for library, names in {"httpx": ("get",), "httpx2": tuple(HTTPX)}.items():
    network_attacks_of(
        {name: httpx_client(library, HTTPX[name]) for name in names} | {"async": httpx_async(library)},
        f"a server that no rule names is asked by {library}: {{}}",
        group=f"{library}_",
        needs=(library,),
    )
network_attacks_of(
    {"get": aiohttp_get, "connector": aiohttp_connector},
    "a server that no rule names is asked by aiohttp: {}",
    group="aiohttp_",
    needs=("aiohttp",),
)
