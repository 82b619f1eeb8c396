"""Network rules as the keys of the native core."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.policy import (
    InvalidInputError,
    Subject,
    compile_policy,
    network_entries,
    parse_access,
    rules_for_paths,
    rules_for_targets,
)
from tests.services.rows import rows


def keys_of(target):
    return {key.decode() for key, _ in network_entries(rules_for_targets([target]))}


def rule(operation, target):
    return {"resource_type": "network", "operation": operation, "target": target}


@rows(
    ("target", "keys"),
    [
        ("https://h.example", {"Uhttps|h.example|443|", "Ohttps|h.example|443", "Rh.example"}),
        ("HTTPS://H.example./", {"Uhttps|h.example|443|", "Ohttps|h.example|443", "Rh.example"}),
        ("ws://h.example:81/a/b/", {"Uws|h.example|81|/a/b", "Ows|h.example|81", "Rh.example"}),
        ("https://h.example/a%7e/é", {"Uhttps|h.example|443|/a~/%C3%A9", "Ohttps|h.example|443", "Rh.example"}),
        ("http://127.0.0.1:8080/x", {"Uhttp|localhost|8080|/x", "Ohttp|localhost|8080", "Rlocalhost"}),
        ("http://[2001:DB8:0::1]", {"Uhttp|2001:db8::1|80|", "Ohttp|2001:db8::1|80", "R2001:db8::1"}),
        ("h.example", {"Hh.example|*", "Ph.example", "Rh.example"}),
        ("h.example:443", {"Hh.example|443", "Ph.example", "Rh.example"}),
        ("[::1]:80", {"Hlocalhost|80", "Plocalhost", "Rlocalhost"}),
        ("::ffff:10.0.0.1", {"H10.0.0.1|*", "P10.0.0.1", "R10.0.0.1"}),
        ("bücher.example", {"Hxn--bcher-kva.example|*", "Pxn--bcher-kva.example", "Rxn--bcher-kva.example"}),
        ("*.h.example", {"Wh.example|*", "P*.h.example", "R*.h.example"}),
        ("*.h.example:443", {"Wh.example|443", "P*.h.example", "R*.h.example"}),
        ("10.0.0.0/8", {"N4|8|0a000000"}),
        ("0.0.0.0/0", {"N4|0|00000000"}),
        ("2001:db8::/32", {"N6|32|20010db8000000000000000000000000"}),
        ("::ffff:10.0.0.0/104", {"N4|8|0a000000"}),
        ("unix:/run/app.sock", {"S/run/app.sock"}),
        ("unix:@bus", {"S@bus"}),
    ],
)
def test_each_form_has_its_keys(target, keys):
    """A rule has the key of its target, a summary key, and the key of its name."""
    assert keys_of(target) == keys


def test_masks_of_one_key_are_united():
    """A key is unique and has the combined mask of its rules; a summary combines its parts."""
    rules = parse_access(
        [
            rule("receive", "https://h.example/a"),
            rule("send", "https://h.example/a"),
            rule("connect", "https://h.example/b"),
            rule("connect", "h.example:22"),
            rule("receive", "h.example"),
        ],
        base=None,
    )
    assert dict(network_entries(rules)) == {
        b"Uhttps|h.example|443|/a": 6,
        b"Uhttps|h.example|443|/b": 1,
        b"Ohttps|h.example|443": 7,
        b"Hh.example|22": 1,
        b"Hh.example|*": 2,
        b"Ph.example": 3,
        b"Rh.example": 7,
    }


def test_loopback_spellings_share_their_keys():
    """The spellings of the loopback host are one host, as in the index."""
    rules = parse_access(
        [rule("connect", "localhost:80"), rule("receive", "127.0.0.1:80"), rule("send", "[::1]:80")], base=None
    )
    assert dict(network_entries(rules)) == {b"Hlocalhost|80": 7, b"Plocalhost": 7, b"Rlocalhost": 7}


def test_rules_about_other_things_have_no_keys():
    """Only network rules have keys."""
    assert network_entries(()) == ()
    assert network_entries(rules_for_paths(["/srv"])) == ()


def test_a_policy_hands_its_keys_to_the_core():
    """Keys are bytes and masks are plain numbers."""
    rules = (*rules_for_paths(["/srv"]), *rules_for_targets(["h.example"]))
    entries = compile_policy(subject=Subject("module", "demo"), rules=rules).network_entries
    assert entries == network_entries(rules)
    assert {(type(key), type(mask)) for key, mask in entries} == {(bytes, int)}


def test_no_part_of_a_target_can_hold_the_separator():
    """A '|' in a path is escaped, and no scheme or host has one, so that keys of different rules differ."""
    assert "Uhttps|h.example|443|/a%7C80" in keys_of("https://h.example/a|80")
    with pytest.raises(InvalidInputError):
        rules_for_targets(["h|80"])


@given(st.permutations(rules_for_targets(["https://h.example/a", "h.example", "*.h.example", "10.0.0.0/8", "unix:@b"])))
def test_the_order_of_rules_plays_no_part(rules):
    """Equal declarations give equal keys in equal order."""
    assert network_entries(rules) == tuple(sorted(network_entries(sorted(rules, key=str))))
