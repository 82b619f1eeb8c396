"""Hosts that the guard and the system could read differently.

The rule names one address; the secret is served at the same port of another one.
"""

from __future__ import annotations

import socket

from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import (
    INVALID,
    LIMIT,
    MISSING,
    REFUSED,
    ask,
    dial,
    guarded,
    network_attack,
    network_attacks_of,
    one_path,
    peers,
)


def both_forms(ground: Ground) -> list[tuple[str, str]]:
    """The server's address may be dialled and read from."""
    return [*one_path(ground), ("connect", f"127.0.0.1:{peers(ground).web}")]


SPELLINGS = {
    "short": "127.2",
    "shorter_class_b": "127.0.2",
    "hexadecimal": "0x7f.2",
    "hexadecimal_parts": "0x7f.0x0.0x0.0x2",
    "hexadecimal_whole": "0x7f000002",
    "decimal_whole": "2130706434",
    "octal": "0177.0.0.2",
    "octal_whole": "017700000002",
    "leading_zeros": "127.000.000.002",
    "full_width_digits": "１２７.0.0.2",
    "full_width_dots": "127．0．0．2",
    "ideographic_dots": "127。0。0。2",
    "half_width_dots": "127｡0｡0｡2",
    "circled_digits": "①②⑦.0.0.②",
    "superscript": "127.0.0.²",
    "soft_hyphen": "127.0.0.\u00ad2",
    "zero_width_space": "127.0.0.\u200b2",
    "word_joiner": "127.\u20600.0.2",
    "variation_selector": "127.0.0.2\ufe0f",
    "mathematical_digits": "𝟏𝟐𝟕.0.0.𝟐",
}


def by_connect(spelling: str | bytes):
    return lambda ground: ask(dial((spelling, peers(ground).web)))


def by_address_list(spelling: str):
    """Resolved first, connected to what came out."""

    def act(ground: Ground) -> object:
        found = socket.getaddrinfo(spelling, peers(ground).web, type=socket.SOCK_STREAM)
        return ask(dial(found[0][4]))

    return act


def by_host_name(spelling: str):
    return lambda ground: ask(dial((socket.gethostbyname(spelling), peers(ground).web)))


network_attacks_of(
    {name: by_connect(spelling) for name, spelling in SPELLINGS.items()},
    "another address is dialled in a spelling that only the system knows: {}",
    expect=REFUSED,
    rules=both_forms,
    group="connect_",
)
network_attacks_of(
    {name: by_connect(SPELLINGS[name].encode()) for name in ("short", "hexadecimal", "decimal_whole", "octal")},
    "the same as bytes: {}",
    expect=REFUSED,
    rules=both_forms,
    group="bytes_",
)
network_attacks_of(
    {name: by_address_list(SPELLINGS[name]) for name in ("short", "decimal_whole", "full_width_digits")}
    | {f"by_name_{name}": by_host_name(SPELLINGS[name]) for name in ("short", "hexadecimal_whole")},
    "another address is resolved in a spelling that only the system knows, then dialled: {}",
    expect=REFUSED,
    rules=both_forms,
    group="resolved_",
)


def empty_host(host: object):
    return lambda ground: ask(dial((host, peers(ground).other)))


network_attacks_of(
    {"text": empty_host(""), "bytes": empty_host(b""), "bytearray": empty_host(bytearray())},
    "an empty host means every address of the machine: {}",
    expect=MISSING,
    group="empty_",
)
network_attacks_of(
    {
        "none": lambda ground: ask(dial(socket.getaddrinfo(None, peers(ground).other, 2, 1)[0][4])),
        "unspecified": empty_host("0.0.0.0"),
        "zero": empty_host("0"),
        "zero_hexadecimal": empty_host("0x0"),
    },
    "the unspecified address means the machine itself: {}",
    expect=REFUSED,
    group="unspecified_",
)


@network_attack("the host has a zero byte behind the name that the rule names", expect=INVALID, rules=both_forms)
def zero_byte(ground: Ground) -> object:
    """What the interpreter makes of it is an error too, unless something in between cuts the text."""
    try:
        dial(("127.0.0.1\0.evil.test", peers(ground).web))
    except (ValueError, UnicodeError, TypeError):
        ground.attempt(lambda: ask(dial(("127.2", peers(ground).web))))
    return None


