"""Public suffixes."""

from __future__ import annotations

from democrai_sandbox.policy.hosts import is_public_suffix
from tests.services.rows import rows


@rows(
    "name",
    [
        "com",
        "uk",
        "localhost",
        "internal",
        "co.uk",
        "org.uk",
        "com.au",
        "co.jp",
        "or.jp",
        "com.br",
        "gov.in",
        "github.io",
    ]
    + ["s3.amazonaws.com", "herokuapp.com", "workers.dev", "id.au", "eu.org", "xn--p1ai"],
)
def test_names_that_anybody_registers_under(name):
    """Top-level domains, country registries and hosting services are public."""
    assert is_public_suffix(name)


@rows(
    "name",
    [
        "example.com",
        "example.co.uk",
        "me.github.io",
        "bucket.s3.amazonaws.com",
        "example.de",
        "co.example",
        "com.example.uk",
    ]
    + ["corp.internal", "bbc.uk"],
)
def test_names_of_one_owner(name):
    """A registered name, also below a public suffix, has one owner."""
    assert not is_public_suffix(name)
