"""One hop of a fetch: a URL, parsed once by the policy's parser, and the target of a redirect from it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from democrai_sandbox.errors.media import MediaRedirectRefused
from democrai_sandbox.policy import InvalidInputError, NetworkTarget, parse_request_url

LONGEST_URL = 8192
"""Limit of URLs, because longer ones cannot be approved."""
_SCHEMES = frozenset({"http", "https"})
# Characters that stay as they are in a path or a query; all others are escaped, as in browsers.
_KEPT = "%/:=&?~+!$,;'@()*[]"


class Hop(NamedTuple):
    """A URL that is about to be requested."""

    url: str
    """Form that is shown and stored: absolute, escaped, without its fragment."""
    target: NetworkTarget
    path: str
    """Path and query, as they are sent."""

    @property
    def secure(self) -> bool:
        """Whether it uses TLS."""
        return self.target.scheme == "https"

    @property
    def scope(self) -> str:
        """Target that limits the fetch itself: this URL.

        Rules cannot name an ambiguous path, so only a rule without a path can permit it; then the target is the site.
        """
        return self.target.normalized if not self.target.ambiguous else self.site

    @property
    def site(self) -> str:
        """Scheme, host and port."""
        return replace(self.target, path=(), ambiguous=False).normalized


def read_url(url: object) -> Hop:
    """Return the hop to a URL, or refuse it: only http and https URLs without user information."""
    if type(url) is not str:
        raise InvalidInputError.of(f"expected a URL, got {type(url).__name__}", pointer="/url")
    if len(url) > LONGEST_URL:
        raise InvalidInputError.of(f"the URL is longer than {LONGEST_URL} characters", pointer="/url")
    target = parse_request_url(url)
    if target.scheme not in _SCHEMES:
        raise InvalidInputError.of(f"expected an http or https URL, got {target.scheme}", pointer="/url")
    parts = urlsplit(url)
    path = quote(parts.path or "/", safe=_KEPT)
    if parts.query:
        path = f"{path}?{quote(parts.query, safe=_KEPT)}"
    hop = Hop("", target, path)
    return hop._replace(url=f"{hop.site}{path}")


def follow(here: Hop, location: str) -> Hop:
    """Return the hop of a redirect; refuse one that gives up the TLS of this hop."""
    text = _as_sent(location).strip(" \t")
    if not text or not text.isprintable():
        raise MediaRedirectRefused("the redirect has an empty or unprintable location")
    try:
        parts = urlsplit(urljoin(here.url, text))
        query = f"?{quote(parts.query, safe=_KEPT)}" if parts.query else ""
        there = read_url(f"{parts.scheme}://{parts.netloc}{quote(parts.path, safe=_KEPT)}{query}")
    except ValueError as error:
        raise MediaRedirectRefused(f"the redirect has an invalid URL: {error}") from None
    if here.secure and not there.secure:
        raise MediaRedirectRefused("the redirect leads from https to http")
    return there


def _as_sent(value: str) -> str:
    """Return a header as the server meant it: the client decodes bytes as Latin-1, but servers send UTF-8."""
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value
