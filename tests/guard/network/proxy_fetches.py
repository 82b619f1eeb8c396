"""One function per client with proxy support that fetches a URL through a proxy. Loaded in the child."""

from __future__ import annotations

import os
import ssl


def trusted(bundle):
    return ssl.create_default_context(cafile=bundle)


def urllib_request(bundle, proxy):
    from urllib.request import HTTPSHandler, ProxyHandler, build_opener

    opener = build_opener(ProxyHandler({"http": proxy, "https": proxy}), HTTPSHandler(context=trusted(bundle)))

    def fetch(url):
        with opener.open(url, timeout=5) as response:
            return response.status

    return fetch


def http_client(bundle, proxy):
    """Use a tunnel for HTTPS; for HTTP the whole URL in the request line."""
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import urlsplit

    there = urlsplit(proxy)

    def fetch(url):
        parts = urlsplit(url)
        if parts.scheme == "https":
            connection = HTTPSConnection(there.hostname, there.port, timeout=5, context=trusted(bundle))
            connection.set_tunnel(parts.hostname, parts.port)
            target = parts.path
        else:
            connection, target = HTTPConnection(there.hostname, there.port, timeout=5), url
        try:
            connection.request("GET", target)
            return connection.getresponse().status
        finally:
            connection.close()

    return fetch


def requests(bundle, proxy):
    import requests

    return lambda url: requests.get(url, proxies={"http": proxy, "https": proxy}, verify=bundle, timeout=5).status_code


def requests_environment(bundle, proxy):
    import requests

    def fetch(url):
        names = ("http_proxy", "https_proxy")
        os.environ.update(dict.fromkeys(names, proxy))
        try:
            return requests.get(url, verify=bundle, timeout=5).status_code
        finally:
            for name in names:
                del os.environ[name]

    return fetch


def urllib3(bundle, proxy):
    import urllib3

    def fetch(url):
        with urllib3.ProxyManager(proxy, ca_certs=bundle, timeout=5, retries=False) as pools:
            return pools.request("GET", url).status

    return fetch


def httpx(bundle, proxy, library="httpx"):
    module = __import__(library)

    def fetch(url):
        with module.Client(proxy=proxy, verify=trusted(bundle), timeout=5) as client:
            return client.get(url).status_code

    return fetch


def httpx2(bundle, proxy):
    return httpx(bundle, proxy, "httpx2")


def httpx2_async(bundle, proxy):
    import httpx2

    async def fetch(url):
        async with httpx2.AsyncClient(proxy=proxy, verify=trusted(bundle), timeout=5) as client:
            return (await client.get(url)).status_code

    return fetch


def aiohttp(bundle, proxy):
    import aiohttp

    async def fetch(url):
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5)) as session,
            session.get(url, proxy=proxy, ssl=trusted(bundle)) as response,
        ):
            return response.status

    return fetch


PROXIED = {
    function.__name__: function
    for function in (
        *(urllib_request, http_client, requests, requests_environment, urllib3),
        *(httpx, httpx2, httpx2_async, aiohttp),
    )
}
