"""Guessing is slowed down on all nodes together, and locks out no user permanently."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from democrai_sandbox.errors import SignInRefused, SignInThrottled
from democrai_sandbox.host.accounts import store
from tests.access.store.samples import sql
from tests.host.accounts.conftest import PASSWORD
from tests.services.rows import rows


def fail(house, times=1, **how):
    """Fail to sign in this many times, with the required waits; return the total wait."""
    waited = 0
    while times:
        try:
            house.sign_in(**{"password": "not the password", **how})
        except SignInRefused:
            times -= 1
        except SignInThrottled as error:
            house.clock.wait(seconds=error.retry_after)
            waited += error.retry_after
    return waited


def refusal(house, **how):
    with pytest.raises((SignInRefused, SignInThrottled)) as caught:
        house.sign_in(**{"password": "not the password", **how})
    return caught.value


def test_five_failures_are_free_and_then_each_waits_twice_as_long(house):
    """1, 2, 4... seconds up to 15 minutes; the right password has to wait as well."""
    house.person("ada")
    assert fail(house, 5) == 0
    waits = []
    for _ in range(12):
        error = refusal(house)
        assert type(error) is SignInThrottled
        waits.append(error.retry_after)
        with pytest.raises(SignInThrottled):
            house.sign_in()
        house.clock.wait(seconds=error.retry_after)
        assert type(refusal(house)) is SignInRefused
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]
    house.clock.wait(seconds=900)
    assert house.sign_in().user.id == "ada"


def test_unknown_names_are_throttled_like_known_ones(house):
    """The wait does not reveal which users exist."""
    house.person("ada")
    fail(house, 5, name="ada", address="192.0.2.7")
    fail(house, 5, name="nobody-there", address="192.0.2.7")
    known, unknown = (refusal(house, name=name, address="192.0.2.7") for name in ("ada", "nobody-there"))
    assert (type(known), known.retry_after) == (type(unknown), unknown.retry_after) == (SignInThrottled, 1)


def test_a_sign_in_clears_the_count(house):
    """After four failures and a success the count starts again."""
    house.person("ada")
    for _ in range(3):
        assert fail(house, 4) == 0
        house.sign_in()


def test_other_addresses_are_not_held_up(house):
    """An attacker who fails on purpose elsewhere does not stop a user from signing in."""
    house.person("ada")
    fail(house, 12, address="203.0.113.9")
    assert house.sign_in(address="192.0.2.1").user.id == "ada"


@pytest.fixture
def six_free(monkeypatch):
    """Lower the free failures of a name or address from fifty to six, because that many take long."""
    assert {kind: rule.free for kind, rule in store._RULES.items()} == {"pair": 5, "name": 50, "address": 50}
    rules = {kind: replace(rule, free=min(rule.free, 6)) for kind, rule in store._RULES.items()}
    monkeypatch.setattr(store, "_RULES", rules)


def test_a_stranger_with_many_addresses_does_not_shut_out_who_was_there_before(house, six_free):
    """Guessing one name from many addresses is slowed down, except where that user signed in before."""
    house.person("ada")
    house.sign_in(address="192.0.2.1")
    for number in range(8):
        refusal(house, address=f"203.0.113.{number}")
    assert type(refusal(house, address="203.0.113.200")) is SignInThrottled
    assert house.sign_in(address="192.0.2.1").user.id == "ada"
    house.clock.wait(seconds=31)  # elsewhere the wait is 30 seconds
    assert house.sign_in(address="198.51.100.1").user.id == "ada"


def test_one_address_does_not_go_through_all_names(house, six_free):
    """Trying the same password with many names is slowed down by the address."""
    house.person("ada")
    for number in range(6):
        assert type(refusal(house, name=f"name{number}", address="203.0.113.9")) is SignInRefused
    assert type(refusal(house, name="ada", address="203.0.113.9")) is SignInThrottled
    assert house.sign_in(address="192.0.2.1").user.id == "ada"


def test_addresses_of_one_ipv6_network_count_as_one(house):
    """A client has 2 ** 64 of them; an IPv4 address is the same in either notation."""
    for number in range(5):
        assert type(refusal(house, address=f"2001:db8::{number:x}")) is SignInRefused
    assert type(refusal(house, address="2001:db8::ffff:1")) is SignInThrottled
    assert type(refusal(house, address="2001:db8:0:1::1")) is SignInRefused
    fail(house, 5, address="192.0.2.66")
    assert type(refusal(house, address="::ffff:192.0.2.66")) is SignInThrottled


def test_spellings_of_a_name_count_as_one(house):
    """Capital letters and surrounding spaces have no effect."""
    house.person("ada")
    for name in ("ada", "ADA", " ada", "Ada ", "aDa"):
        assert type(refusal(house, name=name)) is SignInRefused
    assert type(refusal(house, name="adA")) is SignInThrottled
    house.clock.wait(seconds=1)
    assert house.sign_in(name=" Ada ").user.id == "ada"


def test_all_nodes_count_together(house):
    """The count is the same on every node."""
    house.person("ada")
    other = house.node()
    fail(house, 3)
    fail(house, 2, accounts=other)
    assert type(refusal(house)) is SignInThrottled
    assert type(refusal(house, accounts=other)) is SignInThrottled


def test_many_at_once_are_no_way_round(house):
    """A sign-in counts before it is compared: of twenty in parallel, five are compared."""
    house.person("ada")
    nodes = [house.node(), house.node()]

    def attempt(number):
        try:
            house.sign_in(password="not the password", accounts=nodes[number % 2])
        except (SignInRefused, SignInThrottled) as error:
            return type(error)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(attempt, range(20)))
    assert results.count(SignInRefused) == 5


def test_failures_are_forgotten_after_a_day_and_leave_no_rows(house):
    """Expired counts are removed."""
    fail(house, 8)
    house.clock.wait(days=1, seconds=1)
    assert fail(house, 5) == 0
    house.clock.wait(days=1, seconds=1)
    house.accounts.tidy()
    assert sql(house.url, "SELECT count(*) FROM host_throttle") == [(0,)]


def test_a_stranger_does_not_fill_the_table(house, monkeypatch):
    """The number of rows has a maximum, for any names and addresses."""
    monkeypatch.setattr(store, "MOST_ROWS", 12)
    for number in range(12):
        refusal(house, name=f"name{number}", address=f"203.0.{number}.1")
        assert sql(house.url, "SELECT count(*) FROM host_throttle")[0][0] <= 12


def test_names_and_addresses_are_not_kept_in_the_counts(house):
    """A password typed into the name field is not stored in the database."""
    refusal(house, name="my secret password")
    assert all(len(row[0]) == 64 for row in sql(house.url, "SELECT key FROM host_throttle"))
    assert "my secret password" not in repr(house.audit())


def test_failures_are_in_the_audit_by_powers_of_two(house):
    """The audit log shows guessing and its count, without being filled by it."""
    house.person("ada")
    fail(house, 9, address="203.0.113.9")
    told = [after for action, _, after in house.audit() if action == "sign_in_failed"]
    assert told == [{"person": "ada", "address": "203.0.113.9", "failures": count} for count in (1, 2, 4, 8)]
    house.clock.wait(hours=1)
    house.sign_in(address="203.0.113.9")
    assert house.audit()[-1][2]["failed_before"] == "9"


@rows("name", ["", "x" * 100_000, "\0", "\ud800", "a' OR '1'='1", "ada\r\nSet-Cookie: x=y", "%00"])
def test_hostile_names_are_refused_like_any_other(ada_in, name):
    """Any text as a name identifies no user."""
    assert type(refusal(ada_in, name=name, password=PASSWORD)) is SignInRefused


def test_a_clock_that_is_set_back_makes_nobody_wait_for_longer(house):
    """A machine whose clock was wrong by a year does not lock out users for a year."""
    house.person("ada")
    fail(house, 7)
    house.clock.wait(days=-300)
    assert refusal(house).retry_after <= 4
