"""Ordinary work with sockets, TLS by hand, mail and FTP."""

from __future__ import annotations


def smtp(world):
    import smtplib

    with smtplib.SMTP(*world.address("mail"), local_hostname="localhost", timeout=5) as server:
        server.sendmail("a@example.com", ["b@example.com"], "Subject: hi\r\n\r\nhello\r\n")


def smtp_starttls(world):
    import smtplib

    with smtplib.SMTP(*world.address("mail"), local_hostname="localhost", timeout=5) as server:
        server.starttls(context=world.tls())
        server.sendmail("a@example.com", ["b@example.com"], "Subject: hi\r\n\r\nsecretly\r\n")


async def streams_starttls(world):
    import asyncio

    reader, writer = await asyncio.open_connection(*world.address("mail"))
    assert (await reader.readline()).startswith(b"220")
    writer.write(b"STARTTLS\r\n")
    assert (await reader.readline()).startswith(b"220")
    await writer.start_tls(world.tls(), server_hostname="127.0.0.1")
    writer.write(b"NOOP\r\n")
    assert (await reader.readline()).startswith(b"250")
    writer.close()


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
        world.tls().wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(b"ping")
        assert secure.recv(16) == b"ping"


async def tls_streams(world):
    import asyncio

    reader, writer = await asyncio.open_connection(*world.address("tls"), ssl=world.tls())
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
