"""Bad input: a typed refusal from every client and call, never a crash or a guess, and nothing is sent."""

from __future__ import annotations

import pytest

from tests.guard.network.clients import CLIENTS

pytestmark = pytest.mark.once  # does not depend on the interpreter

CLIENT_FILE = __file__.replace("test_bad_input.py", "clients.py")
PORT = "{port}"

# Hosts that parsers read differently; the odd spellings of loopback come first.
ODD_HOSTS = (
    *(
        "127.1",
        "127.0.1",
        "0x7f.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "0177.0.0.1",
        "127.0.0.01",
        "127.0.0.1.",
    ),
    *("0x7f.0x0.0x0.0x1", "127.0.0.0x1", "00000127.0.0.1", "1.2.3.4.5", "256.1.1.1", "127.0.0.256", "4294967296"),
    *("[::1%25lo]", "[::1%lo]", "[fe80::1%25eth0]", "[::1", "::1]", "[127.0.0.1]", "[::ffff:127.1]", "[v1.x]", "[]"),
    *("a%2ecom", "127.0.0.1%00.example.com", "a%00b", "%31%32%37.0.0.1", "localhost%2f"),
    *("user@127.0.0.1", "user:pass@127.0.0.1", "allowed.example.com@127.0.0.1", "127.0.0.1\\@example.com", "a\\b"),
    *("a b", "a\tb", "a\nb", "a\rb", "a\x00b", "a\x7fb", "a\u200bb", "a\u00a0b", "\u202ea", "a\u3002com", "a\uff0ecom"),
    *(
        "\u2488.com",
        "\uff11\uff12\uff17.0.0.1",
        "\u2460\u2461\u2466.0.0.1",
        "fa\u00df.de",
        "\u212aelvin.com",
        "\u0430pple.com\u0000",
    ),
    *(
        "-a.com",
        "a-.com",
        "a..b",
        ".a",
        "..",
        ".",
        "*",
        "*.example.com",
        "a,b",
        "a;b",
        "a|b",
        "a<b",
        "a{b",
        "a^b",
        "a`b",
    ),
    *("x" * 64, "x" * 300, ".".join(["x" * 60] * 5), "xn--", "xn--a" + "b" * 80),
)
ODD_URLS = (
    *(
        "",
        " ",
        "/",
        "//",
        "http:",
        "http:/",
        "http://",
        "http:///",
        "http:///path",
        "http://:80/",
        "http://?x",
        "http://#x",
    ),
    *("http:127.0.0.1/", "http:/127.0.0.1/", "http:\\\\127.0.0.1\\", "//127.0.0.1/", "127.0.0.1", "http//127.0.0.1/"),
    *("file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/", "javascript:alert(1)", "data:,x", "unix:/x"),
    *("http://127.0.0.1:0/", "http://127.0.0.1:99999/", "http://127.0.0.1:65536/", "http://127.0.0.1:-1/"),
    *("http://127.0.0.1:+80/", "http://127.0.0.1:8 0/", "http://127.0.0.1:0x50/", "http://127.0.0.1:\u0668\u0660/"),
    *("http://127.0.0.1:80:80/", "http://127.0.0.1:http/", "http://127.0.0.1:080/", "http://127.0.0.1:1e2/"),
    *("http://127.0.0.1:{port}/a#b#c", "http://127.0.0.1:{port}\\@example.com/", "http://127.0.0.1:{port}\t/"),
    *("h\u0442tp://127.0.0.1/", "http ://127.0.0.1/", " http://127.0.0.1/", "ht\ntp://127.0.0.1/"),
)


def status(fetch, *arguments):
    """Return the status or the error, unwrapped from the client's error."""
    try:
        answer = fetch(*arguments)
        return (run_async(answer) if hasattr(answer, "__await__") else answer)[0]
    except Exception as error:
        return tell(denial_behind(error))


def urls(world):
    """Return the result of each client form with each URL, under a guard that allows the whole loopback host."""
    client, texts = world.args
    rules = [rule("127.0.0.1", "connect", "receive", "send")]
    told = {}
    for form, recipe in world.load(CLIENT_FILE)["CLIENTS"][client].items():
        fetch = recipe(world.places["ca"])
        result = world.under(rules, {text: lambda text=text: status(fetch, "GET", text) for text in texts})
        told[form] = {"seen": result["seen"], "arrived": result["arrived"]}
    return told


