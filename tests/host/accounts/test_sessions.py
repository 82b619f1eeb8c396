"""Sessions: their owner, duration and end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from democrai_sandbox.errors import AccountUnknown, SignInRefused, SignInThrottled, StoreUnavailable
from democrai_sandbox.host.accounts import accounts as entrance
from democrai_sandbox.host.authentication import Identity, Visit
from tests.access.store.samples import sql
from tests.host.accounts.conftest import PASSWORD, House
from tests.services.rows import rows


def test_the_cookie_of_a_sign_in_is_that_person_on_every_node(house):
    """Approvals use its session's public id, which reveals nothing about the secret."""
    house.person("ada")
    signed_in = house.sign_in()
    expected = Identity("ada", signed_in.session.id, None)
    assert house.with_cookie(signed_in.token) == expected
    assert house.with_cookie(signed_in.token, accounts=house.node()) == expected
    assert house.with_cookie(signed_in.session.id) is None


def test_a_secret_is_256_bits_and_only_its_hash_is_kept(house):
    """The content of the database is not enough to sign in."""
    house.person("ada")
    secrets = {house.sign_in().token for _ in range(5)}
    assert len(secrets) == 5
    assert all(len(secret) == 43 for secret in secrets)
    rows = repr(sql(house.url, "SELECT * FROM host_sessions"))
    assert not any(secret in rows for secret in secrets)
    kept = sql(house.url, "SELECT token_hash FROM host_sessions")[0][0]
    assert house.with_cookie(kept) is None
    assert next(iter(secrets)) not in repr(house.sign_in())


@rows("cookie", ["", "x", "\0", "\ud800", "x" * 100_000, "' OR 1=1 --"])
def test_any_other_cookie_is_nobody(ada_in, cookie):
    """Any other cookie identifies no user."""
    ada_in.sign_in()
    assert ada_in.with_cookie(cookie) is None


def test_a_session_that_is_not_used_ends(house):
    """After the idle time it is invalid; with use it continues until its maximum duration."""
    house.person("ada")
    signed_in = house.sign_in()
    house.clock.wait(minutes=59)
    assert house.with_cookie(signed_in.token) is not None
    house.clock.wait(minutes=59)
    assert house.with_cookie(signed_in.token) is not None
    house.clock.wait(minutes=60)
    assert house.with_cookie(signed_in.token) is None
    assert house.accounts.sessions_of("ada") == ()
    other = house.sign_in()
    for _ in range(23):
        house.clock.wait(minutes=30)
        assert house.with_cookie(other.token) is not None
    house.clock.wait(minutes=30)
    assert house.with_cookie(other.token) is None


def test_a_page_that_asks_for_news_is_no_use_of_a_session(house):
    """An open browser does not keep a session alive forever."""
    house.person("ada")
    signed_in = house.sign_in()
    for _ in range(5):
        house.clock.wait(minutes=10)
        assert house.with_cookie(signed_in.token, accept="text/event-stream") is not None
        assert house.with_cookie(signed_in.token, **{"x-live": "1"}) is not None
    house.clock.wait(minutes=10)
    assert house.with_cookie(signed_in.token) is None


def test_the_last_use_is_written_once_a_minute_at_most(house):
    """Not every page view writes to the database."""
    house.person("ada")
    signed_in = house.sign_in()
    begun = signed_in.session.last_seen
    for seconds, written in ((30, 0), (29, 0), (1, 60), (59, 60), (1, 120)):
        house.clock.wait(seconds=seconds)
        house.with_cookie(signed_in.token)
        assert house.accounts.sessions_of("ada")[0].last_seen - begun == timedelta(seconds=written)


def test_a_short_idle_time_is_exact_enough(url):
    """With one minute of idle time, a session that is used every half minute continues."""
    house = House(url, console={"idle_minutes": 1})
    house.person("ada")
    signed_in = house.sign_in()
    for _ in range(10):
        house.clock.wait(seconds=30)
        assert house.with_cookie(signed_in.token) is not None
    house.close()


def test_sessions_are_listed_with_where_they_come_from(house):
    """Address and browser, newest first; only the user's own sessions."""
    house.person("ada")
    house.person("bea")
    house.sign_in(address="192.0.2.1", agent="first")
    house.clock.wait(seconds=1)
    house.sign_in(address="192.0.2.2", agent="evil\u202e\0" + "x" * 10_000)
    house.sign_in("bea")
    found = house.accounts.sessions_of("ada")
    assert [session.address for session in found] == ["192.0.2.2", "192.0.2.1"]
    assert found[0].user_agent.startswith("evil\u202e\0x")
    assert len(found[0].user_agent) == 300


def test_a_session_is_ended_from_elsewhere_with_what_was_approved_for_it(house):
    """It is invalid from then on; the approvals end first."""
    house.person("ada")
    here, there = house.sign_in(), house.sign_in()
    house.node().end_session(there.session.id, "ada", owner="ada")
    assert house.with_cookie(there.token) is None
    assert house.with_cookie(here.token) is not None
    assert house.ended == [there.session.id]
    with pytest.raises(AccountUnknown):
        house.accounts.end_session(there.session.id, "ada")


