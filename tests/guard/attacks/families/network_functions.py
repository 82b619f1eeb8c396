"""All functions of the standard library that reach a peer that no rule names."""

from __future__ import annotations

import socket

from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import LIMIT, NETWORK, ask, dial, network_attacks_of, other, other_url, peers


def raw_module(ground: Ground) -> object:
    """The C type below `socket.socket`."""
    import _socket

    sock = _socket.socket(2, 1)
    sock.connect(other(ground))
    sock.sendall(b"GET /secret HTTP/1.1\r\n\r\n")
    return sock.recv(999)


def connect_ex(ground: Ground) -> object:
    sock = socket.socket()
    sock.connect_ex(other(ground))
    return ask(sock)


def not_blocking(ground: Ground) -> object:
    import select

    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(other(ground))
    select.select([], [sock], [], LIMIT)
    sock.setblocking(True)
    return ask(sock)


def fast_open(ground: Ground) -> object:
    """With this flag the kernel connects without a call to connect."""
    sock = socket.socket()
    sock.settimeout(LIMIT)
    sock.sendto(b"GET /secret HTTP/1.1\r\n\r\n", socket.MSG_FASTOPEN, other(ground))
    return sock.recv(999)


def fast_open_message(ground: Ground) -> object:
    sock = socket.socket()
    sock.settimeout(LIMIT)
    sock.sendmsg([b"GET /secret HTTP/1.1\r\n\r\n"], [], socket.MSG_FASTOPEN, other(ground))
    return sock.recv(999)


def datagram_connected(ground: Ground) -> object:
    sock = dial(other(ground), kind=socket.SOCK_DGRAM)
    sock.send(b"x")
    return sock.recv(99)


def datagram(send: str, *arguments: object):
    def act(ground: Ground) -> object:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.settimeout(LIMIT)
        getattr(sock, send)(*arguments, other(ground))
        return sock.recv(99)

    return act


def certificate(ground: Ground) -> None:
    import ssl

    ssl.get_server_certificate(other(ground), timeout=LIMIT)


def multiprocessing_client(ground: Ground) -> None:
    from multiprocessing.connection import Client

    Client(("127.0.0.1", peers(ground).banner), family="AF_INET")


def manager(ground: Ground) -> None:
    from multiprocessing.managers import BaseManager

    BaseManager(("127.0.0.1", peers(ground).banner), b"key").connect()


def log_record():
    import logging

    return logging.LogRecord("x", 40, "x", 1, "x", (), None)


def log_handler(name: str):
    """Handlers swallow errors in `emit`, so the methods below it are called."""

    def act(ground: Ground) -> None:
        import logging.handlers

        handler = getattr(logging.handlers, name)(*other(ground))
        handler.createSocket() if name == "SocketHandler" else handler.send(b"x")
        handler.send(b"x")

    return act


def system_log(ground: Ground) -> None:
    import logging.handlers

    logging.handlers.SysLogHandler(other(ground), socktype=socket.SOCK_STREAM)


def http_log(ground: Ground) -> None:
    import logging.handlers

    handler = logging.handlers.HTTPHandler("%s:%s" % other(ground), "/secret")
    handler.handleError = lambda record: ground.errors.append(__import__("sys").exc_info()[1])
    handler.emit(log_record())


def xml_entity(ground: Ground) -> None:
    """An XML parser fetches what a document names."""
    import io
    import xml.sax

    parser = xml.sax.make_parser()
    parser.setFeature(xml.sax.handler.feature_external_ges, True)
    source = f'<!DOCTYPE a [<!ENTITY x SYSTEM "{other_url(ground)}">]><a>&x;</a>'
    parser.parse(io.StringIO(source))


def xml_file(ground: Ground) -> None:
    import xml.sax

    xml.sax.parse(other_url(ground), xml.sax.ContentHandler())


def remote_procedures(ground: Ground) -> None:
    import xmlrpc.client

    xmlrpc.client.ServerProxy(other_url(ground)).anything()


def robots(ground: Ground) -> None:
    import urllib.robotparser

    urllib.robotparser.RobotFileParser(other_url(ground)).read()


def urlopen(ground: Ground, **options: object) -> object:
    import urllib.request

    return urllib.request.urlopen(other_url(ground), timeout=LIMIT, **options).read()


