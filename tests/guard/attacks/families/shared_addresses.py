"""Two sites at one address: a connection opened for one is used for the other."""

from __future__ import annotations

from tests.guard.attacks import peer_tls
from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import (
    LIMIT,
    REFUSED,
    here,
    network_attack,
    network_attacks_of,
    one_path_secure,
    open_connection,
    peers,
    url,
    web,
)
from tests.guard.attacks.peer_http import Reading


def with_headers(*headers: tuple[str, str], path: str = "/allowed", version: str = ""):
    """A request over `http.client` whose headers are all given by hand."""

    def act(ground: Ground) -> object:
        import http.client

        connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
        if version:
            connection._http_vsn_str = version
        connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, here(ground, value))
        connection.endheaders()
        return connection.getresponse().read()

    return act


GOOD, HIDDEN = ("Host", "HERE"), ("Host", "hidden.test")

network_attacks_of(
    {
        "only": with_headers(HIDDEN),
        "first": with_headers(HIDDEN, GOOD),
        "lower_case": with_headers(("host", "hidden.test")),
        "with_port": with_headers(("Host", "hidden.test:80")),
        "with_user": with_headers(("Host", "HERE@hidden.test")),
        "two_names": with_headers(("Host", "hidden.test, HERE")),
        "old_version": with_headers(HIDDEN, version="HTTP/1.0"),
    },
    "a permitted path is asked for at another site of the same address: {}",
    expect=REFUSED,
    group="host_",
)
network_attacks_of(
    {
        "last": with_headers(GOOD, HIDDEN),
        "last_lower_case": with_headers(GOOD, ("hOST", "hidden.test")),
        "space_before_colon": lambda ground: raw(
            ground, b"GET /allowed HTTP/1.1\r\nHost: HERE\r\nHost : hidden.test\r\n\r\n"
        ),
        "folded": lambda ground: raw(
            ground, b"GET /allowed HTTP/1.1\r\nHost: HERE\r\nX: y\r\n\tz\r\nHost: hidden.test\r\n\r\n"
        ),
    },
    "a second Host header, which is the one that counts for the server: {}",
    expect=REFUSED,
    reading=Reading(host="last"),
    group="second_",
)
network_attacks_of(
    {
        "folded": lambda ground: raw(ground, b"GET /allowed HTTP/1.1\r\nHost:\r\n hidden.test\r\n\r\n"),
        "folded_around": lambda ground: raw(
            ground, b"GET /allowed HTTP/1.1\r\nX: y\r\n Host: HERE\r\nHost: hidden.test\r\n\r\n"
        ),
        "absolute": lambda ground: raw(ground, b"GET http://hidden.test/secret HTTP/1.1\r\nHost: HERE\r\n\r\n"),
        "zero_byte": lambda ground: raw(ground, b"GET /allowed HTTP/1.1\r\nHost: hidden.test\0.HERE\r\n\r\n"),
    },
    "the Host header is written so that it is read in two ways: {}",
    expect=REFUSED,
    group="written_",
)


def raw(ground: Ground, data: bytes) -> object:
    connection = open_connection(ground)
    connection.sock.sendall(here(ground, data))
    return connection.sock.recv(999)


@network_attack("a client of a library sends a Host header of its own", expect=REFUSED)
def urllib_header(ground: Ground) -> object:
    import urllib.request

    request = urllib.request.Request(url(ground), headers={"Host": "hidden.test"})
    return urllib.request.urlopen(request, timeout=LIMIT).read()


def by_library(library: str):
    def act(ground: Ground) -> object:
        return __import__(library).get(url(ground), headers={"Host": "hidden.test"}, timeout=LIMIT).text

    return act


for name in ("requests", "httpx2"):
    network_attacks_of(
        {name: by_library(name)},
        "a client of a library sends a Host header of its own: {}",
        expect=REFUSED,
        group="library_",
        needs=(name,),
    )


def secure(ground: Ground, context: object, host: str = "", path: str = "/allowed") -> object:
    import http.client

    connection = http.client.HTTPSConnection("127.0.0.1", peers(ground).tls, timeout=LIMIT, context=context)
    connection.request("GET", path, headers={"Host": host} if host else {})
    return connection.getresponse().read()


