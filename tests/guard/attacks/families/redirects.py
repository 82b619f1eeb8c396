"""Permitted requests that lead elsewhere: redirects and tunnels."""

from __future__ import annotations

from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import LIMIT, REFUSED, network_attacks_of, other_url, peers, url


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
        with __import__(module).Client(follow_redirects=True, verify=False) as client:
            return client.get(address).text

    return act


def by_httpx_next(address: str) -> object:
    """The next request is taken from the answer and sent."""
    import httpx2

    with httpx2.Client(verify=False) as client:
        return client.send(client.get(address).next_request).text


def by_httpx_async(module: str):
    async def act(address: str) -> object:
        async with __import__(module).AsyncClient(follow_redirects=True, verify=False) as client:
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