def values(world):
    """Return the results for values that are not text, or lying text, as URL, host or address."""
    import socket

    from democrai_sandbox.guard import _core

    port = world.port("http")
    allowed = world.url("http", "/allowed")
    secret = world.url("http", "/secret")

    class Lying(str):
        __slots__ = ()

        def __str__(self):
            return allowed

        def __eq__(self, other):
            return True

        def __hash__(self):
            return hash(allowed)

        def startswith(self, *_):
            return True

        def encode(self, *_, **__):
            return allowed.encode()

        def partition(self, _):
            return allowed, "", ""

        def split(self, *_, **__):
            return [allowed]

        def lower(self):
            return allowed

    class Host(str):
        __slots__ = ()

        def __str__(self):
            return "127.0.0.1"

        def encode(self, *_, **__):
            return b"127.0.0.1"

    class Turning:
        """Port that changes with each access."""

        def __init__(self):
            self.ports = iter([port, world.port("other"), world.port("other")])

        def __index__(self):
            return next(self.ports)

    def connect(address, family=socket.AF_INET):
        with socket.socket(family) as made:
            made.settimeout(2)
            made.connect(address)
            return list(made.getpeername()[:2])

    def fetch(url):
        import urllib.request

        with urllib.request.urlopen(url, timeout=2) as response:
            return [response.status, response.url]

    requests = {
        "lying text": lambda: _core.request("GET", Lying(secret)),
        "bytes": lambda: _core.request("GET", secret.encode()),
        "bytearray": lambda: _core.request("GET", bytearray(allowed.encode())),
        "number": lambda: _core.request("GET", 1),
        "none": lambda: _core.request("GET", None),
        "list": lambda: _core.request("GET", [allowed]),
        "empty": lambda: _core.request("GET", ""),
        "64 KiB": lambda: _core.request("GET", allowed + "/" + "x" * 65536),
        "64 KiB host": lambda: _core.request("GET", "http://" + "x" * 65536),
        "surrogate": lambda: _core.request("GET", allowed + "\ud800"),
        "method number": lambda: _core.request(1, allowed),
        "method empty": lambda: _core.request("", secret),
        "method line": lambda: _core.request("GET / HTTP/1.1\r\nX:", secret),
        "method lower": lambda: _core.request("get", secret),
    }
    fetches = {"lying text, fetched": lambda: fetch(Lying(secret))}
    connects = {
        "lying host": lambda: connect((Host("evil.example.net"), port)),
        "host bytes": lambda: connect((b"127.0.0.2", port)),
        "host bytearray": lambda: connect((bytearray(b"127.0.0.2"), port)),
        "host number": lambda: connect((2130706433, port)),
        "host none": lambda: connect((None, port)),
        "host empty": lambda: connect(("", port)),
        "host broadcast": lambda: connect(("<broadcast>", port)),
        "host long": lambda: connect(("x" * 70000, port)),
        "port 0": lambda: connect(("127.0.0.1", 0)),
        "port 65536": lambda: connect(("127.0.0.1", 65536)),
        "port 99999": lambda: connect(("127.0.0.1", 99999)),
        "port -1": lambda: connect(("127.0.0.1", -1)),
        "port text": lambda: connect(("127.0.0.1", str(port))),
        "port huge": lambda: connect(("127.0.0.1", 2**80)),
        "port turning": lambda: connect(("127.0.0.1", Turning())),
        "no tuple": lambda: connect("127.0.0.1"),
        "list": lambda: connect(["127.0.0.2", port]),
        "short": lambda: connect(("127.0.0.1",)),
        "long": lambda: connect(("127.0.0.1", port, 0, 0, 0)),
        "scope": lambda: connect(("::1", port, 0, 1), socket.AF_INET6),
        "scope in text": lambda: connect(("::1%lo", port, 0, 0), socket.AF_INET6),
        "flow": lambda: connect(("::1", port, 1 << 20, 0), socket.AF_INET6),
        "unix nul": lambda: connect("a\0b", socket.AF_UNIX),
        "unix long": lambda: connect("/" + "x" * 200, socket.AF_UNIX),
        "unix number": lambda: connect(5, socket.AF_UNIX),
        "unix empty": lambda: connect("", socket.AF_UNIX),
        "unix surrogate": lambda: connect("/\ud800", socket.AF_UNIX),
    }
    rules = [rule(allowed, "receive"), rule(f"127.0.0.1:{port}", "connect")]
    told = {}
    for name, table in {"requests": requests, "fetches": fetches, "connects": connects}.items():
        told[name] = world.under(rules, table)
    return told


