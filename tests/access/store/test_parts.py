"""Small parts: stored texts and times, the fair semaphore, the garbage collector switch."""

from __future__ import annotations

import gc
import threading
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from democrai_sandbox.access.snapshot import pause_collection
from democrai_sandbox.access.store.database import FairSemaphore
from democrai_sandbox.access.store.tables import from_stored, to_stored
from democrai_sandbox.access.values import from_micros, to_micros

ODD = st.text(
    st.one_of(st.characters(), st.sampled_from("\0\x10\ud800\udfff\udc80d8"), st.sampled_from("0123456789abcdef"))
)


@given(ODD)
@example("\x10d800")
@example("\x100010\x10")
def test_any_text_can_be_stored(text):
    """The text survives the round trip, and its stored form is UTF-8 without NUL."""
    stored = to_stored(text)
    assert from_stored(stored) == text
    assert b"\0" not in stored.encode()


@given(ODD, ODD)
def test_two_texts_are_never_stored_alike(first, second):
    """Unique constraints rely on this."""
    assert (to_stored(first) == to_stored(second)) == (first == second)


@given(st.datetimes(min_value=datetime(1900, 1, 1), timezones=st.sampled_from([UTC, timezone(timedelta(hours=5.5))])))
def test_times_are_exact(moment):
    """Times are exact to the microsecond, from any zone, and keep their order."""
    assert from_micros(to_micros(moment)) == moment
    assert from_micros(to_micros(moment)).tzinfo is UTC
    assert to_micros(moment + timedelta(microseconds=1)) == to_micros(moment) + 1


def test_a_time_without_a_zone_is_refused():
    """A time without a zone is ambiguous."""
    with pytest.raises(TypeError):
        to_micros(datetime(2026, 1, 1))


def waiting(semaphore, count):
    while len(semaphore._waiting) < count:
        time.sleep(0.001)


def test_who_came_first_goes_first():
    """A waiting thread goes before one that just left and returns."""
    semaphore, order, threads = FairSemaphore(1), [], []

    def enter(name):
        with semaphore.entered(10):
            order.append(name)

    with semaphore.entered(1):
        for name in range(5):
            threads.append(threading.Thread(target=enter, args=(name,)))
            threads[-1].start()
            waiting(semaphore, name + 1)
    enter("again")
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2, 3, 4, "again"]


def test_there_are_never_more_inside_than_places():
    """An error inside releases the place."""
    semaphore, lock, inside, most = FairSemaphore(3), threading.Lock(), [], []

    def enter():
        for _ in range(50):
            with pytest.raises(ZeroDivisionError), semaphore.entered(10):
                with lock:
                    inside.append(1)
                    most.append(len(inside))
                time.sleep(0)
                with lock:
                    inside.pop()
                1 / 0  # noqa: B018

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (max(most), len(most)) == (3, 400)
    assert (semaphore._free, len(semaphore._waiting)) == (3, 0)


def test_who_waits_too_long_goes_away():
    """The timeout raises an error and loses no place."""
    semaphore = FairSemaphore(1)
    with semaphore.entered(1), pytest.raises(TimeoutError), semaphore.entered(0.01):
        pass
    with semaphore.entered(0.01):
        pass
    assert (semaphore._free, len(semaphore._waiting)) == (1, 0)


def test_a_place_that_came_at_the_last_moment_is_handed_on():
    """A thread that times out at that moment passes the place on."""
    semaphore = FairSemaphore(1)
    semaphore._enter(1)
    late = threading.Event()
    semaphore._waiting.append(late)
    semaphore._leave()
    assert late.is_set()
    semaphore._give_up(late)
    assert semaphore._free == 1


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled):
    """This includes nested use and errors."""
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError), pause_collection():
            with pause_collection():
                assert not gc.isenabled()
            assert not gc.isenabled()
            1 / 0  # noqa: B018
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
