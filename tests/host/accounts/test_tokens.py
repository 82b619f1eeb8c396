"""API tokens: their owner and scopes."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from democrai_sandbox.errors import AccountConflict, AccountUnknown, InvalidInputError
from democrai_sandbox.host.accounts import store
from democrai_sandbox.host.accounts.accounts import bearer_of
from democrai_sandbox.host.authentication import Identity, Visit
from democrai_sandbox.host.scopes import Scope
from tests.access.store.samples import sql
from tests.services.rows import rows


def test_a_token_is_its_owner_with_its_scopes(house):
    """Approvals use its public id as the session."""
    house.person("ada")
    token, secret = house.accounts.create_token("ada", "ci", [Scope.REQUESTS_READ, "tasks:read"])
    expected = Identity("ada", token.id, frozenset({"requests:read", "tasks:read"}))
    assert house.with_token(secret) == expected
    assert house.with_token(secret, accounts=house.node()) == expected


def test_a_secret_can_be_told_from_other_texts_and_is_not_kept(house):
    """``dsb_`` and 256 bits; the database stores the hash, which is not a valid token."""
    house.person("ada")
    token, secret = house.accounts.create_token("ada", "ci", ["tasks:read"])
    assert re.fullmatch(r"dsb_[0-9A-Za-z]{43}", secret)
    assert secret not in repr(sql(house.url, "SELECT * FROM host_tokens"))
    kept = sql(house.url, "SELECT secret_hash FROM host_tokens")[0][0]
    assert house.with_token(kept) is None
    assert house.with_token(token.id) is None
    assert secret not in repr(house.audit())


def test_a_token_counts_alone_in_the_header(house):
    """A wrong token identifies no user even with a valid cookie; a token elsewhere is ignored."""
    house.person("ada")
    _, secret = house.accounts.create_token("ada", "ci", ["tasks:read"])
    cookies = {house.accounts.cookie_name: house.sign_in().token}
    for header in (f"Bearer {secret}x", "Bearer dsb_wrong", "bearer x"):
        assert house.accounts.identify(Visit({"authorization": header}, cookies, "", "/")) is None
    for visit in (
        Visit({}, {}, "", f"/api/v1/me?token={secret}&access_token={secret}"),
        Visit({}, {house.accounts.cookie_name: secret}, "", "/"),
        Visit({"x-api-key": secret, "cookie": secret}, {"token": secret}, "", "/"),
        Visit({"authorization": f"Basic {secret}"}, {}, "", "/"),
        Visit({"authorization": secret}, {}, "", "/"),
        Visit({"authorization": f"Bearer {secret}, Bearer {secret}"}, {}, "", "/"),
    ):
        assert house.accounts.identify(visit) is None
    # A proxy in front may use another authentication header.
    assert house.accounts.identify(Visit({"authorization": "Basic eDp5"}, cookies, "", "/")).user_id == "ada"


@rows(
    ("header", "found"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("BEARER abc", "abc"),
        ("Bearer", None),
        ("Bearer ", None),
        ("Bearer a b", None),
        ("Bearerabc", None),
        ("Basic abc", None),
        ("", None),
    ],
)
def test_what_follows_bearer_is_the_token(header, found):
    """In any letter case, and one word."""
    assert bearer_of(header) == found


def test_a_token_ends_when_it_expires_or_is_revoked(house):
    """Its approvals end as well, and it stays in the list for a while."""
    house.person("ada")
    short, first = house.accounts.create_token("ada", "short", ["tasks:read"], timedelta(days=1))
    long, second = house.accounts.create_token("ada", "long", ["tasks:read"])
    house.clock.wait(days=1)
    assert house.with_token(first) is None
    assert house.with_token(second) is not None
    house.accounts.tidy()
    assert house.ended == [short.id]
    house.node().revoke_token(long.id, "ada", owner="ada")
    assert house.with_token(second) is None
    assert house.ended == [short.id, long.id]
    assert all(token.ended_at for token in house.accounts.tokens_of("ada"))
    told = [(action, actor, after["why"]) for action, actor, after in house.audit() if action == "token_revoked"]
    assert told == [("token_revoked", "system", "expired"), ("token_revoked", "ada", "revoked")]
    house.clock.wait(days=91)
    house.node().tidy()
    assert house.accounts.tokens_of("ada") == ()


def test_a_token_of_somebody_else_is_unknown(house):
    """The error is the same for every owner."""
    house.person("ada")
    house.person("bea")
    token, secret = house.accounts.create_token("bea", "hers", ["tasks:read"])
    said = []
    for known in (token.id, "0" * 26):
        with pytest.raises(AccountUnknown) as caught:
            house.accounts.revoke_token(known, "ada", owner="ada")
        said.append(str(caught.value).replace(known, ""))
    assert said[0] == said[1]
    assert house.with_token(secret) is not None


def test_a_token_gives_no_more_than_its_maker_has(house):
    """A token that may create tokens creates none with additional scopes."""
    house.person("ada")
    with pytest.raises(InvalidInputError, match="requests:decide"):
        house.accounts.create_token(
            "ada", "more", ["requests:decide", "tasks:read"], within=frozenset({"accounts:manage", "tasks:read"})
        )
    with pytest.raises(InvalidInputError):
        house.accounts.create_token("ada", "more", ["tasks:read"], within=frozenset())
    token, _ = house.accounts.create_token("ada", "same", ["tasks:read"], within=["tasks:read"])
    assert token.scopes == {Scope.TASKS_READ}
    assert len(house.accounts.tokens_of("ada")) == 1


@rows(
    ("given", "pointer"),
    [
        ({"label": ""}, "/label"),
        ({"label": "  "}, "/label"),
        ({"label": "x" * 101}, "/label"),
        ({"label": None}, "/label"),
        ({"scopes": []}, "/scopes"),
        ({"scopes": ["tasks:read", "task:read"]}, "/scopes/1"),
        ({"scopes": ["*"]}, "/scopes/0"),
        ({"lifetime": timedelta(0)}, "/lifetime"),
        ({"lifetime": timedelta(days=-1)}, "/lifetime"),
        ({"lifetime": timedelta(days=5000)}, "/lifetime"),
    ],
)
def test_tokens_that_make_no_sense_are_refused_with_their_place(ada_in, given, pointer):
    """An empty label, unknown scopes, an invalid lifetime."""
    with pytest.raises(InvalidInputError) as caught:
        ada_in.accounts.create_token("ada", **{"label": "ci", "scopes": ["tasks:read"], **given})
    assert caught.value.problems[0].pointer == pointer
    assert ada_in.accounts.tokens_of("ada") == ()


def test_a_misspelt_scope_comes_with_the_one_that_is_meant(house):
    """A misspelled scope gets a suggestion."""
    house.person("ada")
    with pytest.raises(InvalidInputError) as caught:
        house.accounts.create_token("ada", "ci", ["task:read"])
    assert caught.value.problems[0].suggestion == "tasks:read"


def test_nobody_makes_tokens_without_end(house, monkeypatch):
    """The number of active tokens has a maximum; revoked ones do not count."""
    monkeypatch.setattr(store, "MOST_TOKENS", 3)
    house.person("ada")
    made = [house.accounts.create_token("ada", f"t{number}", ["tasks:read"])[0] for number in range(3)]
    with pytest.raises(AccountConflict, match=r"\b3\b"):
        house.accounts.create_token("ada", "one more", ["tasks:read"])
    house.accounts.revoke_token(made[0].id, "ada")
    house.accounts.create_token("ada", "one more", ["tasks:read"])


def test_the_last_use_is_known(house):
    """To the minute, so that unused tokens can be found."""
    house.person("ada")
    _, secret = house.accounts.create_token("ada", "ci", ["tasks:read"])
    assert house.accounts.tokens_of("ada")[0].last_used is None
    house.with_token(secret)
    used = house.clock.now
    house.clock.wait(seconds=59)
    house.with_token(secret)
    assert house.accounts.tokens_of("ada")[0].last_used == used
    house.clock.wait(seconds=1)
    house.with_token(secret)
    assert house.accounts.tokens_of("ada")[0].last_used == used + timedelta(minutes=1)
