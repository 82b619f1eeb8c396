"""Generators of URLs that confuse parsers. An example is a batch of texts, which makes many of them cheap."""

from __future__ import annotations

import ipaddress
import unicodedata
from itertools import product

from hypothesis import strategies as st

from tests.policy.url_oddities import HOMOGRAPHS, ODD_HOSTS, ODD_PORTS, ODD_SEGMENTS, ODD_TAILS, SCHEMES, TOKENS

# --- parts of URLs ---------------------------------------------------------------------------------------------------

LABELS = st.builds(
    "{}{}{}".format,
    st.sampled_from("abhxXZ019_"),
    st.sampled_from(["", "a", "-", "9-z", "--", "_"]),
    st.sampled_from("aBz07"),
)
NAMES = st.builds(
    "{}{}".format, st.lists(LABELS, min_size=1, max_size=3).map(".".join), st.sampled_from(["", "", "", "."])
)


def part_spellings(value: int) -> list[str]:
    """Return spellings of one number in an address."""
    wide = str(value).translate({48 + digit: 0xFF10 + digit for digit in range(10)})
    return [
        str(value),
        f"{value:#x}",
        f"{value:#X}",
        f"0{value:o}",
        f"{value:04}",
        f"0x{value:010x}",
        wide,
        f"{value + 256}",
    ]


def number_spellings(value: int) -> list[str]:
    """Return an IPv4 address as one to five numbers, in one notation or with one number in another."""
    hosts = []
    for count in range(1, 6):
        numbers = [(value >> (24 - 8 * index)) & 255 for index in range(count - 1)]
        numbers.append(value & (2 ** (8 * max(5 - count, 1)) - 1))
        ways = [part_spellings(number) for number in numbers]
        for way in range(len(ways[0])):
            hosts.append(".".join(part[way] for part in ways))
            hosts += [".".join(part[way if at == odd else 0] for at, part in enumerate(ways)) for odd in range(count)]
    plain = str(ipaddress.IPv4Address(value))
    return [
        *hosts,
        plain + ".",
        plain + "x",
        plain.replace(".", "。"),
        plain.replace(".", "..", 1),
        "." + plain,
        plain.replace(".", "%2e"),
    ]


def address_spellings(address: ipaddress.IPv6Address) -> list[str]:
    """Return spellings of an IPv6 address, with scope ids, and with brackets in right and wrong places."""
    head, tail = int(address) >> 32, ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    groups = [f"{(head >> shift) & 0xFFFF:x}" for shift in (80, 64, 48, 32, 16, 0)]
    dotted = ":".join([*groups, str(tail)])
    short = f"::ffff:{tail}" if head == 0xFFFF else f"::{tail}" if head == 0 else dotted
    texts = [str(address), address.exploded, str(address).upper(), dotted, short, dotted.replace(".", ".0", 1)]
    zones = ["", "%25lo", "%lo", "%1", "%", "%2500"]
    forms = ["{}", "[{}", "{}]", "[[{}]]", "[{}]x", "[{}].com", "[{}:]", "[:{}]", "x[{}]", "[{}] ", "[%5b{}]"]
    return [f"[{text}{zone}]" for text in texts for zone in zones] + [form.format(texts[0]) for form in forms]


PREFIXES = ["::ffff:0:0", "::", "64:ff9b::", "64:ff9b:1::", "2001::", "fe80::", "::ffff:0:0:0", "ff02::", "fc00::"]
V4 = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0x7F000001, 0, 0x0A000001, 0xA9FEA9FE, 2**32 - 1]))
V6 = st.one_of(
    st.ip_addresses(v=6),
    V4.map(lambda low: ipaddress.IPv6Address((0x2002 << 112) + (low << 80))),
    st.builds(lambda prefix, low: ipaddress.IPv6Address(prefix) + low, st.sampled_from(PREFIXES), V4),
)
NUMBERS = V4.map(number_spellings).flatmap(st.sampled_from)
ADDRESSES = V6.map(address_spellings).flatmap(st.sampled_from)
LETTERS = st.characters(exclude_categories=["Cs", "Cn", "Co"])
SCRIPT_LABELS = st.one_of(
    st.text(LETTERS, min_size=1, max_size=4),
    st.text(
        st.characters(min_codepoint=0x80, max_codepoint=0x5FF, exclude_categories=["Cc", "Zs"]), min_size=1, max_size=6
    ),
    st.text(st.sampled_from("aаαàßσςΣſ\u212akıiİIéeＡ．０0①xn-"), min_size=1, max_size=6),
)
HOSTS = st.one_of(NAMES, NAMES, NUMBERS, ADDRESSES, st.sampled_from(ODD_HOSTS), st.sampled_from(HOMOGRAPHS))
PORTS = st.one_of(st.sampled_from(ODD_PORTS), st.integers(1, 65535).map(":{}".format))
SEGMENTS = st.one_of(st.sampled_from(ODD_SEGMENTS), st.text("abZ09._~%;:@+-", min_size=1, max_size=6))
PATHS = st.builds("".join, st.lists(SEGMENTS.map("/{}".format), max_size=4))

# --- batches of URLs -------------------------------------------------------------------------------------------------


def several(strategy, least, most):
    return st.lists(strategy, min_size=least, max_size=most, unique=True)


