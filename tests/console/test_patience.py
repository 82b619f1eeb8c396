"""Idle and incomplete connections are closed."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
import uvicorn
from starlette.exceptions import HTTPException

from democrai_sandbox.console.application import BODY_SECONDS, limited
from democrai_sandbox.console.server import PatientProtocol
from tests.console.serving import until


class HastyProtocol(PatientProtocol):
    """The protocol with short timeouts."""

    head_seconds = 0.3


async def application(scope, receive, send):
    """Answer after the body has arrived."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@pytest.fixture
def address():
    """Address of a web server with short timeouts."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(application, http=HastyProtocol, lifespan="off", log_config=None, timeout_keep_alive=60)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    until(lambda: server.started, "the server")
    yield listener.getsockname()
    server.should_exit = True
    thread.join(30)
    listener.close()


HEAD = b"GET / HTTP/1.1\r\nHost: here\r\n"


@pytest.mark.parametrize("said", [b"", HEAD, HEAD + b"\r\n" + HEAD], ids=["nothing", "half", "a second half"])
def test_a_connection_that_does_not_finish_its_request_is_closed(address, said):
    """Also after an earlier answer."""
    with socket.create_connection(address) as client:
        client.settimeout(60)
        client.sendall(said)
        heard = b""
        while piece := client.recv(1000):
            heard += piece
    assert heard.count(b"204") == said.count(b"\r\n\r\n")


def test_a_request_that_is_whole_takes_as_long_as_it_takes(address):
    """The timeout covers the headers only; the body has another limit."""
    with socket.create_connection(address) as client:
        client.settimeout(60)
        client.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\na")
        with pytest.raises(TimeoutError):
            client.settimeout(1)
            client.recv(1000)
        client.settimeout(60)
        client.sendall(b"b")
        assert b"204" in client.recv(1000)


def test_a_body_that_does_not_come_is_an_error():
    """The application gets a timeout, and the connection is closed."""

    async def never():
        await asyncio.Event().wait()

    async def read():
        await limited(never, 100, seconds=0.05)()

    with pytest.raises(HTTPException) as raised:
        asyncio.run(read())
    assert raised.value.status_code == 408
    assert raised.value.headers == {"Connection": "close"}


def test_after_the_body_there_is_no_limit():
    """A stream to a browser continues."""

    async def body_then_nothing(told=[{"type": "http.request", "body": b"x", "more_body": False}]):  # noqa: B006
        if told:
            return told.pop()
        await asyncio.sleep(0.3)
        return {"type": "http.disconnect"}

    async def read():
        receive = limited(body_then_nothing, 100, seconds=0.05)
        return [(await receive())["type"], (await receive())["type"]]

    assert asyncio.run(read()) == ["http.request", "http.disconnect"]
    assert BODY_SECONDS >= 30
