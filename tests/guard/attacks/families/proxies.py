"""Permitted requests through a proxy, and forbidden requests to a permitted proxy."""

from __future__ import annotations

import os

from tests.guard.attacks.families.redirects import by_httpx, by_requests, by_urllib, library_of
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

    with httpx2.Client(proxy=through(ground), verify=False) as client:
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
