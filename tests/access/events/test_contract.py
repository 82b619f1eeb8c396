"""What every kind of bus does alike."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from democrai_sandbox.access.events import memory
from tests.access.events.nodes import PATIENCE, Heard, eventually
from tests.services.golden import sentence
from tests.services.pace import Paced, slowness

# Python 3.12 and later warn of it. What is tested is that it does no harm.
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def started(buses, number):
    """So many nodes that are connected, and what each of them heard."""
    nodes = [(buses.open(), Heard()) for _ in range(number)]
    for bus, heard in nodes:
        bus.start(heard)
    for bus, heard in nodes:
        assert heard.has_gaps(1)
        assert eventually(lambda bus=bus: bus.connected)
    return nodes


def settle(nodes, generation):
    """Have every node hear from every other, so that nothing is under way any more."""
    for number, (bus, _) in enumerate(nodes):
        bus.publish(generation + number)
        for other, heard in nodes:
            assert other is bus or heard.reaches(generation + number)


def test_a_node_is_told_once_to_look_when_it_begins_to_listen(buses):
    """Whatever changed before it could hear is found by looking."""
    nodes = started(buses, 2)
    settle(nodes, 1)
    assert [heard.gaps for _, heard in nodes] == [1, 1]
    assert all(heard.told[0][0] is None for _, heard in nodes)


def test_what_one_tells_all_others_hear(buses):
    """Each generation reaches every other node; nobody hears itself."""
    nodes = started(buses, 3)
    for generation, (bus, own) in enumerate(nodes, start=1):
        own_before = list(own.generations)
        bus.publish(generation)
        for other, heard in nodes:
            assert other is bus or heard.reaches(generation)
        assert own.generations == own_before


def test_generations_of_any_size_are_heard(buses):
    """From nothing to the highest that a database holds."""
    (first, _), (_, heard) = started(buses, 2)
    for generation in (0, 1, 2**53 + 1, 2**63 - 1):
        first.publish(generation)
        assert heard.until(lambda generation=generation: generation in heard.generations)


def test_a_generation_that_is_lower_than_before_is_heard(buses):
    """A bus remembers no number: a forged high one does not hide what comes after it."""
    (first, _), (_, heard) = started(buses, 2)
    for generation in (2**63 - 1, 3):
        first.publish(generation)
        assert heard.until(lambda generation=generation: generation in heard.generations)


def test_channels_do_not_hear_each_other(buses):
    """A bus of another channel hears nothing."""
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
    """A node that is busy while many events come in hears the highest of them, once."""
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
    assert eventually(lambda: second._ear.inbox._highest == 201)
    go_on.set()
    assert heard.reaches(201)
    assert heard.generations == [1, 201]


def test_telling_waits_for_nobody(buses):
    """Telling is over while another node is still busy with what it heard first."""
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
    """The failure is logged, and the next event is told."""
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
    """Before its start and after its stop, telling does nothing, and raises nothing."""
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
    """Once stop has returned, the node is not called any more."""
    (first, first_heard), (second, heard), (third, _) = started(buses, 3)
    second.stop()
    before = list(heard.told)
    third.publish(1)
    assert first_heard.reaches(1)
    assert heard.told == before


def test_a_bus_is_started_once(buses):
    """Neither twice nor after its stop."""
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
    """And is not started afterwards."""
    bus = buses.open()
    bus.stop()
    refused_again(bus)


def test_a_node_may_stop_its_bus_from_what_it_is_told(buses):
    """Stopping inside the call does not wait for that call."""
    stopped = threading.Event()
    bus = buses.open()

    def stop(_):
        bus.stop()
        stopped.set()

    bus.start(stop)
    assert stopped.wait(PATIENCE)
    assert not bus.connected


def test_stopping_is_quick(buses):
    """Also while a bus waits for events."""
    nodes = started(buses, 3)
    settle(nodes, 1)
    with Paced() as stopping:
        for bus, _ in nodes:
            bus.stop()
    assert stopping.seconds < 3


def test_what_is_told_right_before_the_stop_is_not_lost(buses):
    """The others hear it, or are told that they may have missed something."""
    for generation in range(1, 4):
        (_, heard), (last, _) = started(buses, 2)
        gaps = heard.gaps
        last.publish(generation)
        last.stop()
        assert heard.learns(generation, gaps=gaps)


def test_what_is_told_right_after_the_start_is_not_lost(buses):
    """It is sent once there is a connection."""
    (_, heard), _ = started(buses, 2)
    bus = buses.open()
    bus.start(lambda _: None)
    bus.publish(7)
    assert heard.reaches(7)


def test_node_names_are_unique(buses):
    """Also where everything but chance is the same."""
    assert len({buses.open().node for _ in range(50)}) == 50


@forks
def test_a_forked_child_has_no_bus(buses):
    """There telling and stopping do nothing, and the parent's bus goes on."""
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
    """Whatever another thread of the parent was in the middle of when it was made."""
    bus = buses.open()
    bus.start(lambda _: None)
    assert eventually(lambda: bus.connected)
    lock = memory._lock if buses.kind == "memory" else bus._mouth._changed
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
    """Events from four nodes at some hundred a second: the time until each other node knows, at p95."""
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
            # A higher one counts too: a burst may be told as its highest.
            assert heard.reaches(generation)
            took.append(min(when for told, when in heard.told if told is not None and told >= generation) - at)
    took.sort()
    p50, p95 = took[len(took) // 2], took[len(took) * 95 // 100]
    record_property("milliseconds", {"p50": p50 * 1000, "p95": p95 * 1000, "max": took[-1] * 1000})
    print(f"{buses.kind}: p50 {p50 * 1000:.2f} ms, p95 {p95 * 1000:.2f} ms, max {took[-1] * 1000:.2f} ms")
    assert p95 < max(busy, slowness())
