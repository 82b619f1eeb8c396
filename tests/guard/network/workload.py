"""Ordinary network work under a fitting manifest. Loaded in the child; each function is one piece, given its `world`.

What they may use is what a plain manifest would say: everything below /work of the web servers, the proxy, and the
other servers by host and port.
"""

from __future__ import annotations

import hashlib
import os

BLOB = bytes(range(256)) * 4096  # a megabyte, which no socket takes in one piece
DIGEST = hashlib.sha256(BLOB).hexdigest()


# --- requests --------------------------------------------------------------------------------------------------------


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


# --- urllib3, http.client, urllib.request, xmlrpc --------------------------------------------------------------------


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


# --- httpx and httpx2 ------------------------------------------------------------------------------------------------


def httpx_client(world, library="httpx"):
    module = __import__(library)
    with module.Client(base_url=world.url("http", "/work")) as client:
        peers = {client.get("/x").json()["peer"] for _ in range(4)}
        assert client.get("/gzip").text == "squeezed " * 100
        client.get("/cookies")
        assert client.get("/cookies").json() == {"flavour": "oat"}
        assert client.post("/upload", content=BLOB).json()["sha256"] == DIGEST
        assert client.post("/upload", files={"f": BLOB}).json()["type"] == "multipart/form-data"
        assert client.get("/redirect?to=/work/there", follow_redirects=True).json()["path"] == "/work/there"
        with client.stream("GET", "/chunked?count=30") as response:
            assert len(list(response.iter_lines())) == 30
    assert len(peers) == 1


def httpx2_client(world):
    httpx_client(world, "httpx2")


def httpx_timeout(world, library="httpx"):
    module = __import__(library)
    try:
        module.get(world.url("http", "/work/slow?seconds=2"), timeout=0.2)
    except module.ReadTimeout:
        return
    raise AssertionError("no timeout")


def httpx2_timeout(world):
    httpx_timeout(world, "httpx2")


def httpx_proxy(world, library="httpx"):
    module = __import__(library)
    context = _context(world)
    with module.Client(proxy=f"http://{world.at('proxy')}", verify=context) as client:
        assert client.get(world.url("http", "/work/x")).json()["path"] == "/work/x"
        assert client.get(world.url("https", "/work/y")).json()["path"] == "/work/y"


def httpx2_proxy(world):
    httpx_proxy(world, "httpx2")


def httpx_http2(world, library="httpx"):
    module = __import__(library)
    with module.Client(http2=True, verify=_context(world)) as client:
        answers = [client.get(world.url("http2", f"/work/{number}")) for number in range(3)]
        assert {answer.http_version for answer in answers} == {"HTTP/2"}
        assert client.post(world.url("http2", "/work/x"), content=b"body").json()["body"] == "body"


def httpx2_http2(world):
    httpx_http2(world, "httpx2")


async def httpx_async(world, library="httpx"):
    import asyncio

    module = __import__(library)
    async with module.AsyncClient(base_url=world.url("http", "/work"), verify=_context(world)) as client:
        answers = await asyncio.gather(*(client.get(f"/{number}") for number in range(10)))
        assert [answer.json()["path"] for answer in answers] == [f"/work/{number}" for number in range(10)]
        assert (await client.post("/upload", content=BLOB)).json()["sha256"] == DIGEST
        async with client.stream("GET", "/chunked?count=30") as response:
            assert len([line async for line in response.aiter_lines()]) == 30
        assert (await client.get(world.url("https", "/work/x"))).status_code == 200


async def httpx2_async(world):
    await httpx_async(world, "httpx2")


async def httpx2_async_http2(world):
    import asyncio

    import httpx2

    async with httpx2.AsyncClient(http2=True, verify=_context(world)) as client:
        urls = [world.url("http2", f"/work/{number}") for number in range(10)]
        answers = await asyncio.gather(*map(client.get, urls))
    assert {answer.http_version for answer in answers} == {"HTTP/2"}


def httpx_mock_transport(world, library="httpx"):
    """No network at all: a transport of the subject's own, for a URL that its manifest allows."""
    module = __import__(library)
    transport = module.MockTransport(lambda request: module.Response(200, text="made up"))
    with module.Client(transport=transport) as client:
        assert client.get(world.url("http", "/work/x")).text == "made up"


def httpx2_mock_transport(world):
    httpx_mock_transport(world, "httpx2")


# --- aiohttp ---------------------------------------------------------------------------------------------------------


async def aiohttp_session(world):
    import aiohttp

    home = world.url("http", "/work")
    async with aiohttp.ClientSession() as session:
        peers = set()
        for number in range(4):
            async with session.get(f"{home}/{number}") as response:
                peers.add((await response.json())["peer"])
        for expected in ({}, {"flavour": "oat"}):
            async with session.get(f"{home.replace('127.0.0.1', 'localhost')}/cookies") as response:
                assert await response.json() == expected
        async with session.get(f"{home}/gzip") as response:
            assert await response.text() == "squeezed " * 100
        async with session.post(f"{home}/upload", data=BLOB) as response:
            assert (await response.json())["sha256"] == DIGEST
        async with session.get(f"{home}/redirect?to=/work/there") as response:
            assert (await response.json())["path"] == "/work/there"
        async with session.get(f"{home}/chunked?count=30") as response:
            assert len([line async for line in response.content]) == 30
    assert len(peers) == 1


async def aiohttp_websocket(world):
    import aiohttp

    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(world.url("http", "/work/socket?greet=1")) as socket:
            assert await socket.receive_str() == "hello"
            await socket.send_str("stressed")
            assert await socket.receive_str() == "desserts"
            await socket.send_bytes(b"\x00\xff")
            assert await socket.receive_bytes() == b"\x00\xff"
        async with session.ws_connect(world.url("https", "/work/socket"), ssl=_context(world)) as socket:
            await socket.send_json({"a": 1})
            assert (await socket.receive_str())[::-1] == '{"a": 1}'


