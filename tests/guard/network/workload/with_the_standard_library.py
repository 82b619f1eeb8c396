"""Ordinary work with urllib3 and the HTTP modules of the standard library."""

from __future__ import annotations

import hashlib
import os

BLOB = bytes(range(256)) * 4096  # a megabyte, which no socket accepts in one piece
DIGEST = hashlib.sha256(BLOB).hexdigest()


def urllib3_pool_reuses(world):
    import urllib3

    with urllib3.PoolManager() as pools:
        peers = {pools.request("GET", world.url("http", "/work/x")).json()["peer"] for _ in range(5)}
    assert len(peers) == 1


def urllib3_retries_and_redirects(world):
    import urllib3

    retry = urllib3.Retry(5, backoff_factor=0, status_forcelist=[503])
    with urllib3.PoolManager(retries=retry) as pools:
        assert pools.request("GET", world.url("http", f"/work/flaky?urllib3{os.getpid()}")).data == b"2"
        assert pools.request("GET", world.url("http", "/work/redirect?to=/work/z")).json()["path"] == "/work/z"


def urllib3_streaming(world):
    import urllib3

    with urllib3.PoolManager() as pools:
        response = pools.request("GET", world.url("http", "/work/chunked?count=20"), preload_content=False)
        assert b"".join(response.stream(7)).count(b"chunk") == 20
        response.release_conn()


def http_client_keeps_alive(world):
    import json
    from http.client import HTTPConnection

    connection = HTTPConnection(*world.address("http"), timeout=5)
    peers = set()
    for number in range(4):
        connection.request("GET", f"/work/{number}")
        peers.add(json.loads(connection.getresponse().read())["peer"])
    connection.request("POST", "/work/upload", BLOB)
    assert json.loads(connection.getresponse().read())["sha256"] == DIGEST
    connection.close()
    assert len(peers) == 1


def http_client_by_parts(world):
    import json
    from http.client import HTTPConnection

    connection = HTTPConnection(*world.address("http"), timeout=5)
    connection.putrequest("PUT", "/work/upload")
    connection.putheader("Content-Length", str(len(BLOB)))
    connection.endheaders()
    for start in range(0, len(BLOB), 50000):
        connection.send(BLOB[start : start + 50000])
    assert json.loads(connection.getresponse().read())["sha256"] == DIGEST
    connection.close()


def http_client_expect_continue(world):
    import json
    from http.client import HTTPConnection

    connection = HTTPConnection(*world.address("http"), timeout=5)
    connection.request("POST", "/work/upload", iter([b"a" * 10, b"b" * 10]), encode_chunked=True)
    assert json.loads(connection.getresponse().read())["size"] == 20
    connection.close()


def urllib_opener_with_cookies(world):
    import json
    from http.cookiejar import CookieJar
    from urllib.request import HTTPCookieProcessor, build_opener

    opener = build_opener(HTTPCookieProcessor(CookieJar()))
    opener.open(world.url("http", "/work/cookies")).read()
    assert json.loads(opener.open(world.url("http", "/work/cookies")).read()) == {"flavour": "oat"}


def urllib_retrieve(world):
    from urllib.request import urlretrieve

    path, _ = urlretrieve(world.url("http", "/work/gzip"), world.inside("got"))
    assert os.path.getsize(path) > 10


def urllib_proxy(world):
    import json
    from urllib.request import ProxyHandler, build_opener

    opener = build_opener(ProxyHandler({"http": f"http://{world.at('proxy')}"}))
    assert json.loads(opener.open(world.url("http", "/work/x")).read())["path"] == "/work/x"


def xmlrpc_call(world):
    import xmlrpc.client

    with xmlrpc.client.ServerProxy(world.url("http", "/work/xmlrpc")) as server:
        assert server.add(2, 3) == 5
        assert server.add(4, 5) == 9
