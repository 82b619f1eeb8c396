"""One hop of a fetch: a URL, read once by the policy's own reader, and where a redirect leads from it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from democrai_sandbox.policy import InvalidInputError, NetworkTarget, parse_request_url

from .errors import MediaRedirectRefused

LONGEST_URL = 8192
"""Longer ones no approval can be asked for."""
_SCHEMES = frozenset({"http", "https"})
# What may stand in a path or a query as it is; all else is escaped, as browsers do.
_KEPT = "%/:=&?~+!$,;'@()*[]"


class Hop(NamedTuple):
    """A URL that is about to be asked for."""

    url: str
    """As it is shown and kept: absolute, escaped, without its fragment."""
    target: NetworkTarget
    path: str
    """Path and query, as they are sent."""

    @property
    def secure(self) -> bool:
        """Whether it is asked for over TLS."""
        return self.target.scheme == "https"

    @property
    def scope(self) -> str:
        """The target that the fetch itself is held to: this URL.

        A path that servers read in different ways cannot be named in a rule, and is permitted only by one without a
        path; then it is the site.
        """
        return self.target.normalized if not self.target.ambiguous else self.site

    @property
    def site(self) -> str:
        """The scheme, host and port."""
        return replace(self.target, path=(), ambiguous=False).normalized


def read_url(url: object) -> Hop:
    """Return the hop to a URL, or refuse it: only web addresses, without user information."""
    if type(url) is not str:
        raise InvalidInputError.of(f"expected a URL, got {type(url).__name__}", pointer="/url")
    if len(url) > LONGEST_URL:
        raise InvalidInputError.of(f"the URL is longer than {LONGEST_URL} characters", pointer="/url")
    target = parse_request_url(url)
    if target.scheme not in _SCHEMES:
        raise InvalidInputError.of(f"media come over http or https, not {target.scheme}", pointer="/url")
    parts = urlsplit(url)
    path = quote(parts.path or "/", safe=_KEPT)
    if parts.query:
        path = f"{path}?{quote(parts.query, safe=_KEPT)}"
    hop = Hop("", target, path)
    return hop._replace(url=f"{hop.site}{path}")


def follow(here: Hop, location: str) -> Hop:
    """Return the hop to which a redirect leads; refuse one that gives up the protection that this hop had."""
    text = _as_sent(location).strip(" \t")
    if not text or not text.isprintable():
        raise MediaRedirectRefused("the redirect names no place")
    try:
        parts = urlsplit(urljoin(here.url, text))
        query = f"?{quote(parts.query, safe=_KEPT)}" if parts.query else ""
        there = read_url(f"{parts.scheme}://{parts.netloc}{quote(parts.path, safe=_KEPT)}{query}")
    except ValueError as error:
        raise MediaRedirectRefused(f"the redirect leads to no web address: {error}") from None
    if here.secure and not there.secure:
        raise MediaRedirectRefused("the redirect leads from https to http")
    return there


def _as_sent(value: str) -> str:
    """Return a header as servers mean it: the client reads bytes as Latin-1, and servers send UTF-8."""
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value