async def aiohttp_many(world):
    import asyncio

    import aiohttp

    async with aiohttp.ClientSession() as session:

        async def status(number):
            async with session.get(world.url("http", f"/work/{number}")) as response:
                return response.status

        assert set(await asyncio.gather(*map(status, range(30)))) == {200}


async def aiohttp_timeout(world):
    import aiohttp

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(0.2)) as session:
        try:
            async with session.get(world.url("http", "/work/slow?seconds=2")):
                raise AssertionError("no timeout")
        except TimeoutError:
            pass


async def aiohttp_proxy(world):
    import aiohttp

    proxy = f"http://{world.at('proxy')}"
    async with aiohttp.ClientSession() as session:
        async with session.get(world.url("http", "/work/x"), proxy=proxy) as response:
            assert (await response.json())["path"] == "/work/x"
        async with session.get(world.url("https", "/work/y"), proxy=proxy, ssl=_context(world)) as response:
            assert (await response.json())["path"] == "/work/y"


# --- sockets, mail, files --------------------------------------------------------------------------------------------


def smtp(world):
    import smtplib

    with smtplib.SMTP(*world.address("mail"), local_hostname="localhost", timeout=5) as server:
        server.sendmail("a@example.com", ["b@example.com"], "Subject: hi\r\n\r\nhello\r\n")


def ftp(world):
    import ftplib
    import io

    got = []
    with ftplib.FTP() as server:
        server.connect(*world.address("files"), timeout=5)
        server.login("me", "secret")
        server.retrbinary("RETR file", got.append)
        server.storbinary("STOR file", io.BytesIO(b"new"))
    assert b"".join(got) == b"the file"


def tls_by_hand(world):
    import socket

    with (
        socket.create_connection(world.address("tls"), timeout=5) as plain,
        _context(world).wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(b"ping")
        assert secure.recv(16) == b"ping"


async def tls_streams(world):
    import asyncio

    reader, writer = await asyncio.open_connection(*world.address("tls"), ssl=_context(world))
    writer.write(b"ping")
    assert await reader.read(16) == b"ping"
    writer.close()
    await writer.wait_closed()


def socket_files(world):
    import socket

    with socket.create_connection(world.address("tcp"), timeout=5) as made, made.makefile("rwb") as file:
        file.write(b"line\n")
        file.flush()
        assert file.readline() == b"line\n"


def socket_sendfile(world):
    import socket

    with open(world.inside("small"), "wb") as file:
        file.write(b"from a file")
    with socket.create_connection(world.address("tcp"), timeout=5) as made, open(world.inside("small"), "rb") as file:
        made.sendfile(file)
        assert made.recv(100) == b"from a file"


def select_and_poll(world):
    import select
    import selectors
    import socket

    with socket.create_connection(world.address("tcp"), timeout=5) as made, selectors.DefaultSelector() as selector:
        selector.register(made, selectors.EVENT_READ)
        made.send(b"x")
        assert selector.select(5)
        assert select.select([made], [], [], 5)[0] == [made]
        assert made.recv(1) == b"x"


# --- servers of the subject's own ------------------------------------------------------------------------------------


def own_http_server(world):
    import threading
    from http.client import HTTPConnection
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"served")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            connection = HTTPConnection(*server.server_address, timeout=5)
            connection.request("GET", "/any")
            assert connection.getresponse().read() == b"served"
            connection.close()
        finally:
            server.shutdown()
            thread.join()


def own_socketserver(world):
    import socket
    import socketserver
    import threading

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(self.rfile.readline()[::-1])

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with socket.create_connection(server.server_address, timeout=5) as made:
                made.sendall(b"abc\n")
                assert made.recv(16) == b"\ncba"
        finally:
            server.shutdown()
            thread.join()


async def own_asyncio_server(world):
    import asyncio

    async def serve(reader, writer):
        writer.write((await reader.readline()).upper())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"quiet\n")
        assert await reader.read() == b"QUIET\n"
        writer.close()


async def own_aiohttp_server(world):
    import aiohttp
    from aiohttp import web

    async def hello(request):
        return web.Response(text="from inside")

    app = web.Application()
    app.router.add_get("/any", hello)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = site._server.sockets[0].getsockname()[1]
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/any") as response:
            assert await response.text() == "from inside"
    finally:
        await runner.cleanup()


async def own_unix_server(world):
    import asyncio

    async def serve(reader, writer):
        writer.write(await reader.readline())
        writer.close()

    path = world.inside("own.sock")
    server = await asyncio.start_unix_server(serve, path)
    async with server:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"line\n")
        assert await reader.read() == b"line\n"
        writer.close()


def own_uvloop_server(world):
    import uvloop

    with __import__("asyncio").Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(own_asyncio_server(world))


def socket_pairs(world):
    import socket
    import threading

    left, right = socket.socketpair()
    with left, right:
        thread = threading.Thread(target=lambda: right.sendall(right.recv(16)[::-1]))
        thread.start()
        left.sendall(b"abc")
        assert left.recv(16) == b"cba"
        thread.join()


def multiprocessing_connection(world):
    import threading
    from multiprocessing.connection import Client, Listener

    with Listener(("127.0.0.1", 0), authkey=b"k") as listener:

        def serve():
            with listener.accept() as connection:
                connection.send(connection.recv() * 2)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with Client(listener.address, authkey=b"k") as client:
            client.send(21)
            assert client.recv() == 42
        thread.join()


def _context(world):
    import ssl

    return ssl.create_default_context(cafile=world.places["ca"])
