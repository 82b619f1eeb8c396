"""Common behavior of all kinds of bus."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from democrai_sandbox.access.events.bus import _memory_lock
from tests.access.events.nodes import PATIENCE, Heard, eventually
from tests.services.golden import sentence
from tests.services.machine_load import Paced, slowness

# Python 3.12 and later warn about forking with threads. The test shows that it does no harm.
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def started(buses, number):
    """Start connected nodes and return their received events."""
    nodes = [(buses.open(), Heard()) for _ in range(number)]
    for bus, heard in nodes:
        bus.start(heard)
    for bus, heard in nodes:
        assert heard.has_gaps(1)
        assert eventually(lambda bus=bus: bus.connected)
    return nodes


def settle(nodes, generation):
    """Wait until every node has received an event of every other node."""
    for number, (bus, _) in enumerate(nodes):
        bus.publish(generation + number)
        for other, heard in nodes:
            assert other is bus or heard.reaches(generation + number)


def test_a_node_is_told_once_to_look_when_it_begins_to_listen(buses):
    """A new listener reads the store to find changes from before it listened."""
    nodes = started(buses, 2)
    settle(nodes, 1)
    assert [heard.gaps for _, heard in nodes] == [1, 1]
    assert all(heard.told[0][0] is None for _, heard in nodes)


def test_what_one_tells_all_others_hear(buses):
    """Each generation reaches every other node; a node does not receive its own events."""
    nodes = started(buses, 3)
    for generation, (bus, own) in enumerate(nodes, start=1):
        own_before = list(own.generations)
        bus.publish(generation)
        for other, heard in nodes:
            assert other is bus or heard.reaches(generation)
        assert own.generations == own_before


def test_generations_of_any_size_are_heard(buses):
    """Generations from 0 to the highest value of the database are delivered."""
    (first, _), (_, heard) = started(buses, 2)
    for generation in (0, 1, 2**53 + 1, 2**63 - 1):
        first.publish(generation)
        assert heard.until(lambda generation=generation: generation in heard.generations)


def test_a_generation_that_is_lower_than_before_is_heard(buses):
    """A bus stores no highest number: a forged high one does not hide later ones."""
    (first, _), (_, heard) = started(buses, 2)
    for generation in (2**63 - 1, 3):
        first.publish(generation)
        assert heard.until(lambda generation=generation: generation in heard.generations)


def test_channels_do_not_hear_each_other(buses):
    """A bus of another channel receives nothing."""
    nodes = started(buses, 2)
    other, heard = buses.open(channel="another"), Heard()
    other.start(heard)
    assert heard.has_gaps(1)
    settle(nodes, 1)
    assert heard.generations == []
    other.publish(100)
    settle(nodes, 3)
    assert all(100 not in heard.generations for _, heard in nodes)


def test_a_burst_is_told_as_little_as_one_event(buses):
    """A busy node gets the highest of many events, once."""
    busy, go_on = threading.Event(), threading.Event()
    heard = Heard()

    def slow(generation):
        heard(generation)
        if generation == 1:
            busy.set()
            go_on.wait(PATIENCE)

    first, second, third = buses.open(), buses.open(), buses.open()
    third_heard = Heard()
    for bus, told in ((first, Heard()), (second, slow), (third, third_heard)):
        bus.start(told)
    assert heard.has_gaps(1)
    assert third_heard.has_gaps(1)
    assert eventually(lambda: first.connected)
    first.publish(1)
    assert busy.wait(PATIENCE)
    for generation in range(2, 202):
        first.publish(generation)
    assert third_heard.reaches(201), "a busy node holds up no other"
    assert eventually(lambda: second._inbox._highest == 201)
    go_on.set()
    assert heard.reaches(201)
    assert heard.generations == [1, 201]


def test_telling_waits_for_nobody(buses):
    """Publishing returns while another node is still busy with its first event."""
    busy, go_on, done = threading.Event(), threading.Event(), []

    def slow(_):
        busy.set()
        done.append(go_on.wait(PATIENCE))

    first, second = buses.open(), buses.open()
    first.start(lambda _: None)
    second.start(slow)
    assert busy.wait(PATIENCE)
    assert eventually(lambda: first.connected)
    for generation in range(500):
        first.publish(generation)
    assert done == []
    go_on.set()


def test_a_node_whose_work_fails_goes_on_listening(buses, caplog):
    """The failure is logged, and the next event is delivered."""
    heard = Heard()

    def failing(generation):
        heard(generation)
        raise ValueError("the node's own trouble")

    first, second = buses.open(), buses.open()
    first.start(lambda _: None)
    second.start(failing)
    assert heard.has_gaps(1)
    assert eventually(lambda: first.connected)
    for generation in (1, 2):
        first.publish(generation)
        assert heard.reaches(generation)
    assert eventually(lambda: [record.exc_info[0] for record in caplog.records if record.exc_info] == [ValueError] * 3)


def test_a_bus_that_is_not_running_says_nothing(buses):
    """Before its start and after its stop, publishing does nothing and raises nothing."""
    nodes = started(buses, 2)
    silent = buses.open()
    assert not silent.connected
    silent.publish(100)
    silent.start(lambda _: None)
    assert eventually(lambda: silent.connected)
    silent.stop()
    silent.publish(101)
    assert not silent.connected
    settle(nodes, 1)
    assert all(max(heard.generations) < 100 for _, heard in nodes)


def test_nothing_is_told_after_the_stop(buses):
    """Once stop has returned, the node is not called anymore."""
    (first, first_heard), (second, heard), (third, _) = started(buses, 3)
    second.stop()
    before = list(heard.told)
    third.publish(1)
    assert first_heard.reaches(1)
    assert heard.told == before


def test_a_bus_is_started_once(buses):
    """A bus cannot be started twice or after its stop."""
    bus = buses.open()
    bus.start(lambda _: None)
    refused_again(bus)
    bus.stop()
    bus.stop()
    refused_again(bus)


def refused_again(bus):
    """Start a bus that cannot be started."""
    with pytest.raises(RuntimeError) as caught:
        bus.start(lambda _: None)
    sentence("started again", str(caught.value))


def test_a_bus_that_was_never_started_can_be_stopped(buses):
    """A stopped bus cannot be started afterwards."""
    bus = buses.open()
    bus.stop()
    refused_again(bus)


def test_a_node_may_stop_its_bus_from_what_it_is_told(buses):
    """Stopping inside the callback does not wait for that callback."""
    stopped = threading.Event()
    bus = buses.open()

    def stop(_):
        bus.stop()
        stopped.set()

    bus.start(stop)
    assert stopped.wait(PATIENCE)
    assert not bus.connected


def test_stopping_is_quick(buses):
    """A bus that waits for events stops quickly."""
    nodes = started(buses, 3)
    settle(nodes, 1)
    with Paced() as stopping:
        for bus, _ in nodes:
            bus.stop()
    assert stopping.seconds < 3


def test_what_is_told_right_before_the_stop_is_not_lost(buses):
    """The others receive it, or are notified of a gap."""
    for generation in range(1, 4):
        (_, heard), (last, _) = started(buses, 2)
        gaps = heard.gaps
        last.publish(generation)
        last.stop()
        assert heard.learns(generation, gaps=gaps)


def test_what_is_told_right_after_the_start_is_not_lost(buses):
    """It is sent once the bus is connected."""
    (_, heard), _ = started(buses, 2)
    bus = buses.open()
    bus.start(lambda _: None)
    bus.publish(7)
    assert heard.reaches(7)


def test_node_names_are_unique(buses):
    """Node ids are unique even if everything except the random part is the same."""
    assert len({buses.open().node for _ in range(50)}) == 50


@forks
def test_a_forked_child_has_no_bus(buses):
    """In the child, publishing and stopping do nothing, and the parent's bus keeps working."""
    nodes = started(buses, 2)
    (first, _), _ = nodes
    child = os.fork()
    if child == 0:
        try:
            first.publish(100)
            first.stop()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    settle(nodes, 1)
    assert all(100 not in heard.generations for _, heard in nodes)


