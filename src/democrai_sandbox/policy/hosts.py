"""Host names and addresses: canonical spelling, public suffixes, and scripts that look alike."""

from __future__ import annotations

import ipaddress
import re
import unicodedata

from .problems import InvalidInputError, NetworkTargetMissingError, Problem
from .text import shown

LONGEST_HOST = 253

LOOPBACK = "localhost"
"""Index key for all spellings of the loopback host."""

LOOPBACK_ADDRESSES = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))

_MAPPED_PREFIX_LENGTH = 96
_LOOPBACK_SPELLINGS = frozenset({LOOPBACK, *map(str, LOOPBACK_ADDRESSES)})
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# Last part of an IPv4 address as the C library and browsers read it, in any old spelling.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
# IDNA maps these characters to ".", which would silently split a label.
_LOOKALIKE_DOTS = re.compile("[\u3002\uff0e\uff61\u2024\ufe52]")
# The only letter whose lower case depends on its neighbors, so clients that lower labels or whole names differ.
_CAPITAL_SIGMA = "\u03a3"


def normalise_host(text: str) -> str:
    """Return a name or IPv4 address in canonical form.

    Case is folded, a non-ASCII name becomes its IDNA 2008 form, one trailing dot is removed. A host whose last label is
    a number must be a canonical IPv4 address: four decimal parts without leading zeros, and no trailing dot.
    """
    if not text:
        raise NetworkTargetMissingError([Problem("", "the host is missing")])
    if len(text) > LONGEST_HOST + 1:
        raise InvalidInputError.of(f"the host is longer than {LONGEST_HOST} characters")
    if "%" in text:
        raise InvalidInputError.of(f"the host contains a '%': {shown(text)}")
    name = (text if text.isascii() else _to_ascii(text)).lower()
    if _NUMBER.fullmatch(name.removesuffix(".").rpartition(".")[2]):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            message = f"the host {shown(name)} is a number that is not a canonical IPv4 address (four decimal parts)"
            raise InvalidInputError.of(message) from None
    return _checked_name(name.removesuffix("."), text)


def normalise_ipv6(text: str) -> str:
    """Return an IPv6 address in compressed form, or the IPv4 address it maps. Scope ids are rejected."""
    if "%" in text:
        raise InvalidInputError.of(f"the host contains a '%': {shown(text)} (scope ids are not supported)")
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise InvalidInputError.of(f"not an IPv6 address: {shown(text)}") from None
    return str(address.ipv4_mapped or address)


def normalise_network(text: str) -> str:
    """Return an address range in CIDR form; a range of IPv4-mapped addresses becomes the IPv4 range."""
    base, _, length = text.partition("/")
    if "%" in base or not re.fullmatch(r"0|[1-9][0-9]{0,2}", length):
        raise InvalidInputError.of(f"not an address range: {shown(text)}")
    try:
        network = ipaddress.ip_network(text, strict=False)
        first = ipaddress.ip_address(base)
    except ValueError:
        raise InvalidInputError.of(f"not an address range: {shown(text)}") from None
    if network.network_address != first:
        message = f"the address range {shown(text)} has bits set beyond its length"
        raise InvalidInputError.of(message, suggestion=str(network))
    mapped = getattr(first, "ipv4_mapped", None)
    # A mapped address has its 96th bit set, so a range that starts with one is never shorter than that.
    return str(network) if mapped is None else f"{mapped}/{network.prefixlen - _MAPPED_PREFIX_LENGTH}"


def is_address(host: str) -> bool:
    """Return whether a canonical host is an address, not a name."""
    return ":" in host or host[host.rfind(".") + 1 :].isdecimal()


def host_key(host: str) -> str:
    """Return the index key of a canonical host; the loopback spellings share one."""
    return LOOPBACK if host in _LOOPBACK_SPELLINGS else host


def bracketed(host: str) -> str:
    """Return the host as it is written before a port."""
    return f"[{host}]" if ":" in host else host


def _checked_name(name: str, given: str) -> str:
    if len(name) > LONGEST_HOST:
        raise InvalidInputError.of(f"the host is longer than {LONGEST_HOST} characters")
    for label in name.split("."):
        if not _LABEL.fullmatch(label):
            raise InvalidInputError.of(f"not a host name: {shown(given)} (label {shown(label)})")
    return name


def _to_ascii(text: str) -> str:
    if _LOOKALIKE_DOTS.search(text):
        raise InvalidInputError.of(f"the host contains a character that looks like a dot: {shown(text)}")
    labels = [label if label.isascii() else _to_ascii_label(label, text) for label in text.split(".")]
    return ".".join(labels)


def _to_ascii_label(label: str, host: str) -> str:
    lowered = label.lower()
    # Lower case must not turn a foreign letter into an ASCII one (KELVIN SIGN becomes "k").
    if _CAPITAL_SIGMA in label or sum(map(str.isascii, lowered)) != sum(map(str.isascii, label)):
        raise InvalidInputError.of(f"the host contains a letter that becomes another one in lower case: {shown(host)}")
    try:
        import idna  # noqa: PLC0415  # only hosts that are not ASCII need it
    except ImportError:
        message = f"the host {shown(host)} is not ASCII and the idna package is missing; write its xn-- form"
        raise InvalidInputError.of(message) from None
    try:
        encoded = idna.alabel(lowered).decode("ascii")
    except UnicodeError as error:
        raise InvalidInputError.of(f"not an internationalized host name: {shown(host)} ({error})") from None
    # Check the original spelling too, because IDNA 2003 tables in some Python versions know only lower-case letters.
    for written in (label, lowered):
        _refuse_other_reading(written, encoded, host)
    return encoded


