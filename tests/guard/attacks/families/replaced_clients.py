"""HTTP clients whose adapters are removed, and transports and connectors of the subject."""

from __future__ import annotations

import socket
import sys

from tests.guard.attacks.kit import BROKEN, FD, Ground
from tests.guard.attacks.network import (
    LIMIT,
    REFUSED,
    ask,
    network_attack,
    network_attacks_of,
    other,
    other_url,
    peers,
    request,
    url,
    web,
)

LOADED = ("requests", "httpx2", "httpcore2", "truststore", "aiohttp")
"""What the host has loaded since it installed the guard; see runner.py."""

STOPPED = REFUSED | FD


def urlopen(target: object) -> object:
    import urllib.request

    return urllib.request.urlopen(target, timeout=LIMIT).read()


def originals() -> list[object]:
    """What the adapters put aside: functions of the clients as they were."""
    import gc
    import types

    found = []
    for function in gc.get_objects():
        if isinstance(function, types.FunctionType) and "democrai_sandbox" in (function.__module__ or ""):
            found += [cell.cell_contents for cell in function.__closure__ or () if cell.cell_contents is not None]
            found += list(function.__defaults__ or ())
            found.append(getattr(function, "__wrapped__", None))
    return [thing for thing in found if isinstance(thing, types.FunctionType)]


def restored(ground: Ground) -> object:
    """Every function that an adapter put aside is put back where it came from."""
    import http.client
    import urllib.request

    for thing in originals():
        owner = thing.__qualname__.rpartition(".")[0]
        for module in (http.client, urllib.request, socket):
            kind = getattr(module, owner, None)
            if kind is not None:
                setattr(kind, thing.__name__, thing)
    return urlopen(other_url(ground))


def unwrapped(ground: Ground) -> object:
    import http.client

    for name in ("request", "connect", "putrequest", "send", "endheaders", "_send_output", "getresponse"):
        method = getattr(http.client.HTTPConnection, name)
        while hasattr(method, "__wrapped__"):
            method = method.__wrapped__
        setattr(http.client.HTTPConnection, name, method)
    return urlopen(other_url(ground))


def imported_again(ground: Ground) -> object:
    """The client is imported anew, as it is on disk."""
    import importlib

    for name in [name for name in sys.modules if name.partition(".")[0] in ("http", "urllib")]:
        del sys.modules[name]
    client = importlib.import_module("http.client")
    connection = client.HTTPConnection(*other(ground), timeout=LIMIT)
    connection.request("GET", "/secret")
    return connection.getresponse().read()


def socket_imported_again(ground: Ground) -> object:
    import importlib

    for name in ("socket", "_socket"):
        sys.modules.pop(name, None)
    module = importlib.import_module("socket")
    return ask(module.create_connection(other(ground)))


def adapters_removed(ground: Ground) -> object:
    """The guard's own modules for clients are emptied."""
    for name, module in list(sys.modules.items()):
        if name.startswith("democrai_sandbox.guard.clients"):
            for key in list(vars(module)):
                if not key.startswith("__"):
                    vars(module)[key] = lambda *_, **__: None
    return urlopen(other_url(ground))


network_attacks_of(
    {
        "restored": restored,
        "unwrapped": unwrapped,
        "imported_again": imported_again,
        "socket_imported_again": socket_imported_again,
        "emptied": adapters_removed,
    },
    "the adapters of the clients are taken away: {}",
    expect=BROKEN,
    group="adapters_",
)


def fake_core(ground: Ground) -> object:
    """The names that adapters call the guard by lead to functions that always say yes."""
    for name, module in list(sys.modules.items()):
        if name.startswith("democrai_sandbox"):
            for key in ("request", "origin", "websocket", "websocket_use", "may_use", "subject_key"):
                if key in vars(module):
                    try:
                        setattr(module, key, lambda *_, **__: None)
                    except Exception:
                        vars(module)[key] = lambda *_, **__: None
    return urlopen(other_url(ground))


network_attack("the functions that adapters ask always say yes", expect=BROKEN, name="adapters_core")(fake_core)


def homemade_httpx(ground: Ground) -> object:
    """A transport of the subject's, inside a permitted request."""
    import httpx2

    class Transport(httpx2.BaseTransport):
        def handle_request(self, asked):
            sock = socket.create_connection(other(ground))
            return httpx2.Response(200, content=ask(sock))

    return httpx2.Client(transport=Transport()).get(url(ground)).text


def homemade_httpx_raw(ground: Ground) -> object:
    import httpx2

    class Transport(httpx2.BaseTransport):
        def handle_request(self, asked):
            sock = socket.create_connection(web(ground))
            sock.sendall(request(ground, "/secret"))
            return httpx2.Response(200, content=sock.recv(999))

    return httpx2.Client(transport=Transport()).get(url(ground)).text


def changed_httpx(ground: Ground) -> object:
    """A hook changes the request after it was made."""
    import httpx2

    def change(asked) -> None:
        asked.url = httpx2.URL(url(ground, "/secret"))

    return httpx2.Client(event_hooks={"request": [change]}).get(url(ground)).text


def redirecting_adapter(ground: Ground) -> object:
    """An adapter of requests that sends elsewhere."""
    import requests
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def send(self, asked, **options: object):
            asked.url = other_url(ground)
            return super().send(asked, **options)

    session = requests.Session()
    session.mount("http://", Adapter())
    return session.get(url(ground), timeout=LIMIT).text


def requests_auth(ground: Ground) -> object:
    """Authentication of the subject's changes the request."""
    import requests

    def change(asked):
        asked.url = url(ground, "/secret")
        return asked

    return requests.get(url(ground), auth=change, timeout=LIMIT).text


def urllib3_pool(ground: Ground) -> object:
    """A pool of urllib3 for the permitted host is told another one after it was made."""
    import urllib3

    pool = urllib3.HTTPConnectionPool(*web(ground))
    pool.urlopen("GET", "/allowed")
    pool.port = peers(ground).other
    pool.pool.queue.clear()
    pool.pool.put(None)
    return pool.urlopen("GET", "/secret", retries=False).data


async def aiohttp_connector(ground: Ground) -> object:
    """A connector of the subject's hands out a connection to another place."""
    import asyncio

    import aiohttp

    class Connector(aiohttp.TCPConnector):
        async def _create_connection(self, asked, traces, timeout):
            loop = asyncio.get_running_loop()
            _, protocol = await loop.create_connection(self._factory, *other(ground))
            return protocol

    async with aiohttp.ClientSession(connector=Connector()) as session, session.get(url(ground)) as answer:
        return await answer.text()


async def aiohttp_request_class(ground: Ground) -> object:
    import aiohttp
    import yarl

    class Request(aiohttp.ClientRequest):
        def __init__(self, method: str, where: yarl.URL, **options: object) -> None:
            super().__init__(method, yarl.URL(url(ground, "/secret")), **options)

    async with aiohttp.ClientSession(request_class=Request) as session, session.get(url(ground)) as answer:
        return await answer.text()


for library, table in {
    "httpx2": {"transport": homemade_httpx, "transport_raw": homemade_httpx_raw, "hook": changed_httpx},
    "requests": {"adapter": redirecting_adapter, "authentication": requests_auth},
    "urllib3": {"pool": urllib3_pool},
    "aiohttp": {"connector": aiohttp_connector, "request_class": aiohttp_request_class},
}.items():
    network_attacks_of(
        table,
        f"a part of {library} is the subject's own: {{}}",
        expect=STOPPED,
        group=f"homemade_{library}_",
        needs=(library,),
    )