@forks
def test_a_forked_child_does_not_wait_for_threads_that_it_does_not_have(buses):
    """A fork during any operation of another thread does not block the child."""
    bus = buses.open()
    bus.start(lambda _: None)
    assert eventually(lambda: bus.connected)
    lock = _memory_lock if buses.kind == "memory" else bus._changed
    held, done = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(PATIENCE))
        bus.publish(1)
        bus.stop()
        os._exit(0)
    done.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_events_arrive_within_a_second_under_load(buses, record_property):
    """Time until each other node knows an event, at p95, with some hundred events a second from four nodes."""
    nodes = started(buses, 4)
    sent, busy = [], slowness()
    begin = time.monotonic()
    for generation in range(1, 101):
        time.sleep(max(0.0, begin + generation / 300 - time.monotonic()))
        bus, _ = nodes[generation % 4]
        sent.append((generation, bus, time.monotonic()))
        bus.publish(generation)
    took = []
    for generation, sender, at in sent:
        for bus, heard in nodes:
            if bus is sender:
                continue
            # A higher generation counts too, because a burst may be delivered as its highest.
            assert heard.reaches(generation)
            took.append(min(when for told, when in heard.told if told is not None and told >= generation) - at)
    took.sort()
    p50, p95 = took[len(took) // 2], took[len(took) * 95 // 100]
    record_property("milliseconds", {"p50": p50 * 1000, "p95": p95 * 1000, "max": took[-1] * 1000})
    print(f"{buses.kind}: p50 {p50 * 1000:.2f} ms, p95 {p95 * 1000:.2f} ms, max {took[-1] * 1000:.2f} ms")
    assert p95 < max(busy, slowness())
