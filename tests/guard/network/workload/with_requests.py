"""Ordinary work with requests."""

from __future__ import annotations

import hashlib
import os

BLOB = bytes(range(256)) * 4096  # a megabyte, which no socket accepts in one piece
DIGEST = hashlib.sha256(BLOB).hexdigest()


def requests_session_keeps_alive(world):
    import requests

    with requests.Session() as session:
        peers = {session.get(world.url("http", f"/work/{number}")).json()["peer"] for number in range(5)}
    assert len(peers) == 1


def requests_cookies(world):
    import requests

    with requests.Session() as session:
        assert session.get(world.url("http", "/work/cookies")).json() == {}
        assert session.get(world.url("http", "/work/cookies")).json() == {"flavour": "oat"}


def requests_gzip(world):
    import requests

    assert requests.get(world.url("http", "/work/gzip")).text == "squeezed " * 100


def requests_streaming(world):
    import requests

    with requests.get(world.url("http", "/work/chunked?count=50"), stream=True) as response:
        lines = [line.decode() for line in response.iter_lines()]
    assert lines == [f"chunk {number}" for number in range(50)]


def requests_upload(world):
    import requests

    path = world.inside("blob")
    with open(path, "wb") as file:
        file.write(BLOB)
    with open(path, "rb") as file:
        told = requests.post(world.url("http", "/work/upload"), data=file).json()
    assert told["sha256"] == DIGEST
    with open(path, "rb") as file:
        told = requests.post(world.url("http", "/work/upload"), files={"file": file}).json()
    assert told["type"] == "multipart/form-data"


def requests_chunked_upload(world):
    import requests

    pieces = (BLOB[start : start + 10000] for start in range(0, len(BLOB), 10000))
    assert requests.put(world.url("http", "/work/upload"), data=pieces).json()["sha256"] == DIGEST


def requests_timeout(world):
    import requests

    try:
        requests.get(world.url("http", "/work/slow?seconds=2"), timeout=0.2)
    except requests.exceptions.ReadTimeout:
        return
    raise AssertionError("no timeout")


def requests_retries(world):
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3 import Retry

    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=Retry(3, backoff_factor=0, status_forcelist=[503])))
        assert session.get(world.url("http", f"/work/flaky?requests{os.getpid()}")).text == "2"


def requests_redirect_inside(world):
    import requests

    answer = requests.get(world.url("http", "/work/redirect?to=/work/there"))
    assert [answer.status_code, answer.json()["path"], len(answer.history)] == [200, "/work/there", 1]


def requests_tls(world):
    import requests

    with requests.Session() as session:
        session.verify = world.places["ca"]
        peers = {session.get(world.url("https", "/work/x")).json()["peer"] for _ in range(3)}
        assert session.post(world.url("https", "/work/upload"), data=BLOB).json()["sha256"] == DIGEST
    assert len(peers) == 1


def requests_refused_certificate(world):
    import requests

    try:
        requests.get(world.url("https", "/work/x"))
    except requests.exceptions.SSLError:
        return
    raise AssertionError("an unknown authority was trusted")


def requests_proxy(world):
    import requests

    proxies = {"http": f"http://{world.at('proxy')}", "https": f"http://{world.at('proxy')}"}
    assert requests.get(world.url("http", "/work/x"), proxies=proxies).json()["path"] == "/work/x"
    answer = requests.get(world.url("https", "/work/y"), proxies=proxies, verify=world.places["ca"])
    assert answer.json()["path"] == "/work/y"


def requests_proxy_from_environment(world):
    import requests

    os.environ["HTTP_PROXY"] = os.environ["http_proxy"] = f"http://{world.at('proxy')}"
    try:
        assert requests.get(world.url("http", "/work/x")).json()["path"] == "/work/x"
    finally:
        del os.environ["HTTP_PROXY"], os.environ["http_proxy"]
