"""Network targets: accepted forms with their canonical text, and rejected ones."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import FrozenInstanceError
from urllib.parse import urlsplit

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from democrai_sandbox.policy import (
    DEFAULT_PORTS,
    InvalidInputError,
    NetworkTargetMissingError,
    TargetKind,
    parse_declaration,
    parse_request,
    parse_request_url,
    parse_socket,
    parse_unix_socket,
)
from tests.services.rows import rows

# --- accepted --------------------------------------------------------------------------------------------------------


@rows(
    ("text", "kind", "normal"),
    [
        ("https://api.example.com/v1/reports", "url", "https://api.example.com/v1/reports"),
        ("https://api.example.com/v1/", "url", "https://api.example.com/v1"),
        ("https://api.example.com", "url", "https://api.example.com"),
        ("https://api.example.com/", "url", "https://api.example.com"),
        ("HTTPS://API.Example.COM.:443/V1", "url", "https://api.example.com/V1"),
        ("http://api.example.com:443", "url", "http://api.example.com:443"),
        ("ws://h.example/feed", "url", "ws://h.example/feed"),
        ("wss://h.example:8443", "url", "wss://h.example:8443"),
        ("postgres://db.example/app", "url", "postgres://db.example/app"),
        ("redis://cache:6379", "url", "redis://cache"),
        ("custom+x://h.example:99", "url", "custom+x://h.example:99"),
        ("http://127.0.0.1:8080/x", "url", "http://127.0.0.1:8080/x"),
        ("http://[2001:DB8:0::1]/x", "url", "http://[2001:db8::1]/x"),
        ("http://[::ffff:10.0.0.1]:81", "url", "http://10.0.0.1:81"),
        ("https://h.example/a%7eb/%c3%a9", "url", "https://h.example/a~b/%C3%A9"),
        ("https://h.example/é", "url", "https://h.example/%C3%A9"),
        ("https://h.example/a;v=1,2@x:y", "url", "https://h.example/a;v=1,2@x:y"),
        ("https://h.example/%20/%2b", "url", "https://h.example/%20/%2B"),
        ("https://h.example/%21%24%26%27%28%29%2a%2c%3A%3b%3d%40", "url", "https://h.example/!$&'()*,:;=@"),
        ("https://h.example/{id}|x", "url", "https://h.example/%7Bid%7D%7Cx"),
        ("api.example.com", "host", "api.example.com"),
        ("API.example.com.", "host", "api.example.com"),
        ("api.example.com:443", "host", "api.example.com:443"),
        ("localhost", "host", "localhost"),
        ("my_service:80", "host", "my_service:80"),
        ("git:9418", "host", "git:9418"),
        ("10.0.0.1", "host", "10.0.0.1"),
        ("10.0.0.1:65535", "host", "10.0.0.1:65535"),
        ("0.0.0.0:80", "host", "0.0.0.0:80"),
        ("[2001:db8::1]:443", "host", "[2001:db8::1]:443"),
        ("[2001:db8::1]", "host", "2001:db8::1"),
        ("2001:0db8:0:0::1", "host", "2001:db8::1"),
        ("::1", "host", "::1"),
        ("::", "host", "::"),
        ("::ffff:127.0.0.1", "host", "127.0.0.1"),
        ("[::FFFF:7f00:1]:80", "host", "127.0.0.1:80"),
        ("bücher.example", "host", "xn--bcher-kva.example"),
        ("BÜCHER.example:80", "host", "xn--bcher-kva.example:80"),
        ("日本語.jp", "host", "xn--wgv71a119e.jp"),
        ("xn--bcher-kva.example", "host", "xn--bcher-kva.example"),
        ("*.example.com", "wildcard", "*.example.com"),
        ("*.Example.com.:443", "wildcard", "*.example.com:443"),
        ("*.bücher.example", "wildcard", "*.xn--bcher-kva.example"),
        ("*.example.co.uk", "wildcard", "*.example.co.uk"),
        ("10.0.0.0/8", "network", "10.0.0.0/8"),
        ("0.0.0.0/0", "network", "0.0.0.0/0"),
        ("10.1.2.3/32", "network", "10.1.2.3/32"),
        ("2001:DB8::/32", "network", "2001:db8::/32"),
        ("::ffff:10.0.0.0/104", "network", "10.0.0.0/8"),
        ("unix:/run/app.sock", "unix", "unix:/run/app.sock"),
        ("unix:/run/../run//app.sock", "unix", "unix:/run/app.sock"),
        ("unix:@abstract/name", "unix", "unix:@abstract/name"),
    ],
)
def test_declarations_have_one_spelling(text, kind, normal):
    """Every form of the contract is accepted; its canonical text parses to the same target."""
    target = parse_declaration(text)
    assert target.kind == kind
    assert target.normalized == str(target) == normal
    assert parse_declaration(normal) == target


def test_parts_of_a_url():
    """Scheme, host, port and path segments are separated, with the default port filled in."""
    target = parse_declaration("HTTPS://Api.Example.com/v1/reports/")
    assert (target.scheme, target.host, target.port, target.path) == (
        "https",
        "api.example.com",
        443,
        ("v1", "reports"),
    )


@rows(("scheme", "port"), [("http", 80), ("https", 443), ("ws", 80), ("wss", 443), ("redis", 6379)])
def test_default_ports(scheme, port):
    """A URL without a port has the port of its scheme."""
    assert parse_declaration(f"{scheme}://h.example").port == port
    assert parse_declaration(f"{scheme}://h.example:{port}") == parse_declaration(f"{scheme}://h.example")


def test_a_host_without_a_port_stands_for_all():
    """In host form, no port means any port."""
    assert parse_declaration("h.example").port is None
    assert parse_declaration("*.h.example").port is None


@rows(
    "text", ["https://h.example/v1?x=1#f", "https://h.example/v1#?x", "https://h.example/v1?u=http://e.example/@%2e%2e"]
)
def test_query_and_fragment_of_a_request_play_no_part(text):
    """A request is matched by scheme, host, port and path."""
    assert parse_request_url(text).normalized == "https://h.example/v1"


@rows("text", ["https://h.example?x", "https://h.example#x"])
def test_a_query_may_follow_the_host(text):
    """A URL without a path may have a query."""
    assert parse_request_url(text).normalized == "https://h.example"


@rows(
    ("path", "ambiguous"),
    [
        ("/v1/reports", False),
        ("/v1/..hidden/a..b/...", False),
        ("/v1/a%20b", False),
        ("/v1/a%25b", False),
        ("/v1//x", False),
        ("//v1", True),
        ("///v1//x/", True),
        ("//", False),
        ("/v1/../admin", True),
        ("/v1/./x", True),
        ("/v1/..", True),
        ("/v1/..;x=1/admin", True),
        ("/v1/a;x=1", False),
        ("/v1/a%3Bx", False),
        ("/v1/..%3Bx/admin", True),
        ("/v1/.%3b", True),
        ("/v1/..%25253b/admin", True),
        ("/v1/..%3Cx/admin", False),
        ("/v1/%2e%2e/admin", True),
        ("/v1/%2E./admin", True),
        ("/v1/x%2fy", True),
        ("/v1/x%5Cy", True),
        ("/v1/%252e%252e/admin", True),
        ("/v1/%25252F", True),
        ("/v1/%25%32%65%25%32%65/admin", True),
        ("/v1/%25%25%33%32%65", True),
        ("/v1/..%25%33b/admin", True),
        ("/v1/%25%34%31", False),
        ("/v1/%" + "25" * 9 + "41", True),
        ("/v1/%00", True),
        ("/v1/%0d%0aHost:x", True),
        ("/v1/%7f", True),
        ("/v1/%zz", True),
        ("/v1/x%", True),
    ],
)
def test_paths_with_two_readings(path, ambiguous):
    """A path that servers may read differently is marked in a request and rejected in a declaration."""
    assert parse_request_url(f"https://h.example{path}").ambiguous is ambiguous
    if ambiguous:
        with pytest.raises(InvalidInputError, match=re.escape(repr(path))):
            parse_declaration(f"https://h.example{path}")


def test_sockets_and_lookups():
    """A socket address becomes a host target; without a port it is a name lookup."""
    assert parse_socket("API.example.com.", 443).normalized == "api.example.com:443"
    assert parse_socket("::1", 80).normalized == "[::1]:80"
    assert parse_socket("::ffff:1.2.3.4", 80).host == "1.2.3.4"
    assert parse_socket("h.example", None).port is None
    assert parse_unix_socket("/run//a.sock") == parse_declaration("unix:/run/a.sock")
    assert parse_unix_socket("@name") == parse_declaration("unix:@name")


def test_requests_name_one_target():
    """A request is a URL, a host or a socket; patterns and ranges are rejected."""
    assert parse_request("https://h.example/x?q").kind is TargetKind.URL
    assert parse_request("h.example:80").kind is TargetKind.HOST
    assert parse_request("unix:/run/a").kind is TargetKind.UNIX
    for pattern in ("*.example.com", "10.0.0.0/8"):
        with pytest.raises(InvalidInputError, match=re.escape(repr(pattern))):
            parse_request(pattern)


def test_letters_newer_than_the_older_standard_are_accepted():
    """A client of IDNA 2003 fails for such a host instead of connecting elsewhere, so it has one reading."""
    assert parse_declaration("\u10fd.example").host.startswith("xn--")


def test_the_longest_host_is_accepted():
    """The maximum length of a name excludes the trailing dot."""
    longest = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])
    assert parse_declaration(longest).host == parse_declaration(longest + ".").host == longest
    with pytest.raises(InvalidInputError, match="253"):
        parse_declaration(longest + "d")


@rows("filler", ["|", "é", "日", "😀"])
def test_the_canonical_text_has_the_same_greatest_length(filler):
    """Escapes make a path longer; a URL whose canonical form is too long to parse is rejected."""
    room = 65535 - len("https://a.com:81/")
    escaped = 3 * len(filler.encode())
    longest = f"https://a.com:81/{filler * (room // escaped)}" + "a" * (room % escaped)
    assert len(parse_request_url(longest).normalized) == 65535
    assert parse_request_url(parse_request_url(longest).normalized) == parse_request_url(longest)
    for parse in (parse_request_url, parse_declaration):
        with pytest.raises(InvalidInputError, match="65535"):
            parse(longest + "a")


def test_targets_do_not_change():
    """A parsed target is a value."""
    target = parse_declaration("h.example")
    assert hash(target) == hash(parse_declaration("H.example."))
    with pytest.raises(FrozenInstanceError):
        target.host = "other.example"


# --- rejected
# ----------------------------------------------------------------------------------------------------------

ODD_HOSTS = [
    # numbers that some parser reads as an address
    *(
        "0x7f.1",
        "2130706433",
        "127.1",
        "0177.0.0.1",
        "1.2.3",
        "1.2.3.4.5",
        "0x7f000001",
        "0",
        "256.1.1.1",
        "127.0.0.01",
    ),
    *("127.0.0.1.", "1.2.3.0x4", "0x", "a.1", "example.0x10", "00.0.0.0", "127.0.0.1..", "017700000001", "1e3.5"),
    # characters that end, split or hide the host
    *(
        "a.com\0.b.com",
        "a.com\r\n",
        "a.com\t.b.com",
        "a.com .b.com",
        "a.com%00",
        "a%2ecom",
        "a.com;b.com",
        "a.com,b.com",
    ),
    *(
        "a.com\\b.com",
        "a.com\\@b.com",
        "user@a.com",
        "user:pw@a.com",
        "@a.com",
        "a.com|b",
        "a.com<b",
        'a"b.com',
        "a'b.com",
    ),
    *("a..com", ".a.com", "a.com..", "-a.com", "a-.com", "a_$.com", "a+b.com", "a~b.com", "a!b.com", "(a).com", "$a"),
    # other scripts and widths
    *(
        "\uff41.com",
        "１２７.0.0.1",
        "①.com",
        "⒈.com",
        "a\u3002com",
        "a\uff0ecom",
        "a\uff61com",
        "a\u2024com",
        "\u212aelvin.com",
    ),
    *(
        "fa\u00df.de",
        "\u03c2.gr",
        "\u03a3\u0391.gr",
        "x.\u03a30.gr",
        "a\u200d.com",
        "a\u200b.com",
        "a\u202eb.com",
        "a\u00adb.com",
        "b\u00fccher\u0301.\u202e",
    ),
    *("e\u0301.com", "\u0660\u0661.com", "😀.com", "\u2100.com", "a\u2044b.com", "İ.com", "\udc80.com", "\ud800.com"),
    *("xn--\u00fc.com", "a\u3000b.com", "a\u00a0b.com"),
    # invalid IPv6
    *("[::1%25lo]", "[::1%lo]", "[fe80::1%eth0]", "[::1", "::1]", "[::1]x", "[127.0.0.1]", "[]", "[::g]", "[1::2::3]"),
    *("[::ffff:127.1]", "[::127.0.0.01]", "[v1.x]", "[a.com]"),
    # too long
    *("a" * 64 + ".com", ".".join(["a" * 60] * 5), "ü" * 300 + ".com"),
]


@rows("host", ODD_HOSTS, ids=ascii)
@rows("form", ["{}", "{}:80", "http://{}/", "http://{}:80/x", "*.{}"])
def test_odd_hosts_are_refused_in_every_form(host, form):
    """A host that parsers disagree about is rejected in every form."""
    with pytest.raises(InvalidInputError):
        parse_declaration(form.format(host))


@rows("host", ODD_HOSTS, ids=ascii)
def test_odd_hosts_are_refused_in_requests(host):
    """Requests and sockets are parsed as strictly as rules."""
    with pytest.raises(InvalidInputError):
        parse_request_url(f"http://{host}/")
    with pytest.raises(InvalidInputError):
        parse_socket(host, 80)


@rows(
    "text",
    [
        *(
            "http:a.com",
            "http:/a.com",
            "http:///a.com",
            "http://",
            "https:///x",
            "//a.com",
            "//a.com/x",
            "://a.com",
            "/a.com",
        ),
        *("1http://a.com", "ht tp://a.com", "http//a.com", "file:///etc/passwd", "file:/etc", "data:text/plain,x"),
        *("javascript:alert(1)", "mailto:a@b.com", "a.com/path", "a.com:80/path", "localhost/x", "unknown://h.example"),
        *("http://a.com:0", "http://a.com:65536", "http://a.com:99999", "http://a.com:-1", "http://a.com:+80"),
        *(
            "http://a.com:",
            "http://a.com:8 0",
            "http://a.com:080",
            "http://a.com:0x50",
            "http://a.com:８０",
            "http://a.com:80:80",
        ),
        *("a.com:0", "a.com:65536", "a.com:", "a.com:http", "a.com:080", "[::1]:0", "[::1]:", "[::1]:x", "a.com:80:90"),
        *("http://user@a.com", "http://user:pw@a.com/", "http://a.com@b.com", "http://@a.com", "http://a.com:80@b.com"),
        *(
            "http://a.com\\@b.com/",
            "http://a.com/\\x",
            "http://a.com/a b",
            "http://a.com/\t",
            "http://a.com/\n",
            " http://a.com",
        ),
        *("http://a.com ", "http://a.com/\u202e", "http://a.com/\x7f", "http://*.example.com/", "http://[::1"),
        *(
            "*",
            "*.",
            "**.example.com",
            "*.*.example.com",
            "a.*.com",
            "*example.com",
            "example.*",
            "*:80",
            "*.example.com/x",
        ),
        *("*.10.0.0.1", "*.[::1]", "*.::1", "*.com", "*.co.uk", "*.github.io", "*.localhost", "*.com.:443", "*.CO.UK"),
        *(
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/08",
            "10.0.0.0/255.0.0.0",
            "10.0.0/8",
            "10/8",
            "10.0.0.0/",
        ),
        *("10.0.0.0/8:80", "010.0.0.0/8", "2001:db8::1/32", "::/129", "[2001:db8::]/32", "fe80::%1/64", "10.0.0.0/8/8"),
        *("::ffff:10.0.0.0/95", "10.0.0.0/９", "a.com/8", "/8"),
        *(
            "unix:",
            "unix:run/a",
            "unix://run/a",
            "unix:///run/a",
            "unix:@",
            "unix:/",
            "unix:/run/a b",
            "unix:/run/\0",
            "unix:80",
        ),
        *(
            "a.com?x",
            "a.com#x",
            "http://a.com?x=1",
            "http://a.com/#x",
            "http://a.com/?",
            "http://a.com/#",
            "http://a.com/x?",
        ),
        *("http://a.com//x", "http://a.com/x//y", "http://a.com/x//", "http://a.com/../x", "http://a.com/%2e%2e"),
        *("http://a.com/" + "x" * 65536, "a" * 65536, "http://" + "a" * 70000, "\u00fc" * 65536),
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_malformed_declarations_are_refused(text):
    """Invalid URLs, ports, wildcards, ranges and sockets are rejected with a message, not completed."""
    with pytest.raises(InvalidInputError) as caught:
        parse_declaration(text)
    assert caught.value.problems[0].message
    assert len(str(caught.value)) < 400


@rows("text", ["http://a.com/v1#/../admin#x", "http://a.com#a#b", "http://a.com/?#?#", "http://a.com##"])
def test_a_second_fragment_is_refused(text):
    """Clients differ in which '#' ends the path, so they send different paths."""
    with pytest.raises(InvalidInputError, match="'#'"):
        parse_request_url(text)


@rows(
    ("text", "suggestion"),
    [
        ("http:a.com/x", "http://a.com/x"),
        ("//a.com/x", "https://a.com/x"),
        ("a.com/x", "https://a.com/x"),
        ("10.0.0.1/8", "10.0.0.0/8"),
        ("unix:///run/a.sock", "unix:/run/a.sock"),
    ],
)
def test_common_slips_are_told_the_right_form(text, suggestion):
    """The suggestion is the probably intended form, and is accepted."""
    with pytest.raises(InvalidInputError) as caught:
        parse_declaration(text)
    assert caught.value.problems[0].suggestion == suggestion
    parse_declaration(suggestion)


def test_a_suggestion_that_cannot_be_read_is_left_out():
    """An error about a very long target stays short."""
    with pytest.raises(InvalidInputError) as caught:
        parse_declaration("a.com/" + "x" * 1000)
    assert caught.value.problems[0].suggestion is None


@rows("parse", [parse_declaration, parse_request_url, parse_request, parse_unix_socket])
def test_an_empty_target_has_its_own_error(parse):
    """An empty target can be neither matched nor approved."""
    with pytest.raises(NetworkTargetMissingError):
        parse("")
    with pytest.raises(NetworkTargetMissingError):
        parse_socket("", 80)


@rows("value", [None, 1, b"http://a.com", bytearray(b"a.com"), ["a.com"], ("a.com", 80)])
@rows("parse", [parse_declaration, parse_request_url, parse_request, parse_unix_socket])
def test_what_is_no_text_is_refused(parse, value):
    """Bytes and other types are rejected, never decoded."""
    with pytest.raises(InvalidInputError):
        parse(value)


@rows("port", [0, -1, 65536, "80", 80.0, True, b"80"])
def test_odd_ports_of_sockets_are_refused(port):
    """A port is a number from 1 to 65535."""
    with pytest.raises(InvalidInputError):
        parse_socket("h.example", port)


def test_subclasses_cannot_show_another_host():
    """The characters are parsed, without calling overridden methods."""

    class Sly(str):
        __slots__ = ()

        def __str__(self):
            return "http://good.example"

        def __contains__(self, item):
            return False

        def __getitem__(self, key):
            return "http://good.example"[key]

        def startswith(self, *args):
            return False

        def isascii(self):
            return True

    target = parse_declaration(Sly("http://evil.example/x"))
    assert target.host == "evil.example"
    assert type(target.host) is str
    with pytest.raises(InvalidInputError):
        parse_declaration(Sly("http://good.example\\@evil.example"))


# --- properties ------------------------------------------------------------------------------------------------------

LABELS = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,8}[a-z0-9_])?", fullmatch=True)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
ADDRESSES = st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(lambda address: f"[{address}]"))
HOSTS = st.one_of(NAMES, NAMES.map(str.upper), NAMES.map(lambda name: name + "."), ADDRESSES)
PORTS = st.one_of(st.just(""), st.integers(1, 65535).map(lambda port: f":{port}"))
PATHS = st.text(st.sampled_from("ab/.%2eEfF;:@~é+ "), max_size=12).map(lambda path: "/" + path if path else "")
URLS = st.builds("{}://{}{}{}".format, st.sampled_from(sorted(DEFAULT_PORTS)), HOSTS, PORTS, PATHS)
HOST_FORMS = st.builds("{}{}".format, HOSTS, PORTS)
SOUP = st.text(st.sampled_from("ahtps:/.@[]%*\\?#0127x-_é。\t ü"), max_size=24)
ANYTHING = st.one_of(
    URLS, HOST_FORMS, SOUP, NAMES.map(lambda name: f"*.{name}"), SOUP.map(lambda rest: f"http://{rest}")
)


@given(ANYTHING)
@example("http://a.com%2f@b.com")
@example("::ffff:0.0.0.1")
def test_normalising_is_idempotent(text):
    """The canonical text of an accepted declaration parses to the same target and is a fixed point."""
    try:
        target = parse_declaration(text)
    except InvalidInputError:
        assume(False)
    again = parse_declaration(target.normalized)
    assert again == target
    assert again.normalized == target.normalized
    assert target.normalized.isascii()


@given(st.one_of(URLS, SOUP.map(lambda rest: f"http://{rest}")))
def test_requests_are_normalised_idempotently(text):
    """The canonical text of an accepted request parses to the same request."""
    try:
        target = parse_request_url(text)
    except InvalidInputError:
        assume(False)
    assert parse_request_url(target.normalized) == target


@given(st.one_of(URLS, SOUP.map(lambda rest: f"http://{rest}")))
def test_accepted_urls_agree_with_the_standard_library(text):
    """urllib connects to the host and port that were checked."""
    try:
        target = parse_request_url(text)
    except InvalidInputError:
        assume(False)
    parts = urlsplit(text)
    assert parts.scheme == target.scheme
    assert parts.username is None
    assert (parts.port or DEFAULT_PORTS[target.scheme]) == target.port
    host = parts.hostname.removesuffix(".")
    if ":" in host:
        address = ipaddress.IPv6Address(host)
        assert target.host == str(address.ipv4_mapped or address)
    elif host.isascii():
        assert target.host == host
    else:
        assert target.host == host.encode("idna").decode()


@given(
    st.one_of(st.ip_addresses(), st.integers(0, 2**32 - 1).map(lambda low: ipaddress.IPv6Address((0xFFFF << 32) + low)))
)
def test_addresses_agree_with_ipaddress(address):
    """Every address is accepted in host form and equals itself, or the IPv4 address it maps."""
    expected = str(getattr(address, "ipv4_mapped", None) or address)
    assert parse_declaration(str(address)).host == expected
    assert parse_socket(str(address), 1).host == expected
    if address.version == 6:
        assert parse_declaration(f"[{address.exploded}]").host == expected


@given(st.from_regex(r"(0x)?[0-9a-f]{1,4}(\.(0x)?[0-9a-f]{1,4}){0,4}", fullmatch=True))
def test_no_number_slips_through_as_a_name(text):
    """A host that ends in a number is the IPv4 address that ipaddress reads, or rejected."""
    try:
        host = parse_declaration(text).host
    except InvalidInputError:
        return
    last = text.rpartition(".")[2]
    if last.isdigit() or last.startswith("0x"):
        assert host == str(ipaddress.IPv4Address(text))


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused(text):
    """Any text is parsed or rejected with the declared error."""
    for parse in (parse_declaration, parse_request_url, parse_request, parse_unix_socket):
        try:
            parse(text)
        except InvalidInputError:
            continue
