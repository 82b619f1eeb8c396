"""HTTP clients with arguments that change, and clients with replaced methods."""

from __future__ import annotations

import socket

from tests.guard.attacks.families.replaced_clients import STOPPED, urlopen
from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import LIMIT, network_attacks_of, other, other_url, peers, url, web


class Forged(str):
    """A text that says it is another one, to everything but the C code that reads its letters."""

    __slots__ = ()

    claim = "/allowed"

    def __str__(self, *_: object) -> str:
        return self.claim

    def encode(self, *_: object) -> bytes:
        return self.claim.encode()

    def upper(self) -> str:
        return self.claim.upper()

    def __eq__(self, other: object) -> bool:
        return True

    def startswith(self, *_: object) -> bool:
        return True

    def __contains__(self, part: object) -> bool:
        return False

    def split(self, *_: object) -> list[str]:
        return [self.claim]

    __repr__ = casefold = lower = strip = lstrip = rstrip = title = __str__
    __hash__ = str.__hash__


def forged(text: str, claim: str) -> Forged:
    return type("Claim", (Forged,), {"claim": claim})(text)


class Reversed(str):
    """Its letters are those of the permitted text; what it gives when it is used is not."""

    __slots__ = ()

    real = ""

    def __str__(self, *_: object) -> str:
        return self.real

    def __format__(self, _: str) -> str:
        return self.real

    def encode(self, *_: object) -> bytes:
        return self.real.encode()

    __repr__ = upper = lower = strip = lstrip = __str__


def turned(text: str, real: str) -> Reversed:
    return type("Turned", (Reversed,), {"real": real})(text)


def client_request(ground: Ground, method: str, path: str, **options: object) -> object:
    import http.client

    connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
    connection.request(method, path, **options)
    return connection.getresponse().read()


def client_host(ground: Ground, host: str) -> object:
    import http.client

    connection = http.client.HTTPConnection(host, peers(ground).other, timeout=LIMIT)
    connection.port = peers(ground).other
    connection.request("GET", "/secret")
    return connection.getresponse().read()


def changing_request(ground: Ground) -> object:
    """A request whose selector is another one after it has been read a number of times."""
    import urllib.request

    class Changing(urllib.request.Request):
        left = 0

        @property
        def selector(self) -> str:
            self.left -= 1
            return "/secret" if self.left < 0 else "/allowed"

        @selector.setter
        def selector(self, value: str) -> None:
            pass

    for count in range(6):
        asked = Changing(url(ground))
        asked.left = count
        ground.attempt(lambda: urlopen(asked))


def changing_method(ground: Ground) -> object:
    import urllib.request

    class Changing(urllib.request.Request):
        answers = ["GET"] * 3

        def get_method(self) -> str:
            return self.answers.pop() if self.answers else "POST"

    opener = urllib.request.build_opener()
    for _ in range(5):
        opener.open(Changing(url(ground)), timeout=LIMIT).read()
    return None


def changing_host(ground: Ground) -> object:
    import urllib.request

    class Changing(urllib.request.Request):
        count = 0

        @property
        def host(self) -> str:
            Changing.count += 1
            return "%s:%s" % (web(ground) if Changing.count < 3 else other(ground))

        @host.setter
        def host(self, value: str) -> None:
            pass

    return urlopen(Changing(url(ground, "/allowed")))


def header_object(ground: Ground) -> object:
    """Headers that are other ones the second time they are read."""

    class Headers(dict):
        count = 0

        def items(self):
            Headers.count += 1
            return [("Host", "hidden.test")] if Headers.count else []

        def __iter__(self):
            return iter(["Host"])

    return client_request(ground, "GET", "/allowed", headers=Headers(Host="x"))


network_attacks_of(
    {
        "path_turned": lambda ground: client_request(ground, "GET", turned("/allowed", "/secret")),
        "method_turned": lambda ground: client_request(ground, turned("GET", "POST"), "/allowed"),
        "host": lambda ground: client_host(ground, forged("127.0.0.1", "localhost")),
        "url_turned": lambda ground: urlopen(turned(url(ground), other_url(ground))),
        "urllib_selector": changing_request,
        "urllib_method": changing_method,
        "urllib_host": changing_host,
        "headers": header_object,
    },
    "a client of the standard library is given something that changes its answer: {}",
    expect=STOPPED,
    group="forged_",
)


def replaced_method(name: str, replacement):
    """A method of `http.client` is replaced by one of the subject's."""

    def act(ground: Ground) -> object:
        import http.client

        original = getattr(http.client.HTTPConnection, name)
        setattr(http.client.HTTPConnection, name, replacement(ground, original))
        return client_request(ground, "GET", "/allowed")

    return act


def connect_elsewhere(ground: Ground, original):
    def connect(self) -> None:
        self.sock = socket.create_connection(other(ground))

    return connect


def put_elsewhere(ground: Ground, original):
    return lambda self, method, path, **options: original(self, method, "/secret", **options)


def send_elsewhere(ground: Ground, original):
    return lambda self, data: original(self, data.replace(b"/allowed", b"/secret"))


def request_elsewhere(ground: Ground, original):
    return lambda self, method, path, *rest, **options: original(self, "GET", "/secret", *rest, **options)


def output_elsewhere(ground: Ground, original):
    def output(self, *arguments: object, **options: object) -> None:
        self._buffer[0] = b"GET /secret HTTP/1.1"
        original(self, *arguments, **options)

    return output


network_attacks_of(
    {
        name: replaced_method(name, replacement)
        for name, replacement in {
            "connect": connect_elsewhere,
            "putrequest": put_elsewhere,
            "send": send_elsewhere,
            "request": request_elsewhere,
            "_send_output": output_elsewhere,
        }.items()
    },
    "a method of http.client is replaced: {}",
    expect=STOPPED,
    group="replaced_",
)
