"""Servers that the subject runs on loopback, with its own clients."""

from __future__ import annotations


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


async def own_streams_on_uvloop_and_back(world):
    """Run a server on one kind of loop and its client on the other."""
    import asyncio

    import uvloop

    async def serve(reader, writer):
        writer.write((await reader.readline())[::-1])
        writer.close()

    def dial(address):
        async def talk():
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"abc\n")
            answer = await reader.read()
            writer.close()
            return answer

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(talk())

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        assert await asyncio.to_thread(dial, server.sockets[0].getsockname()) == b"\ncba"


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


def own_broken_connection(world):
    """Send on a connection that the peer has reset, and on one that was never opened: the kernel's errors."""
    import select
    import socket
    import struct

    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), timeout=5)
        accepted, _ = server.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
        select.select([client], [], [], 5)
        errors = []
        for _ in range(2):
            try:
                client.send(b"x")
            except OSError as error:
                errors.append(type(error))
        client.close()
    assert errors == [ConnectionResetError, BrokenPipeError], errors
    with socket.socket() as unconnected:
        try:
            unconnected.send(b"x")
        except BrokenPipeError:
            return
    raise AssertionError("a socket without a connection was sent on")