def test_somebody_elses_session_is_unknown(house):
    """The error is the same for every owner."""
    house.person("ada")
    house.person("bea")
    hers = house.sign_in("bea")
    said = []
    for session in (hers.session.id, "0" * 26):
        with pytest.raises(AccountUnknown) as caught:
            house.accounts.end_session(session, "ada", owner="ada")
        said.append(str(caught.value).replace(session, ""))
    assert said[0] == said[1]
    assert house.with_cookie(hers.token) is not None
    assert house.ended == []


def test_all_others_or_everything_can_be_ended(house):
    """All except the current one, or all."""
    house.person("ada")
    house.person("bea")
    signed_in = [house.sign_in() for _ in range(3)]
    hers = house.sign_in("bea")
    assert house.accounts.end_all("ada", signed_in[1].session.id) == 2
    assert [house.with_cookie(one.token) is not None for one in signed_in] == [False, True, False]
    assert house.accounts.end_all("ada") == 1
    assert house.with_cookie(signed_in[1].token) is None
    assert house.with_cookie(hers.token) is not None
    assert sorted(house.ended) == sorted(one.session.id for one in signed_in)


def test_a_session_goes_on_when_its_approvals_cannot_be_ended(house):
    """Signing out then fails as a whole and can be retried: no approval is left without a session."""
    house.person("ada")
    signed_in = house.sign_in()

    def away(session_key):
        raise StoreUnavailable

    with pytest.raises(StoreUnavailable):
        house.node(on_session_end=away).sign_out(signed_in.session.id)
    assert house.with_cookie(signed_in.token) is not None
    house.accounts.sign_out(signed_in.session.id)
    assert house.with_cookie(signed_in.token) is None


def test_what_is_over_is_ended_in_passing_with_its_approvals(house):
    """Approvals of an expired session end without another sign-in; every node does it, once."""
    house.person("ada")
    signed_in = house.sign_in()
    house.clock.wait(minutes=61)
    for node in (house.accounts, house.node()):
        node.tidy()
    assert house.ended == [signed_in.session.id]
    assert house.audit()[-1][:2] == ("signed_out", "system")
    assert sql(house.url, "SELECT count(*) FROM host_sessions") == [(0,)]


def test_one_person_has_so_many_sessions_at_most(house, monkeypatch):
    """Beyond the documented maximum the oldest ends."""
    assert entrance.MOST_SESSIONS == 50
    monkeypatch.setattr(entrance, "MOST_SESSIONS", 4)
    house.person("ada")
    first = house.sign_in()
    for _ in range(4):
        house.clock.wait(seconds=1)
        last = house.sign_in()
    assert len(house.accounts.sessions_of("ada")) == 4
    assert house.ended == [first.session.id]
    assert house.with_cookie(last.token) is not None


def test_a_password_that_changes_while_it_is_compared_opens_nothing(house, monkeypatch):
    """A sign-in with the old password does not survive a reset during it."""
    house.person("ada")
    accounts = house.node()
    compare = accounts._sign_in_check.compare

    def slow(*args):
        found = compare(*args)
        house.accounts.reset_password("ada", actor="bea")
        return found

    monkeypatch.setattr(accounts._sign_in_check, "compare", slow)
    with pytest.raises(SignInRefused):
        house.sign_in(accounts=accounts)
    assert house.accounts.sessions_of("ada") == ()


def test_a_password_is_confirmed_for_a_while(house):
    """Signing in counts, and entering it again; old entries and unknown sessions do not."""
    house.person("ada")
    session = house.sign_in().session
    within = timedelta(minutes=5)
    assert house.accounts.is_confirmed(session.id, within)
    house.clock.wait(minutes=6)
    assert not house.accounts.is_confirmed(session.id, within)
    with pytest.raises(SignInRefused):
        house.accounts.confirm_password(session.id, "not the password")
    assert not house.accounts.is_confirmed(session.id, within)
    house.accounts.confirm_password(session.id, PASSWORD)
    assert house.accounts.is_confirmed(session.id, within)
    assert not house.accounts.is_confirmed("no such session", within)


def test_guessing_from_a_session_that_was_left_open_is_throttled(house):
    """An attacker at an unattended browser cannot try many passwords."""
    house.person("ada")
    session = house.sign_in().session
    for _ in range(5):
        with pytest.raises(SignInRefused):
            house.accounts.confirm_password(session.id, "not the password")
    with pytest.raises(SignInThrottled):
        house.accounts.change_password(session.id, "not the password", "something long enough")
    assert house.sign_in().user.id == "ada"


def test_the_cookie_has_the_name_that_browsers_protect_where_there_is_tls(url):
    """Over TLS only ``__Host-`` is read, which no other host can set; the plain name is ignored."""
    house = House(url, public_url="https://sandbox.example.com")
    assert house.accounts.cookie_name == "__Host-democrai"
    house.person("ada")
    signed_in = house.sign_in()
    tossed = Visit({}, {"democrai_session": signed_in.token}, "192.0.2.1", "/")
    assert house.accounts.identify(tossed) is None
    assert house.with_cookie(signed_in.token) is not None
    house.close()


def test_signing_in_and_out_is_in_the_audit(house):
    """User, address, session, and the reason of its end."""
    house.person("ada")
    signed_in = house.sign_in()
    house.accounts.sign_out(signed_in.session.id)
    about = {"person": "ada", "session": signed_in.session.id}
    assert house.audit()[1:] == [
        ("signed_in", "ada", {**about, "address": "192.0.2.1"}),
        ("signed_out", "ada", {**about, "why": "signed out"}),
    ]
    assert signed_in.token not in repr(house.audit())