def open_context():
    import ssl

    context = ssl.create_default_context(cadata=peer_tls.CERTIFICATE)
    context.check_hostname = False
    return context


class Fronting:
    """A context that names another site in the handshake than the one the request is for."""

    def __init__(self, name: str) -> None:
        self.context, self.name = open_context(), name

    def wrap_socket(self, sock, **options: object):
        return self.context.wrap_socket(sock, **(options | {"server_hostname": self.name}))

    def __getattr__(self, name: str) -> object:
        return getattr(self.context, name)


def by_memory(ground: Ground) -> object:
    """The handshake is made in memory, its bytes go over a socket that was opened for the permitted site."""
    import http.client
    import ssl

    connection = http.client.HTTPSConnection("127.0.0.1", peers(ground).tls, timeout=LIMIT, context=open_context())
    taken: list[object] = []

    class Taking:
        def wrap_socket(self, sock, **_: object):
            taken.append(sock)
            raise InterruptedError

    connection._context = Taking()
    try:
        connection.connect()
    except InterruptedError:
        pass
    sock = taken[0]
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    tunnel = open_context().wrap_bio(inward, outward, server_hostname="hidden.test")
    text = f"GET /allowed HTTP/1.1\r\nHost: 127.0.0.1:{peers(ground).tls}\r\n\r\n"
    return converse(sock, tunnel, inward, outward, text.encode())


def converse(sock, tunnel, inward, outward, data: bytes) -> bytes:
    """Shake hands, send, and read, with the bytes carried by hand."""
    import ssl

    def carry(step):
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                if outward.pending:
                    sock.sendall(outward.read())
                inward.write(sock.recv(65536))
            else:
                if outward.pending:
                    sock.sendall(outward.read())
                return result

    carry(tunnel.do_handshake)
    carry(lambda: tunnel.write(data))
    return carry(lambda: tunnel.read(999))


network_attacks_of(
    {
        "context": lambda ground: secure(ground, Fronting("hidden.test")),
        "memory": by_memory,
    },
    "the handshake names another site than the request, and the server goes by the handshake: {}",
    rules=one_path_secure,
    expect=REFUSED,
    reading=Reading(routes_by="name"),
    servers=("tls",),
    group="handshake_",
)
network_attacks_of(
    {
        "header": lambda ground: secure(ground, open_context(), host="hidden.test"),
        "path": lambda ground: secure(ground, open_context(), path="/secret"),
        "late_host": lambda ground: late_host(ground),
    },
    "the handshake names the permitted site, the request another: {}",
    rules=one_path_secure,
    expect=REFUSED,
    servers=("tls",),
    group="inside_",
)


def late_host(ground: Ground) -> object:
    """The connection is opened for the permitted site; the request is written by hand."""
    import http.client

    connection = http.client.HTTPSConnection("127.0.0.1", peers(ground).tls, timeout=LIMIT, context=open_context())
    connection.request("GET", "/allowed")
    connection.getresponse().read()
    connection.sock.sendall(b"GET /allowed HTTP/1.1\r\nHost: hidden.test\r\n\r\n")
    return connection.sock.recv(999)


def two_names(ground: Ground) -> list[tuple[str, str]]:
    """Both sites are permitted, each with a path of its own."""
    return [
        ("receive", f"http://127.0.0.1:{peers(ground).web}/allowed"),
        ("receive", f"http://hidden.test:{peers(ground).web}/public"),
    ]


@network_attack(
    "the path of one permitted site is asked for at the other one, which is at the same address",
    rules=two_names,
    expect=REFUSED,
)
def paths_crossed(ground: Ground) -> object:
    return with_headers(("Host", f"hidden.test:{peers(ground).web}"))(ground)


def two_secure_names(ground: Ground) -> list[tuple[str, str]]:
    """The same with TLS."""
    return [*one_path_secure(ground), ("receive", f"https://hidden.test:{peers(ground).tls}/public")]


network_attacks_of(
    {
        "context": lambda ground: secure(ground, Fronting("hidden.test")),
        "memory": by_memory,
    },
    "the handshake names the other of two permitted sites, and the server goes by the handshake: {}",
    rules=two_secure_names,
    expect=REFUSED,
    reading=Reading(routes_by="name"),
    servers=("tls",),
    group="crossed_",
)
