"""Redirects after a sign-in: only to pages of the console."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import Request

from democrai_sandbox.console.auth import safe_next
from tests.services.rows import rows

PIECES = st.sampled_from(
    [
        "/",
        "//",
        "\\",
        ".",
        "..",
        "%2e",
        "%2f",
        "%5c",
        "@",
        ":",
        "?",
        "#",
        "a",
        "evil.example",
        "\t",
        "\n",
        " ",
        "http:",
        "sandbox",
        "login",
        "é",
        "\u2028",
    ]
)


def at(root):
    return Request({"type": "http", "root_path": root, "headers": []})


@pytest.mark.parametrize("root", ["", "/sandbox"])
@given(wanted=st.lists(PIECES, max_size=8).map("".join) | st.text(max_size=30).map("/".__add__))
@example(wanted="///evil.example")
@example(wanted="/sandbox///evil.example")
def test_whatever_is_wanted_stays_here(root, wanted):
    """The result never has a scheme or host, and is below the root."""
    found = safe_next(at(root), wanted)
    assert found in {wanted, f"{root}/"}
    assert found.startswith(f"{root}/")
    assert not found.startswith("//")
    assert "\\" not in found
    assert found.isascii()
    assert found.isprintable()
    resolved = urlsplit(urljoin("https://here.example/x/y", found))
    assert (resolved.scheme, resolved.netloc) == ("https", "here.example")
    assert resolved.path.startswith(f"{root}/")


@rows("root", ["", "/sandbox"])
@rows("path", ["/", "/requests", "/requests?state=all&text=https://x//y", "/audit/7#end", "/people?a=%2F"])
def test_pages_of_the_console_are_kept(root, path):
    """Query and fragment are kept."""
    assert safe_next(at(root), root + path) == root + path


@rows("path", ["/other", "/sandboxed/requests", "/sandbox", "/requests"])
def test_other_pages_of_the_application_around_are_not_ours(path):
    """Paths outside of the mount point are refused."""
    assert safe_next(at("/sandbox"), path) == "/sandbox/"