def mutable_host(ground: Ground) -> object:
    """The host is a bytearray that another thread changes all the time; the rule covers one of its values."""
    import threading

    if not guarded(ground):
        return ask(dial((bytearray(b"127.0.0.2"), peers(ground).web)))  # without a guard nothing depends on the moment
    host, done = bytearray(b"127.0.0.1"), threading.Event()

    def flip() -> None:
        while not done.is_set():
            host[8] ^= 3  # "1" and "2" by turns

    thread = threading.Thread(target=flip, daemon=True)
    thread.start()
    try:
        for _ in range(60):
            sock = socket.socket()
            sock.settimeout(LIMIT)
            try:
                sock.connect((host, peers(ground).web))
            except PermissionError as error:
                ground.errors[:] = [error]
                continue
            if sock.getpeername()[0] == "127.0.0.2":
                return ask(sock)
            sock.close()
    finally:
        done.set()
        thread.join()
    return None


network_attack(
    "the host is a bytearray that another thread changes meanwhile",
    expect=REFUSED.quietly,
    rules=both_forms,
    name="mutable_host",
)(mutable_host)


URLS = {
    "userinfo": "http://127.0.0.1:{web}@127.0.0.2:{web}/secret",
    "userinfo_backslash": "http://127.0.0.1:{web}\\@127.0.0.2:{web}/secret",
    "userinfo_hash": "http://127.0.0.1%23@127.0.0.2:{web}/secret",
    "short": "http://127.2:{web}/secret",
    "decimal_whole": "http://2130706434:{web}/secret",
    "hexadecimal": "http://0x7f.2:{web}/secret",
    "ideographic_dots": "http://127。0。0。2:{web}/secret",
    "mapped": "http://[::ffff:127.0.0.2]:{web}/secret",
}


def by_urllib(address: str):
    def act(ground: Ground) -> object:
        import urllib.request

        return urllib.request.urlopen(address.format(web=peers(ground).web), timeout=LIMIT).read()

    return act


def by_requests(address: str):
    def act(ground: Ground) -> object:
        import requests

        return requests.get(address.format(web=peers(ground).web), timeout=LIMIT).text

    return act


def by_httpx(address: str):
    def act(ground: Ground) -> object:
        import httpx2

        return httpx2.get(address.format(web=peers(ground).web), timeout=LIMIT).text

    return act


def some(*names: str) -> dict[str, str]:
    return {name: URLS[name] for name in names}


network_attacks_of(
    {name: by_urllib(address) for name, address in some("short", "decimal_whole", "hexadecimal", "mapped").items()},
    "urllib reads another host in a URL than the rule names: {}",
    expect=REFUSED,
    group="urllib_",
)
network_attacks_of(
    {name: by_requests(address) for name, address in some("userinfo", "userinfo_backslash", "short").items()},
    "requests reads another host in a URL than the rule names: {}",
    expect=REFUSED,
    group="requests_",
    needs=("requests",),
)
network_attacks_of(
    {name: by_httpx(address) for name, address in some("userinfo", "ideographic_dots").items()},
    "httpx2 reads another host in a URL than the rule names: {}",
    expect=REFUSED,
    group="httpx2_",
    needs=("httpx2",),
)


def client_host(host: str):
    """The host as `http.client` takes it, apart from the port."""

    def act(ground: Ground) -> object:
        import http.client

        connection = http.client.HTTPConnection(host, peers(ground).web, timeout=LIMIT)
        connection.request("GET", "/secret")
        return connection.getresponse().read()

    return act


network_attacks_of(
    {
        "short": client_host("127.2"),
        "full_width_digits": client_host("１２７.0.0.2"),
    },
    "http.client is given a host in a spelling that only the system knows: {}",
    expect=REFUSED,
    group="client_",
)


@network_attack("the port of a URL is not the port that is dialled", expect=REFUSED)
def port_spelling(ground: Ground) -> object:
    """A port in digits that the interpreter knows and URL parsers do not agree on."""
    import http.client

    digits = "".join(chr(0x660 + int(digit)) for digit in str(peers(ground).other))
    connection = http.client.HTTPConnection(f"127.0.0.1:{digits}", timeout=LIMIT)
    connection.request("GET", "/secret")
    return connection.getresponse().read()


@network_attack("a port that is too great comes round to the one of another server", expect=REFUSED)
def port_wraps(ground: Ground) -> object:
    import _socket

    try:
        sock = _socket.socket(2, 1)
        sock.connect(("127.0.0.1", peers(ground).other + 65536))
    except OverflowError:
        found = _socket.getaddrinfo("127.0.0.1", str(peers(ground).other + 65536), 2, 1)
        return ask(dial(found[0][4]))
    return None