def _refuse_other_reading(label: str, encoded: str, host: str) -> None:
    """Reject a label that clients of the older IDNA 2003, such as ``socket``, send to another host (sharp s)."""
    try:
        older = label.encode("idna").decode("ascii")
    except UnicodeError:
        return  # such a client fails instead of connecting to another host
    if older != encoded:
        message = f"the host {shown(host)} means different hosts to different clients; write its xn-- form ({encoded})"
        raise InvalidInputError.of(message)


# The suffixes prevent an accident in a manifest and are not the Public Suffix List: that list changes weekly, and a
# policy must not change its meaning with an update. Three tests need no external data: a single label (com, internal),
# a registry label below a two-letter country domain (co.uk), and a short table of second-level registries that the
# pattern misses, and of hosting services with public names.
_COUNTRY = re.compile(r"([a-z]+)\.[a-z]{2}")

_REGISTRY_LABELS = frozenset(
    {
        *("ac", "co", "com", "edu", "ed", "gen", "go", "gob", "gouv", "gov", "govt", "gub", "info", "lg", "ltd"),
        *("me", "mil", "name", "ne", "net", "nhs", "nom", "or", "org", "plc", "police", "sch", "school", "web"),
    }
)

_REGISTRIES = frozenset(
    {
        *("asn.au", "id.au", "blog.br", "eco.br", "firm.in", "ind.in", "ad.jp", "gr.jp", "geek.nz", "iwi.nz"),
        *("kiwi.nz", "maori.nz", "in.th", "mi.th", "idv.tw", "game.tw", "ebiz.tw", "in.ua", "pp.ua", "biz.tr"),
        *("pe.kr", "re.kr", "asso.fr", "tm.fr", "eu.org", "uk.com", "us.com", "eu.com", "de.com", "cn.com", "br.com"),
        *("gb.net", "uk.net", "se.net", "in.net", "bel.tr", "priv.no", "pp.se", "biz.id", "my.id", "desa.id"),
    }
)

_HOSTING = frozenset(
    {
        *("github.io", "githubusercontent.com", "gitlab.io", "bitbucket.io", "readthedocs.io", "netlify.app"),
        *("vercel.app", "now.sh", "pages.dev", "workers.dev", "r2.dev", "fly.dev", "onrender.com", "up.railway.app"),
        *("herokuapp.com", "surge.sh", "glitch.me", "repl.co", "replit.app", "replit.dev", "deno.dev", "hf.space"),
        *("streamlit.app", "modal.run", "web.app", "firebaseapp.com", "firebaseio.com", "appspot.com", "run.app"),
        *("a.run.app", "cloudfunctions.net", "azurewebsites.net", "azureedge.net", "cloudapp.net", "azurefd.net"),
        *("blob.core.windows.net", "web.core.windows.net", "cloudapp.azure.com", "azurestaticapps.net"),
        *("s3.amazonaws.com", "cloudfront.net", "elasticbeanstalk.com", "awsapprunner.com", "amplifyapp.com"),
        *("compute.amazonaws.com", "elb.amazonaws.com", "execute-api.amazonaws.com", "on.aws"),
        *("ondigitalocean.app", "ngrok.io", "ngrok.app", "ngrok-free.app", "ngrok.dev", "trycloudflare.com", "ts.net"),
        *("loca.lt", "duckdns.org", "no-ip.org", "dyndns.org", "ddns.net", "sslip.io", "nip.io", "xip.io"),
        *("blogspot.com", "wordpress.com", "wixsite.com", "weebly.com", "myshopify.com", "supabase.co"),
        *("digitaloceanspaces.com", "backblazeb2.com"),
    }
)


def is_public_suffix(name: str) -> bool:
    """Return whether unrelated parties get names directly below this normalized name."""
    if "." not in name or name in _REGISTRIES or name in _HOSTING:
        return True
    below_country = _COUNTRY.fullmatch(name)
    return below_country is not None and below_country.group(1) in _REGISTRY_LABELS


_TOGETHER = (
    frozenset({"CJK", "HIRAGANA", "KATAKANA", "LATIN"}),
    frozenset({"CJK", "HANGUL", "LATIN"}),
    frozenset({"CJK", "BOPOMOFO", "LATIN"}),
)
"""Scripts that one language combines."""


def unicode_host(host: str) -> str:
    """Return a host with its ``xn--`` labels decoded; labels that do not decode stay unchanged."""
    return ".".join(_decoded(label) for label in host.split("."))


def scripts_of(text: str) -> frozenset[str]:
    """Return the scripts of a text's letters, by the first word of their Unicode names."""
    return frozenset(
        unicodedata.name(letter, "UNKNOWN").split(" ")[0].split("-")[0] for letter in text if letter.isalpha()
    )


def mixed_scripts(host: str) -> tuple[str, ...]:
    """Return the scripts of a label that mixes scripts which no language combines."""
    for label in host.split("."):
        scripts = scripts_of(label)
        if len(scripts) > 1 and not any(scripts <= together for together in _TOGETHER):
            return tuple(sorted(scripts))
    return ()


def _decoded(label: str) -> str:
    if not label.lower().startswith("xn--"):
        return label
    try:
        import idna  # noqa: PLC0415 - only names that are not ASCII need it

        return idna.ulabel(label)
    except (ImportError, UnicodeError):
        return label