def names(world):
    """Return the results of odd hosts in everything that looks up names."""
    import asyncio
    import socket

    hosts = world.args[0]

    async def on_loop(host):
        await asyncio.get_running_loop().getaddrinfo(host, 80)

    def connect(host):
        with socket.socket() as made:
            made.settimeout(2)
            made.connect((host, 80))

    calls = {
        "getaddrinfo": lambda host: socket.getaddrinfo(host, 80) and None,
        "getaddrinfo, bytes": lambda host: socket.getaddrinfo(host.encode(), 80) and None,
        "gethostbyname": lambda host: socket.gethostbyname(host) and None,
        "gethostbyname_ex": lambda host: socket.gethostbyname_ex(host) and None,
        "gethostbyaddr": lambda host: socket.gethostbyaddr(host) and None,
        "loop": on_loop,
        "connect": connect,
    }
    actions = {
        f"{name}: {host}": lambda call=call, host=host: call(host) for name, call in calls.items() for host in hosts
    }
    return world.under([rule("127.0.0.1", "connect"), rule("0.0.0.0/0", "connect")], actions)


def numbers(world):
    """Return the results of invalid ports and flags of lookups."""
    import socket

    actions = {
        "port 99999": lambda: socket.getaddrinfo("evil.example.net", 99999),
        "port 0": lambda: socket.getaddrinfo("evil.example.net", 0),
        "port -1": lambda: socket.getaddrinfo("evil.example.net", -1),
        "port list": lambda: socket.getaddrinfo("127.0.0.1", []),
        "port text": lambda: socket.getaddrinfo("evil.example.net", "80; x"),
        "family": lambda: socket.getaddrinfo("evil.example.net", 80, 99),
        "flags": lambda: socket.getaddrinfo("evil.example.net", 80, flags=1 << 30),
        "no host": lambda: len(socket.getaddrinfo(None, 80)) > 0,
        "no host, passive": lambda: len(socket.getaddrinfo(None, 0, flags=socket.AI_PASSIVE)) > 0,
        "host number": lambda: socket.getaddrinfo(5, 80),
        "nothing": lambda: socket.getaddrinfo(None, None),
        "no arguments": lambda: socket.getaddrinfo(),
        "nameinfo": lambda: socket.getnameinfo("x", 0),
        "nameinfo short": lambda: socket.getnameinfo((), 0),
        "nameinfo numeric": lambda: list(socket.getnameinfo(("127.0.0.1", 80), 3)),
    }
    return world.under([], actions)


def refused(verdict):
    """Return whether a verdict is a refusal of this package or a usual error of the library or interpreter."""
    if not isinstance(verdict, str):
        return False
    return not verdict.startswith(("ok", "SystemError", "RuntimeError", "MemoryError"))


# Clients change these before they ask and connect: they decode escapes and look-alike digits, cut user information and
# fragments, and drop white space. The result is plain and allowed.
USERS = ("user@127.0.0.1", "user:pass@127.0.0.1", "allowed.example.com@127.0.0.1")
TIDIED_HOSTS = {
    "urllib.request": ("%31%32%37.0.0.1",),
    "requests": ("%31%32%37.0.0.1",),
    "http.client": USERS,
    "urllib3": ("%31%32%37.0.0.1", *USERS),
    "aiohttp": ("\uff11\uff12\uff17.0.0.1", "\u2460\u2461\u2466.0.0.1", *USERS),
}
FRAGMENTS, TAB, BACKSLASH = "http://127.0.0.1:{port}/a#b#c", "http://127.0.0.1:{port}\t/", ODD_URLS[-6]
TIDIED_URLS = {
    "urllib.request": (FRAGMENTS, TAB),
    "requests": (FRAGMENTS, BACKSLASH),
    "http.client": (FRAGMENTS, TAB),
    "urllib3": (FRAGMENTS, BACKSLASH),
    "aiohttp": (FRAGMENTS, TAB),
}


