"""A burst of requests causes one run; a waiting caller gets the result of a run that started after its request."""

from __future__ import annotations

import os
import threading
import time

import pytest

from democrai_sandbox.errors import HelperFailed, KernelLayerError
from democrai_sandbox.kernel.egress.updater import UpdateThread


class Follower:
    def __init__(self, pause=3600.0):
        self.done = []
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Semaphore(0)
        self.errors = []
        self.descriptors = []
        self.ready = []
        self.between = pause

    def work(self, reasons, *, force):
        self.began.release()
        assert self.gate.wait(20)
        self.done.append((reasons, force))
        if self.errors:
            raise self.errors.pop(0)

    def watched(self):
        return self.descriptors

    def heard(self, ready):
        for number in set(ready) & set(self.descriptors):
            self.ready.append(os.read(number, 10))

    def pause(self):
        return self.between


@pytest.fixture
def follower():
    return Follower()


@pytest.fixture
def refresher(follower):
    refresher = UpdateThread(follower)
    yield refresher
    follower.gate.set()
    refresher.stop()


def reasons(follower):
    return [reasons for reasons, _ in follower.done]


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_no_thread_is_there_before_the_first_wish(follower, refresher):
    assert not refresher.is_running
    refresher.wait(refresher.request("a"), 20)
    assert refresher.is_running
    assert reasons(follower) == [("a",)]


def test_a_burst_becomes_one_more_piece_of_work(follower, refresher):
    follower.gate.clear()
    refresher.request("first")
    assert follower.began.acquire(timeout=20)
    numbers = [refresher.request(f"r{n % 3}", force=n == 50) for n in range(200)]
    follower.gate.set()
    for number in numbers:
        refresher.wait(number, 20)
    assert reasons(follower) == [("first",), ("r0", "r1", "r2")]
    assert [force for _, force in follower.done] == [False, True]


def test_whether_work_is_done_is_told_without_raising_what_it_failed_with(follower, refresher):
    follower.gate.clear()
    follower.errors.append(KernelLayerError("away"))
    number = refresher.request("a")
    assert not refresher.settles(number, 0.05)
    follower.gate.set()
    assert refresher.settles(number, 20)


def test_work_that_had_begun_before_a_wish_does_not_count_for_it(follower, refresher):
    follower.gate.clear()
    refresher.request("first")
    assert follower.began.acquire(timeout=20)
    follower.errors = [KernelLayerError("of the first")]
    number = refresher.request("second")
    follower.gate.set()
    refresher.wait(number, 20)
    assert ("second",) in reasons(follower)


def test_a_failure_is_raised_for_everybody_who_waits_with_its_reason_and_fix(follower, refresher):
    follower.gate.clear()
    follower.errors = [HelperFailed("broken", fix="fix it", reason="table_failed")]
    number, caught = refresher.request("a"), []

    def wait():
        try:
            refresher.wait(number, 20)
        except HelperFailed as error:
            caught.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    # A later caller would get the result of the automatic retry.
    wait_until(lambda: len(refresher._changed._waiters) == 4)
    follower.gate.set()
    for thread in threads:
        thread.join()
    assert len(caught) == 4
    assert {(error.what, error.fix, error.reason) for error in caught} <= {("broken", "fix it", "table_failed")}
    assert len(set(map(id, caught))) == 4


def test_what_failed_is_tried_again_by_itself_and_by_force(follower, refresher):
    follower.errors = [HelperFailed("broken"), ValueError("a defect"), HelperFailed("broken")]
    refresher.request("a")
    wait_until(lambda: len(follower.done) == 4)
    assert [force for _, force in follower.done] == [False, True, True, True]
    assert refresher.is_running


def test_a_defect_in_the_work_is_told_and_does_not_end_the_thread(follower, refresher):
    follower.gate.clear()
    number = refresher.request("a")
    follower.errors = [ZeroDivisionError("oops")]
    # A caller that waits after the failure may get the result of the retry.
    release = threading.Thread(target=lambda: (wait_until(lambda: refresher._changed._waiters), follower.gate.set()))
    release.start()
    with pytest.raises(KernelLayerError, match="ZeroDivisionError"):
        refresher.wait(number, 20)
    release.join()
    refresher.wait(refresher.request("b"), 20)


def test_waiting_ends_with_its_time_while_the_work_goes_on(follower, refresher):
    follower.gate.clear()
    number = refresher.request("a")
    with pytest.raises(HelperFailed) as failed:
        refresher.wait(number, 0.05)
    assert failed.value.reason == "timed_out"
    follower.gate.set()
    refresher.wait(number, 20)


def test_whoever_is_asked_in_the_course_of_the_work_does_not_wait_for_itself(follower, refresher):
    asked = []

    def work(reasons, *, force):
        follower.done.append((reasons, force))
        if len(follower.done) == 1:
            refresher.wait(refresher.request("inner"), 20)
            asked.append(True)

    follower.work = work
    refresher.wait(refresher.request("outer"), 20)
    wait_until(lambda: reasons(follower) == [("outer",), ("inner",)])
    assert asked


def test_stopping_ends_the_thread_and_tells_who_waits(follower, refresher):
    follower.gate.clear()
    refresher.request("a")
    assert follower.began.acquire(timeout=20)
    number, caught = refresher.request("b"), []

    def wait():
        with pytest.raises(HelperFailed) as failed:
            refresher.wait(number, 20)
        caught.append(failed.value.reason)

    thread = threading.Thread(target=wait)
    thread.start()
    stopping = threading.Thread(target=refresher.stop)
    stopping.start()
    thread.join()
    follower.gate.set()
    stopping.join()
    assert caught == ["stopped"]
    assert not refresher.is_running
    refresher.stop()
    refresher.request("late")
    assert not refresher.is_running


def test_descriptors_are_looked_at_also_those_with_high_numbers(follower, refresher):
    import fcntl
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3000:
        pytest.skip("descriptors above 1023 are not to be had here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    reading, writing = os.pipe()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, 2000)
    try:
        follower.descriptors = [high]
        refresher.start()
        os.write(writing, b"word")
        wait_until(lambda: follower.ready == [b"word"])
        refresher.stop()
    finally:
        for number in (reading, writing, high):
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_works_without_being_asked_when_the_pause_is_over():
    follower = Follower(pause=0.02)
    refresher = UpdateThread(follower)
    refresher.start()
    try:
        wait_until(lambda: len(follower.done) >= 3)
    finally:
        refresher.stop()
    assert reasons(follower)[0] == ("time",)


def test_the_thread_shows_nobody_what_it_works_on(follower, refresher):
    before = threading.enumerate()
    refresher.wait(refresher.request("a"), 20)
    begun = (thread for thread in threading.enumerate() if thread not in before)
    (thread,) = (thread for thread in begun if thread.name == "egress-refresh")
    shown = [value for name, value in vars(thread).items() if "refresher" in repr(value).lower() and name != "_name"]
    assert shown == []
    assert thread.daemon
