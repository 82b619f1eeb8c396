"""Password rules, the cost of a comparison, and the limit of parallel comparisons."""

from __future__ import annotations

import threading
import time

import pytest

from democrai_sandbox.errors import InvalidInputError, SignInRefused, SignInThrottled
from democrai_sandbox.host.accounts.passwords import Cost, Passwords, check_password, random_password
from tests.access.store.samples import sql
from tests.host.accounts.conftest import CHEAP, PASSWORD
from tests.services.golden import sentence
from tests.services.rows import rows

LIKE_REAL = Cost(memory_kib=8 * 1024, passes=2)


def test_passwords_that_are_refused_say_why():
    """Too short, too long, one repeated character, or the name itself."""
    told = []
    for password in (
        *("", None, b"bytes are no text", "eleven char", "x" * 1025, "ü" * 600, "aaaaaaaaaaaaaaaa"),
        *("ada.lovelace", "ADA.Lovelace", "half a character \ud800"),
    ):
        with pytest.raises(InvalidInputError) as caught:
            check_password(password, "ada.lovelace")
        (problem,) = caught.value.problems
        assert problem.pointer == "/password"
        told.append(problem.message)
    assert " 12 " in told[3]
    assert " 1024 " in told[4]
    assert told[4] == told[5]
    assert told[7] == told[8]
    assert len(set(told)) == 6
    sentence("refused passwords", "\n".join(told))


@rows("password", ["twelve chars", "x" * 1023 + "y", "пароль из слов", "        a   b", "with\0nul and more"])
def test_passwords_that_are_taken_match_and_nothing_else_does(password):
    """Any characters are accepted; the hash matches that password only."""
    passwords = Passwords(CHEAP)
    kept = passwords.keep(check_password(password, "ada"))
    assert passwords.matches(password, kept)
    for other in (password + "x", password[:-1], password.upper() + "A", "", "\ud800", "x" * 100_000):
        assert not passwords.matches(other, kept)


def test_ways_to_type_the_same_characters_are_one_password():
    """A letter with a combining accent equals the composed letter."""
    passwords = Passwords(CHEAP)
    assert passwords.matches("cafe\u0301 au lait", passwords.keep("caf\u00e9 au lait"))


def test_nobody_matches_nothing():
    """The hash for unknown names matches no password, not even the empty one."""
    passwords = Passwords(CHEAP)
    assert not passwords.matches("", None)
    assert not passwords.matches(PASSWORD, None)
    assert not passwords.matches(PASSWORD, "no such thing")


def test_the_usual_cost_is_what_is_recommended():
    """64 MiB and three passes, stored in the hash, so that it can be raised later."""
    assert Cost().of_nobody().startswith("$argon2id$v=19$m=65536,t=3,p=1$")


def test_an_unknown_name_takes_as_long_as_a_wrong_password(house):
    """The response time does not reveal which users exist."""
    accounts = house.node(cost=LIKE_REAL)
    accounts.create_person("known", PASSWORD, actor="tests")

    def took(name):
        begun = time.thread_time()
        with pytest.raises(SignInRefused):
            house.sign_in(name, "not the password", accounts=accounts)
        return time.thread_time() - begun

    known, unknown = [], []
    for _ in range(4):  # five failures are free
        known.append(took("known"))
        unknown.append(took("stranger"))
    assert 0.4 < min(unknown) / min(known) < 2.5  # other load only makes samples slower, never faster


def test_sign_ins_of_one_moment_all_succeed_when_the_cost_was_raised(house):
    """Each stores a new hash; one is first, and the others continue with its hash."""
    house.person("ada")
    dearer = house.node(cost=LIKE_REAL)
    at_once, sessions = threading.Barrier(4), []

    def sign_in():
        at_once.wait(30)
        sessions.append(house.sign_in(accounts=dearer))

    threads = [threading.Thread(target=sign_in) for _ in range(at_once.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(sessions) == at_once.parties


def test_a_password_is_kept_at_the_present_cost_after_a_sign_in(house):
    """A raised cost applies to every user at the next sign-in, and passwords keep working."""
    house.person("ada")
    dearer = house.node(cost=Cost(memory_kib=128, passes=1))
    assert house.sign_in(accounts=dearer).user.id == "ada"
    assert "m=128" in sql(house.url, "SELECT password FROM host_people")[0][0]
    assert house.sign_in(accounts=dearer).user.id == "ada"


def test_few_passwords_are_compared_at_once_and_the_rest_are_told_to_come_back():
    """Two are compared, some wait, and others are refused, so that pages have free threads."""
    passwords = Passwords(CHEAP)
    passwords._slots.acquire()
    passwords._slots.acquire()
    results = []

    def compare():
        try:
            results.append(passwords.matches(PASSWORD, None))
        except SignInThrottled as error:
            results.append(error)

    threads = [threading.Thread(target=compare) for _ in range(20)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 60
    while len(results) < 14 and time.monotonic() < end:
        time.sleep(0.01)
    assert [type(one) for one in results] == [SignInThrottled] * 14
    passwords._slots.release(2)
    for thread in threads:
        thread.join(60)
    assert results[14:] == [False] * 6


def test_a_sign_in_that_was_not_compared_is_not_counted(house):
    """A refusal because of load does not count towards throttling."""
    house.person("ada")
    accounts = house.node()
    accounts._passwords._waiting = 1000
    for _ in range(10):
        with pytest.raises(SignInThrottled) as caught:
            house.sign_in(accounts=accounts)
        assert caught.value.retry_after == 2
    assert house.sign_in().user.id == "ada"


def test_random_passwords_are_long_and_differ():
    """They meet the rules, and no two are the same."""
    made = {random_password() for _ in range(100)}
    assert len(made) == 100
    assert all(check_password(one, "admin") == one for one in made)