PLAIN_PARTS = {
    "scheme": st.sampled_from(["http", "https", "HTTPS", "ws", "ftp"]),
    "host": st.one_of(NAMES, st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map("[{}]".format)),
    "port": st.one_of(st.just(""), st.integers(1, 65535).map(":{}".format)),
    "path": several(st.text("abZ09_~-", min_size=1, max_size=4), 0, 3).map(
        lambda parts: "".join(f"/{part}" for part in parts)
    ),
    "tail": st.sampled_from(["", "/", "?q=1", "#f"]),
}
ODD_PARTS = {
    "scheme": st.sampled_from(SCHEMES),
    "host": HOSTS,
    "port": PORTS,
    "path": PATHS,
    "tail": st.sampled_from(ODD_TAILS),
}


@st.composite
def from_grammar(draw):
    """Return every combination of schemes, hosts, ports, paths and tails, some of which may be odd."""
    odd = draw(st.sets(st.sampled_from([*ODD_PARTS, "path", "path"]), max_size=3))
    kinds = {name: ODD_PARTS[name] if name in odd else PLAIN_PARTS[name] for name in PLAIN_PARTS}
    parts = [draw(several(kind, 2, 8 if name == "path" else 3)) for name, kind in kinds.items()]
    return [f"{scheme}://{host}{port}{path}{tail}" for scheme, host, port, path, tail in product(*parts)]


PLAIN_PATHS = several(st.sampled_from(["v1", "a", "x.y", "a%20b"]), 0, 3).map(
    lambda parts: "".join(f"/{part}" for part in parts)
)
PLAIN = st.builds(
    "{}://{}{}{}{}".format,
    st.sampled_from(["http", "https", "ws", "git"]),
    st.sampled_from(["a.com", "a.b.com", "10.0.0.1", "[::1]", "h", "bücher.de"]),
    st.sampled_from(["", ":80", ":8443"]),
    PLAIN_PATHS,
    st.sampled_from(["", "?q", "#f", "/"]),
)


@st.composite
def with_insertions(draw):
    """Return a valid URL with each odd token inserted, or replacing a character."""
    text = draw(PLAIN)
    place = draw(st.integers(0, len(text)))
    return [text[:place] + token + text[place + gone :] for token in TOKENS for gone in (0, 1)]


def twists(character: str) -> list[str]:
    """Return spellings of one character."""
    escaped = "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
    wide = chr(ord(character) + 0xFEE0) if "!" <= character <= "~" else character
    return ["", character * 2, character.swapcase(), escaped, escaped.upper(), escaped.replace("%", "%25"), wide]


@st.composite
def with_twists(draw):
    """Return a URL with each character in turn removed, doubled, escaped, widened or in the other case."""
    text = draw(st.one_of(PLAIN, st.builds("http://{}{}{}".format, HOSTS, PORTS, PATHS)))[:200]
    return [text[:at] + twist + text[at + 1 :] for at in range(len(text)) for twist in twists(text[at])]


HOST_FORMS = [
    "http://{}",
    "https://{}:8443/a",
    "ws://{}/a?q",
    "HTTP://{}#f",
    "redis://{}/0",
    "custom+x://{}:9/",
    "http://{}:80",
]


@st.composite
def with_odd_hosts(draw):
    """Return URLs with numbers, all spellings of IPv6, and the hosts of known holes."""
    hosts = number_spellings(draw(V4)) + address_spellings(draw(V6)) + draw(several(st.sampled_from(ODD_HOSTS), 4, 8))
    forms = draw(several(st.sampled_from(HOST_FORMS), 3, 5))
    return [form.format(host) for host in hosts for form in forms]


SCRIPT_FORMS = [
    *(
        "http://{}/",
        "https://{}.com/x",
        "http://a{}.com",
        "http://{}b.com.",
        "ws://x.{}.de",
        "git://{}.com/",
        "http://a.com/{}",
    ),
    *(
        "http://x.{}0.de/",
        "http://{}.{}/",
        "ftp://{}.xn--bcher-kva.de",
        "http://a.com:8{}/",
        "http://{}@a.com",
        "http://a.com?{}#{}",
    ),
]


@st.composite
def with_scripts(draw):
    """Return URLs with hosts in all scripts, look-alikes, and characters that IDNA maps."""
    labels = draw(several(st.one_of(SCRIPT_LABELS, SCRIPT_LABELS, st.sampled_from(HOMOGRAPHS)), 4, 8))
    labels += [
        spelling(label) for label in labels for spelling in (str.upper, str.lower, str.title, composed, decomposed)
    ]
    return [form.replace("{}", label) for label in labels for form in SCRIPT_FORMS]


def composed(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def decomposed(text: str) -> str:
    return unicodedata.normalize("NFD", text)


SOUP = st.text(st.sampled_from("ahtps:/.@[]%*\\?#0127x-_;é。\t ü+2eEfF|\x7f"), max_size=24)


@st.composite
def with_soup(draw):
    """Return random text after a start that looks like a URL."""
    soups = draw(several(SOUP, 4, 8))
    forms = [
        "{}",
        "http:{}",
        "http://{}",
        "http://a.com{}",
        "http://a.com/{}",
        "https://a.com:{}",
        "ws://[{}]/",
        "http://a.com#{}",
    ]
    return [form.format(soup) for soup in soups for form in forms]


GROUPS = {
    "grammar": from_grammar(),
    "insertions": with_insertions(),
    "twists": with_twists(),
    "hosts": with_odd_hosts(),
    "scripts": with_scripts(),
    "soup": with_soup(),
}
"""All generators by name."""
