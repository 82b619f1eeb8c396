"""One function per client library and entry point that fetches a URL: `fetch(method, url)`.

Loaded in the child (`world.load`). Every recipe trusts the tests' authority, follows redirects, and returns status and
text. Nothing is caught here: a test sees what a subject would see.
"""

from __future__ import annotations

import ssl


def trusted(bundle):
    """Return a client's context that trusts the tests' authority."""
    return ssl.create_default_context(cafile=bundle)


# --- the standard library --------------------------------------------------------------------------------------------


def urllib_urlopen(bundle):
    from urllib.request import Request, urlopen

    def fetch(method, url, body=None):
        with urlopen(Request(url, data=body, method=method), timeout=10, context=_if_tls(url, bundle)) as response:
            return [response.status, response.read().decode()]

    return fetch


def urllib_opener(bundle):
    from urllib.request import HTTPSHandler, Request, build_opener

    def fetch(method, url, body=None):
        opener = build_opener(HTTPSHandler(context=trusted(bundle)))
        with opener.open(Request(url, data=body, method=method), timeout=10) as response:
            return [response.status, response.read().decode()]

    return fetch


def http_client(bundle):
    """Follow redirects explicitly, because the client does not."""
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import urlsplit

    def once(method, url, body):
        parts = urlsplit(url)
        if parts.scheme == "https":
            connection = HTTPSConnection(parts.hostname, parts.port, timeout=10, context=trusted(bundle))
        else:
            connection = HTTPConnection(parts.hostname, parts.port, timeout=10)
        try:
            connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), body)
            response = connection.getresponse()
            return response.status, response.getheader("Location"), response.read().decode()
        finally:
            connection.close()

    def fetch(method, url, body=None):
        status, location, text = once(method, url, body)
        while location:
            status, location, text = once(method, location, body)
        return [status, text]

    return fetch


# --- requests and urllib3 --------------------------------------------------------------------------------------------


def requests_request(bundle):
    import requests

    def fetch(method, url, body=None):
        response = requests.request(method, url, data=body, verify=bundle, timeout=10)
        return [response.status_code, response.text]

    return fetch


def requests_session(bundle):
    import requests

    def fetch(method, url, body=None):
        with requests.Session() as session:
            prepared = session.prepare_request(requests.Request(method, url, data=body))
            response = session.send(prepared, verify=bundle, timeout=10)
            return [response.status_code, response.text]

    return fetch


def urllib3_pool_manager(bundle):
    import urllib3

    def fetch(method, url, body=None):
        with urllib3.PoolManager(ca_certs=bundle, timeout=10, retries=urllib3.Retry(3, backoff_factor=0)) as pools:
            response = pools.request(method, url, body=body)
            return [response.status, response.data.decode()]

    return fetch


def urllib3_pool(bundle):
    import urllib3
    from urllib3.util import parse_url

    def fetch(method, url, body=None):
        more = {"ca_certs": bundle} if url.startswith("https:") else {}
        with urllib3.connection_from_url(url, timeout=10, **more) as pool:
            response = pool.urlopen(method, parse_url(url).request_uri, body=body, redirect=True)
            return [response.status, response.data.decode()]

    return fetch


# --- httpx and httpx2 ------------------------------------------------------------------------------------------------


def httpx_family(library, form):
    """Return a recipe for one entry point of httpx or httpx2, which have the same interface."""

    def recipe(bundle):
        module, context = __import__(library), trusted(bundle)

        def fetch(method, url, body=None):
            with module.Client(verify=context, follow_redirects=True, timeout=10) as client:
                if form == "request":
                    return _answer(client.request(method, url, content=body))
                if form == "send":
                    return _answer(client.send(client.build_request(method, url, content=body)))
                with client.stream(method, url, content=body) as response:
                    return [response.status_code, b"".join(response.iter_bytes()).decode()]

        return fetch

    return recipe


def httpx_family_async(library, form):
    """Return the same on an event loop."""

    def recipe(bundle):
        module, context = __import__(library), trusted(bundle)

        async def fetch(method, url, body=None):
            async with module.AsyncClient(verify=context, follow_redirects=True, timeout=10) as client:
                if form == "request":
                    return _answer(await client.request(method, url, content=body))
                if form == "send":
                    return _answer(await client.send(client.build_request(method, url, content=body)))
                async with client.stream(method, url, content=body) as response:
                    return [response.status_code, b"".join([part async for part in response.aiter_bytes()]).decode()]

        return fetch

    return recipe


def httpx_top_level(library):
    """Return a recipe for the module's functions, which create a client for one request."""

    def recipe(bundle):
        module, context = __import__(library), trusted(bundle)

        def fetch(method, url, body=None):
            return _answer(module.request(method, url, content=body, verify=context, follow_redirects=True, timeout=10))

        return fetch

    return recipe


def _answer(response):
    return [response.status_code, response.text]


# --- aiohttp ---------------------------------------------------------------------------------------------------------


def aiohttp_session(bundle):
    import aiohttp

    async def fetch(method, url, body=None):
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session,
            session.request(method, url, data=body, ssl=_if_tls(url, bundle) or True) as response,
        ):
            return [response.status, await response.text()]

    return fetch


def aiohttp_request(bundle):
    import aiohttp

    async def fetch(method, url, body=None):
        connector = aiohttp.TCPConnector(ssl=trusted(bundle), force_close=True)
        async with aiohttp.request(method, url, data=body, connector=connector) as response:
            return [response.status, await response.text()]

    return fetch


def _if_tls(url, bundle):
    return trusted(bundle) if url.startswith("https:") else None


CLIENTS = {
    "urllib.request": {"urlopen": urllib_urlopen, "opener": urllib_opener},
    "http.client": {"connection": http_client},
    "requests": {"request": requests_request, "session": requests_session},
    "urllib3": {"manager": urllib3_pool_manager, "pool": urllib3_pool},
    **{
        library: {
            "function": httpx_top_level(library),
            **{form: httpx_family(library, form) for form in ("request", "send", "stream")},
            **{f"async {form}": httpx_family_async(library, form) for form in ("request", "send", "stream")},
        }
        for library in ("httpx", "httpx2")
    },
    "aiohttp": {"session": aiohttp_session, "request": aiohttp_request},
}
