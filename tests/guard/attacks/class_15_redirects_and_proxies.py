"""Class 15, a permitted request leads to another place: redirects, proxies, tunnels."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import (
    LIMIT,
    REFUSED,
    ask,
    dial,
    here,
    network_attack,
    network_attacks_of,
    one_path,
    other,
    other_url,
    peers,
    url,
    web,
)


def redirecting(ground: Ground, place: str = "", how: str = "to") -> str:
    """A permitted URL that leads elsewhere."""
    return url(ground, f"/allowed/{how}?{place or other_url(ground)}")


def by_urllib(address: str) -> object:
    import urllib.request

    return urllib.request.urlopen(address, timeout=LIMIT).read()


def by_requests(address: str, **options: object) -> object:
    import requests

    return requests.get(address, timeout=LIMIT, **options).text


def by_session(address: str) -> object:
    """A session of requests follows redirects by itself when asked to."""
    import requests

    with requests.Session() as session:
        first = session.get(address, allow_redirects=False)
        return next(session.resolve_redirects(first, first.request)).text


def by_urllib3(address: str) -> object:
    import urllib3

    return urllib3.PoolManager().request("GET", address, retries=3).data


def by_httpx(module: str):
    def act(address: str) -> object:
        with __import__(module).Client(follow_redirects=True) as client:
            return client.get(address).text

    return act


def by_httpx_next(address: str) -> object:
    """The next request is taken from the answer and sent."""
    import httpx2

    with httpx2.Client() as client:
        return client.send(client.get(address).next_request).text


def by_httpx_async(module: str):
    async def act(address: str) -> object:
        async with __import__(module).AsyncClient(follow_redirects=True) as client:
            return (await client.get(address)).text

    return act


async def by_aiohttp(address: str) -> object:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        return await answer.text()


CLIENTS = {
    "urllib": by_urllib,
    "requests": by_requests,
    "requests_session": by_session,
    "urllib3": by_urllib3,
    "httpx": by_httpx("httpx"),
    "httpx2": by_httpx("httpx2"),
    "httpx2_next": by_httpx_next,
}
ASYNC_CLIENTS = {"httpx2_async": by_httpx_async("httpx2"), "aiohttp": by_aiohttp}


def library_of(name: str) -> tuple[str, ...]:
    library = name.partition("_")[0]
    return () if library == "urllib" else (library,)


def follow(fetch):
    return lambda ground: fetch(redirecting(ground))


def follow_async(fetch):
    async def act(ground: Ground) -> object:
        return await fetch(redirecting(ground))

    return act


for client, fetch in CLIENTS.items():
    network_attacks_of(
        {client: follow(fetch)},
        "a permitted URL redirects to a server that no rule names, and the client follows: {}",
        group="redirect_",
        needs=library_of(client),
    )
for client, fetch in ASYNC_CLIENTS.items():
    network_attacks_of(
        {client: follow_async(fetch)},
        "a permitted URL redirects to a server that no rule names, and the client follows: {}",
        group="redirect_",
        needs=library_of(client),
    )
network_attacks_of(
    {
        "same_server": lambda ground: by_urllib(redirecting(ground, "/secret")),
        "two_hops": lambda ground: by_urllib(redirecting(ground, f"/allowed/to?{other_url(ground)}")),
        "without_scheme": lambda ground: by_urllib(redirecting(ground, f"//127.0.0.1:{peers(ground).other}/secret")),
        "dots": lambda ground: by_urllib(redirecting(ground, "/allowed/../secret")),
        "kept_method": lambda ground: by_urllib(redirecting(ground, how="again")),
        "localhost": lambda ground: by_urllib(redirecting(ground, f"http://localhost:{peers(ground).other}/secret")),
        "file_transfer": lambda ground: by_urllib(redirecting(ground, f"ftp://127.0.0.1:{peers(ground).banner}/x")),
    },
    "a permitted URL redirects to a place that no rule names: {}",
    expect=REFUSED,
    group="place_",
    servers=("banner",),
)


def through(ground: Ground) -> str:
    return f"http://127.0.0.1:{peers(ground).other}"


def set_proxy(ground: Ground, proxy: str) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        os.environ[name] = proxy
    for name in ("no_proxy", "NO_PROXY"):
        os.environ.pop(name, None)


def by_environment(fetch):
    def act(ground: Ground) -> object:
        set_proxy(ground, through(ground))
        return fetch(url(ground))

    return act


def by_handler(ground: Ground) -> object:
    import urllib.request

    handler = urllib.request.ProxyHandler({"http": through(ground)})
    return urllib.request.build_opener(handler).open(url(ground), timeout=LIMIT).read()


def by_request_proxy(ground: Ground) -> object:
    import urllib.request

    request = urllib.request.Request(url(ground))
    request.set_proxy("%s:%s" % other(ground), "http")
    return urllib.request.urlopen(request, timeout=LIMIT).read()


def by_tunnel(ground: Ground) -> object:
    """`http.client` is told to go through a tunnel of a server that no rule names."""
    import http.client

    connection = http.client.HTTPConnection(*other(ground), timeout=LIMIT)
    connection.set_tunnel(*web(ground))
    connection.request("GET", "/allowed")
    return connection.getresponse().read()


def by_requests_option(ground: Ground) -> object:
    return by_requests(url(ground), proxies={"http": through(ground)})


def by_urllib3_proxy(ground: Ground) -> object:
    import urllib3

    return urllib3.ProxyManager(through(ground)).request("GET", url(ground), retries=False).data


def by_httpx_option(ground: Ground) -> object:
    import httpx2

    with httpx2.Client(proxy=through(ground)) as client:
        return client.get(url(ground)).text


async def by_aiohttp_option(ground: Ground) -> object:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(url(ground), proxy=through(ground)) as answer:
        return await answer.text()


PROXIED = {
    "urllib_environment": by_environment(by_urllib),
    "urllib_handler": by_handler,
    "urllib_request": by_request_proxy,
    "urllib_tunnel": by_tunnel,
    "requests_environment": by_environment(by_requests),
    "requests_option": by_requests_option,
    "urllib3_manager": by_urllib3_proxy,
    "httpx2_environment": by_environment(by_httpx("httpx2")),
    "httpx2_option": by_httpx_option,
    "aiohttp_option": by_aiohttp_option,
}
for client, act in PROXIED.items():
    network_attacks_of(
        {client: act},
        "a permitted URL is asked for through a proxy that no rule names: {}",
        group="proxy_",
        needs=library_of(client),
    )


def proxy_rules(ground: Ground) -> list[tuple[str, str]]:
    """The proxy may be used, for what may be read anyway."""
    return [*one_path(ground), ("connect", f"http://127.0.0.1:{peers(ground).proxy}")]


def proxy_socket_rules(ground: Ground) -> list[tuple[str, str]]:
    """The same in the form of a socket rule."""
    return [*one_path(ground), ("connect", f"127.0.0.1:{peers(ground).proxy}")]


def real_proxy(ground: Ground) -> str:
    return f"http://127.0.0.1:{peers(ground).proxy}"


def target_by_environment(fetch):
    def act(ground: Ground) -> object:
        set_proxy(ground, real_proxy(ground))
        return fetch(url(ground, "/secret"))

    return act


def target_by_client(ground: Ground) -> object:
    """The connection is made for a permitted URL, and asks the proxy for another one."""
    import http.client
    import urllib.request

    set_proxy(ground, real_proxy(ground))
    original = http.client.HTTPConnection.putrequest

    def put(self, method: str, target: str, **options: object) -> None:
        original(self, method, target.replace("/allowed", "/secret"), **options)

    http.client.HTTPConnection.putrequest = put
    return urllib.request.urlopen(url(ground), timeout=LIMIT).read()


def tunnel_elsewhere(ground: Ground) -> object:
    """A tunnel through the permitted proxy to a server that no rule names."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", peers(ground).proxy, timeout=LIMIT)
    connection.set_tunnel(*other(ground))
    connection.request("GET", "/secret")
    return connection.getresponse().read()