class TestUrls:
    @pytest.mark.parametrize("client", CLIENTS)
    def test_odd_hosts_reach_nobody(self, net, client):
        """Every ambiguous spelling of a host is refused by every entry point; nothing is sent."""
        port = net.places["http"][1]
        for form, told in net.run(
            urls, client, [f"http://{host}:{port}/allowed" for host in ODD_HOSTS], loaded=True
        ).items():
            passed = {url for url, verdict in told["seen"].items() if not refused(verdict)}
            assert passed <= {f"http://{host}:{port}/allowed" for host in TIDIED_HOSTS.get(client, ())}, form
            arrived = [entry["path"] for entry in told["arrived"] if entry["event"] == "request"]
            assert arrived == ["/allowed"] * len(passed), form

    @pytest.mark.parametrize("client", CLIENTS)
    def test_odd_urls_reach_nobody(self, net, client):
        """Empty, broken, other schemes, invalid ports: an error, and nothing is sent."""
        port = net.places["http"][1]
        texts = [text.replace(PORT, str(port)) for text in ODD_URLS] + [f"http://127.0.0.1:{port}/{'x' * 65536}"]
        for form, told in net.run(urls, client, texts, loaded=True).items():
            passed = {url for url, verdict in told["seen"].items() if not refused(verdict)} - {"data:,x"}
            assert passed <= {text.replace(PORT, str(port)) for text in TIDIED_URLS.get(client, ())}, form
            assert len([entry for entry in told["arrived"] if entry["event"] == "request"]) == len(passed), form

    @pytest.mark.parametrize("client", CLIENTS)
    def test_translated_addresses_are_not_the_address(self, net, client):
        """Only the mapped form is its IPv4 address; every other way to write loopback into IPv6, and 0, is denied."""
        port = net.places["http"][1]
        hosts = ("[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::]", "0.0.0.0", "[::ffff:0:127.0.0.1]")
        for form, told in net.run(
            urls, client, [f"http://{host}:{port}/allowed" for host in hosts], loaded=True
        ).items():
            assert {verdict.split(":")[0] for verdict in told["seen"].values()} == {"denied receive http"}, form
            assert told["arrived"] == [], form


class TestValues:
    def test_no_text_is_taken_for_another(self, net):
        """A str subclass is read by its characters; other types are refused."""
        seen = net.run(values, loaded=True)["requests"]["seen"]
        secret = f"http://127.0.0.1:{net.places['http'][1]}/secret"
        assert seen.pop("lying text") in {f"denied receive {secret}", "InvalidInputError"}
        assert seen.pop("method lower") in {f"denied {op} {secret}" for op in ("receive", "send")} | {
            "InvalidInputError"
        }
        assert seen.pop("empty") == "NetworkTargetMissingError"
        assert all(
            verdict.startswith(("InvalidInputError", "TypeError", "denied send")) for verdict in seen.values()
        ), seen

    def test_a_lying_text_does_not_get_through_a_client(self, net):
        """This applies to every client."""
        told = net.run(values, loaded=True)["fetches"]
        assert not isinstance(told["seen"]["lying text, fetched"], list) or told["arrived"][-1]["path"] == "/allowed"
        assert "/secret" not in [entry.get("path") for entry in told["arrived"]]

    def test_odd_addresses_are_refused(self, net):
        """A denial, bad input, or the interpreter's TypeError, OverflowError or OSError."""
        told = net.run(values, loaded=True)["connects"]
        seen = told["seen"]
        port = net.places["http"][1]
        plain = {"port turning": ["127.0.0.1", port], "scope": ["::1", port], "flow": ["::1", port]}
        for name, reached in plain.items():
            verdict = seen.pop(name)
            assert verdict == reached or refused(verdict), name
        assert {name: verdict for name, verdict in seen.items() if not refused(verdict)} == {}
        assert seen["host empty"] == "NetworkTargetMissingError"
        assert {entry["at"] for entry in told["arrived"]} <= {"http"}

    def test_odd_hosts_are_not_looked_up(self, town):
        """Anything except a name or a canonical address is bad input to every call, and no question is sent."""
        told = town.run(names, [host for host in ODD_HOSTS if "\x00" not in host])
        wrong = {name: verdict for name, verdict in told["seen"].items() if not refused(verdict)}
        assert wrong == {}
        assert told["arrived"] == []
        numeric = {
            name: verdict
            for name, verdict in told["seen"].items()
            if name.endswith((": 127.1", ": 0x7f.1", ": 2130706433"))
        }
        assert set(numeric.values()) == {"InvalidInputError"}

    def test_odd_lookups(self, town):
        """Invalid ports, families and flags are errors; a lookup without a host is local."""
        told = town.run(numbers)
        seen = told["seen"]
        assert seen.pop("no host") is seen.pop("no host, passive") is True
        assert seen.pop("nameinfo numeric") == ["127.0.0.1", "80"]
        assert {name: verdict for name, verdict in seen.items() if not refused(verdict)} == {}
        assert told["arrived"] == []