def url_retrieve(ground: Ground) -> object:
    import urllib.request

    return open(urllib.request.urlretrieve(other_url(ground), f"{ground.inside}/got")[0]).read()


def old_opener(ground: Ground) -> object:
    import urllib.request

    return urllib.request.URLopener().open(other_url(ground)).read()


def file_transfer(ground: Ground) -> None:
    import urllib.request

    urllib.request.urlopen(f"ftp://127.0.0.1:{peers(ground).banner}/x", timeout=LIMIT)


def client(module: str, kind: str, **options: object):
    def act(ground: Ground) -> object:
        import importlib

        return getattr(importlib.import_module(module), kind)("127.0.0.1", peers(ground).banner, **options)

    return act


def file_transfer_library(ground: Ground) -> object:
    import ftplib

    return ftplib.FTP().connect("127.0.0.1", peers(ground).banner, LIMIT)


def http_client(ground: Ground) -> object:
    import http.client

    connection = http.client.HTTPConnection(*other(ground), timeout=LIMIT)
    connection.request("GET", "/secret")
    return connection.getresponse().read()


def http_connect_only(ground: Ground) -> None:
    import http.client

    http.client.HTTPConnection(*other(ground), timeout=LIMIT).connect()


def http_secure_connect_only(ground: Ground) -> None:
    import http.client

    http.client.HTTPSConnection(*other(ground), timeout=LIMIT).connect()


def old_dispatcher(ground: Ground) -> None:
    import asyncore

    dispatcher = asyncore.dispatcher()
    dispatcher.create_socket()
    dispatcher.connect(other(ground))


network_attacks_of(
    {
        "connect": lambda ground: ask(dial(other(ground))),
        "connect_ex": connect_ex,
        "not_blocking": not_blocking,
        "C_type": raw_module,
        "create_connection": lambda ground: ask(socket.create_connection(other(ground))),
        "fast_open": fast_open,
        "fast_open_message": fast_open_message,
        "certificate": certificate,
        "system_log": system_log,
        "http_log": http_log,
        "xml_entity": xml_entity,
        "xml_file": xml_file,
        "xmlrpc": remote_procedures,
        "robots": robots,
        "urlopen": urlopen,
        "urlopen_post": lambda ground: urlopen(ground, data=b"x"),
        "urlretrieve": url_retrieve,
        "URLopener": old_opener,
        "http_client": http_client,
        "http_connect_only": http_connect_only,
        "https_connect_only": http_secure_connect_only,
    },
    "a server that no rule names is reached by {}",
    group="stream_",
)
network_attacks_of(
    {
        "multiprocessing": multiprocessing_client,
        "manager": manager,
        "ftp_url": file_transfer,
        "ftplib": file_transfer_library,
        "smtplib": client("smtplib", "SMTP", timeout=LIMIT),
        "smtplib_secure": client("smtplib", "SMTP_SSL", timeout=LIMIT),
        "poplib": client("poplib", "POP3", timeout=LIMIT),
        "imaplib": client("imaplib", "IMAP4"),
    },
    "a server that speaks first is reached by {}",
    group="greeting_",
    servers=("banner",),
)
network_attacks_of(
    {
        "telnetlib": client("telnetlib", "Telnet"),
        "nntplib": client("nntplib", "NNTP"),
    },
    "a server that speaks first is reached by {}",
    group="greeting_",
    servers=("banner",),
    until=(3, 12),
)
network_attacks_of(
    {"socket_log": log_handler("SocketHandler")},
    "a server that no rule names is reached by {}, which keeps errors to itself",
    expect=NETWORK.quietly,
    group="stream_",
)
network_attacks_of({"asyncore": old_dispatcher}, "a server is reached by {}", group="stream_", until=(3, 11))
network_attacks_of(
    {
        "connected": datagram_connected,
        "sendto": datagram("sendto", b"x"),
        "sendto_flags": datagram("sendto", b"x", 0),
        "sendmsg": datagram("sendmsg", [b"x"], [], 0),
        "log": log_handler("DatagramHandler"),
    },
    "a datagram is sent to a server that no rule names: {}",
    group="datagram_",
    servers=("udp",),
)