def proxy_direct(ground: Ground) -> object:
    """The proxy itself is asked, as if it were the server."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", peers(ground).proxy, timeout=LIMIT)
    connection.request("GET", url(ground, "/secret"))
    return connection.getresponse().read()


def second_request(ground: Ground) -> object:
    """A permitted request through the proxy, and behind it, on the same connection, another one."""
    import urllib.request
    from http.client import HTTPConnection

    kept: list[object] = []
    original = HTTPConnection.connect
    HTTPConnection.connect = lambda self: (original(self), kept.append(self.sock))[0]
    set_proxy(ground, real_proxy(ground))
    answer = urllib.request.urlopen(url(ground), timeout=LIMIT)
    kept[0].sendall(here(ground, f"GET {url(ground, '/secret')} HTTP/1.1\r\nHost: HERE\r\n\r\n"))
    return answer.fp.raw._sock.recv(999)


def without_connection_header(ground: Ground) -> object:
    """The proxy's connection lives on, because the header that ends it is left out."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", peers(ground).proxy, timeout=LIMIT)
    connection.request("GET", url(ground))
    connection.getresponse().read()
    connection.request("GET", other_url(ground))
    return connection.getresponse().read()


network_attacks_of(
    {
        "urllib": target_by_environment(by_urllib),
        "urllib_putrequest": target_by_client,
        "http_client": proxy_direct,
        "tunnel": tunnel_elsewhere,
        "second_request": second_request,
        "kept_alive": without_connection_header,
    },
    "a permitted proxy is asked for a URL that no rule covers: {}",
    rules=proxy_rules,
    expect=REFUSED,
    group="through_",
    servers=("proxy",),
)
network_attacks_of(
    {"requests": target_by_environment(by_requests), "httpx2": target_by_environment(by_httpx("httpx2"))},
    "a permitted proxy is asked by a library for a URL that no rule covers: {}",
    rules=proxy_rules,
    group="through_",
    servers=("proxy",),
    needs=("requests", "httpx2"),
)


@network_attack(
    "a proxy that sockets may reach is asked by a client for a URL that no rule covers",
    rules=proxy_socket_rules,
    servers=("proxy",),
)
def through_socket_rule(ground: Ground) -> object:
    return target_by_environment(by_urllib)(ground)


@network_attack("a permitted proxy is dialled as a raw socket", rules=proxy_rules, servers=("proxy",))
def proxy_raw(ground: Ground) -> object:
    """A rule in URL form opens no raw sockets, not even for `connect`."""
    return ask(dial(("127.0.0.1", peers(ground).proxy)), other_url(ground))


@network_attack("the server of a permitted URL is taken for a proxy", expect=REFUSED)
def server_as_proxy(ground: Ground) -> object:
    import http.client

    connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
    connection.connect()
    connection.sock.sendall(here(ground, f"GET {other_url(ground)} HTTP/1.1\r\nHost: HERE\r\n\r\n"))
    return connection.sock.recv(999)
