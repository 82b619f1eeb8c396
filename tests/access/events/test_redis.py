"""Redis bus: a server that dies, hangs or loses data, and other writers to the stream."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time

import pytest

from democrai_sandbox.access.events import bus as bus_module
from democrai_sandbox.access.events import open_bus, redis_stream
from democrai_sandbox.access.events.bus import ConnectedBus, Event
from democrai_sandbox.errors import InvalidInputError
from tests.access.events.forged import forged_events
from tests.access.events.nodes import PATIENCE, Heard, eventually
from tests.services.machine_load import Paced
from tests.services.ports import port
from tests.services.redis import RedisServer
from tests.services.rows import rows

pytestmark = pytest.mark.once


@pytest.fixture
def server(redis_server):
    """Server of all tests: a test may change its own stream and connections."""
    return redis_server


@pytest.fixture
def redis(opened, server):
    """Buses with a separate stream."""
    return opened("redis", url=server.url)


@pytest.fixture
def mortal(opened, own_redis):
    """Buses on a server that the test may stop."""
    return opened("redis", url=own_redis.url)


@pytest.fixture(autouse=True)
def told_soon(monkeypatch):
    """Shorten the time after which an outage is reported."""
    monkeypatch.setattr(bus_module, "_BRIEF", 0.1)


def outages(caplog):
    """Return the log messages about outages."""
    return [record for record in caplog.records if record.name == "democrai_sandbox.access.events.bus"]


def key_of(redis):
    return f"democrai:events:{redis.settings['channel']}"


def node_in_here(redis):
    bus, heard = redis.open(), Heard()
    bus.start(heard)
    assert heard.has_gaps(1)
    assert eventually(lambda: bus.connected)
    return bus, heard


def event(redis, generation, node="somebody"):
    return Event(node, generation, redis.settings["channel"]).encoded()


def test_a_server_that_is_killed_and_comes_back_is_joined_again(mortal, own_redis, caplog, monkeypatch):
    """The server returns on the same port without data: every node reconnects, and the outage is reported once."""
    failures, failed = [], ConnectedBus._failed
    monkeypatch.setattr(ConnectedBus, "_failed", lambda self, *args: (failures.append(self), failed(self, *args)))
    nodes = [node_in_here(mortal) for _ in range(3)]
    (first, _), (_, heard), _ = nodes
    first.publish(1)
    assert heard.reaches(1)
    own_redis.kill()
    assert eventually(lambda: not any(bus.connected for bus, _ in nodes))
    first.publish(2)
    assert eventually(lambda: len(outages(caplog)) == len(nodes))
    told = len(failures)
    assert eventually(lambda: len(failures) >= told + 2 * len(nodes))
    assert len(outages(caplog)) == len(nodes)
    assert [heard.gaps for _, heard in nodes] == [1, 1, 1]
    own_redis.start()
    assert all(heard.has_gaps(2) for _, heard in nodes)
    assert eventually(lambda: all(bus.connected for bus, _ in nodes))
    # Events from the outage are sent after the reconnection.
    assert eventually(lambda: own_redis.command("XLEN", key_of(mortal)) == b":1\r\n")
    first.publish(3)
    assert heard.reaches(3)
    assert eventually(lambda: len(outages(caplog)) == 2 * len(nodes)), "once when it began, once when it was over"


def test_a_server_that_is_killed_again_and_again(mortal, own_redis):
    """The node is notified of a gap each time."""
    (bus, _), (_, heard) = node_in_here(mortal), node_in_here(mortal)
    for generation in range(1, 4):
        gaps = heard.gaps
        own_redis.kill()
        own_redis.start()
        assert heard.has_gaps(gaps + 1)
        bus.publish(generation)
        assert heard.reaches(generation)


def test_a_server_that_keeps_its_stream_is_joined_again_too(opened, tmp_path):
    """No event is repeated, and a gap is reported, because events between two connections are unknown."""
    server = RedisServer(tmp_path, keeps=True).start()
    try:
        redis = opened("redis", url=server.url)
        (bus, _), (_, heard) = node_in_here(redis), node_in_here(redis)
        bus._send(event(redis, 1, node=bus.node))  # returns after the server has confirmed it
        assert heard.reaches(1)
        server.kill()
        server.start()
        assert heard.has_gaps(2)
        bus.publish(2)
        assert heard.reaches(2)
        assert heard.generations == [1, 2]
        redis.close()
    finally:
        server.stop()


def test_a_bus_starts_without_a_server(opened, tmp_path):
    """Starting and publishing do not block; once the server is up, the node is notified of a gap."""
    server = RedisServer(tmp_path)
    try:
        redis = opened("redis", url=server.url)
        (bus, heard), (other, other_heard) = [(redis.open(), Heard()) for _ in range(2)]
        before = time.monotonic()
        bus.start(heard)
        other.start(other_heard)
        bus.publish(1)
        assert time.monotonic() - before < PATIENCE
        time.sleep(0.3)
        assert heard.told == other_heard.told == []
        assert not bus.connected
        server.start()
        assert heard.has_gaps(1)
        assert other_heard.has_gaps(1)
        bus.publish(2)
        assert other_heard.reaches(2)
        redis.close()
    finally:
        server.stop()


def test_a_bus_without_a_server_stops_at_once(opened):
    """A bus with an unsent event stops immediately too."""
    with port() as nobodys:
        bus = opened("redis", url=f"redis://127.0.0.1:{nobodys}/0").open()
        bus.start(lambda _: None)
        bus.publish(1)
        time.sleep(0.2)
        before = time.monotonic()
        bus.stop()
        assert time.monotonic() - before < PATIENCE


def test_a_server_that_hangs_is_noticed(mortal, own_redis):
    """Publishing does not block; the bus is disconnected until the server continues."""
    (bus, _), (_, heard) = node_in_here(mortal), node_in_here(mortal)
    own_redis.signal(signal.SIGSTOP)
    try:
        with Paced() as telling:
            for generation in range(1, 1000):
                bus.publish(generation)
        assert telling.seconds < 1  # waiting for one reply alone would take two
        assert eventually(lambda: not bus.connected)
    finally:
        own_redis.signal(signal.SIGCONT)
    assert heard.learns(999, gaps=1)
    assert eventually(lambda: bus.connected)


def test_a_stream_that_is_deleted_is_a_gap(redis, server, monkeypatch):
    """The gap is detected even if nothing is written to the stream; later events are received."""
    monkeypatch.setattr(redis_stream, "_BLOCK", 0.1)
    (bus, _), (_, heard) = node_in_here(redis), node_in_here(redis)
    bus.publish(1)
    assert heard.reaches(1)
    server.command("DEL", key_of(redis))
    assert heard.has_gaps(2)
    bus.publish(2)
    assert heard.reaches(2)
    time.sleep(0.3)
    assert heard.gaps == 2, "told once"


def test_a_stream_whose_entries_are_older_than_what_was_read_is_a_gap(redis, server):
    """A restored server or a clock that was set back: the stream is read from its current end."""
    _, heard = node_in_here(redis)
    server.command("XADD", key_of(redis), "*", "event", event(redis, 1))
    assert heard.reaches(1)
    server.command("EVAL", REPLACE, 1, key_of(redis), event(redis, 2))
    assert heard.has_gaps(2)
    server.command("XADD", key_of(redis), "6-0", "event", event(redis, 3))
    assert heard.reaches(3)
    assert heard.generations == [1, 3]


REPLACE = "redis.call('DEL', KEYS[1]); return redis.call('XADD', KEYS[1], '5-0', 'event', ARGV[1])"
CUT = """
for number = 1, 3 do redis.call('XADD', KEYS[1], '*', 'event', ARGV[1]) end
return redis.call('XTRIM', KEYS[1], 'MAXLEN', 1)
"""


def test_a_stream_that_is_cut_beyond_what_was_read_is_a_gap(redis, server):
    """The trimmed entries may have come from others, even if the remaining ones are the node's own."""
    bus, heard = node_in_here(redis)
    server.command("XADD", key_of(redis), "*", "event", event(redis, 1))
    assert heard.reaches(1)
    server.command("EVAL", CUT, 1, key_of(redis), event(redis, 2, node=bus.node))
    assert heard.has_gaps(2)
    assert heard.generations == [1]


def test_the_stream_does_not_grow_without_end(opened, redis_server):
    """The stream keeps about the configured number of entries."""
    redis = opened("redis", url=redis_server.url, longest=500)
    (bus, _), (_, heard) = node_in_here(redis), node_in_here(redis)
    for number in range(1200):
        bus._send(event(redis, number, node=bus.node))
    assert heard.reaches(1199)
    length = int(redis_server.command("XLEN", key_of(redis)).strip(b":\r\n"))
    assert 500 <= length < 1000


def test_forged_entries_are_not_told(redis, server):
    """Nodes ignore other versions, types, channels and fields, and numbers beyond any database."""
    (bus, _), (_, heard) = node_in_here(redis), node_in_here(redis)
    garbage = [b"", b"hello", b"\xff\xfe", b"[1]", b"[" * 5000, b"x" * 1_000_000]
    for forged in garbage + forged_events(redis.settings["channel"]):
        server.command("XADD", key_of(redis), "*", "event", forged)
    server.command("XADD", key_of(redis), "*", "other", event(redis, 900), "a", "b")
    server.command("XADD", key_of(redis), "*", "event", event(redis, 3))
    assert heard.reaches(3)
    assert heard.generations == [3]
    assert heard.gaps == 1
    bus.publish(4)
    assert heard.reaches(4)


def test_a_replayed_event_makes_a_node_look_and_nothing_else(redis, server):
    """A replayed event is only a number that makes a node read the store."""
    _, heard = node_in_here(redis)
    for _ in range(3):
        server.command("XADD", key_of(redis), "*", "event", event(redis, 7))
    assert heard.until(lambda: heard.generations)
    assert set(heard.generations) == {7}


def test_a_key_of_another_type_is_an_outage(redis, server, caplog):
    """The error is neither raised nor ignored: a warning is logged, and it ends when the key is free."""
    (bus, _), (_, heard) = node_in_here(redis), node_in_here(redis)
    server.command("DEL", key_of(redis))
    server.command("SET", key_of(redis), "in the way")
    bus.publish(1)
    assert eventually(lambda: not bus.connected)
    assert eventually(lambda: outages(caplog))
    gaps = heard.gaps
    server.command("DEL", key_of(redis))
    assert heard.learns(1, gaps=gaps)
    assert eventually(lambda: bus.connected)


def test_a_connection_that_the_server_ends_is_a_gap(redis, server):
    """An administrator or a failover can end a connection."""
    (bus, _), (_, heard) = node_in_here(redis), node_in_here(redis)
    bus.publish(1)
    assert heard.reaches(1)
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert heard.has_gaps(2)
    bus.publish(2)
    assert heard.reaches(2)


def test_a_connection_that_ended_unseen_does_not_keep_an_event_waiting(mortal, own_redis):
    """Decisions are rare, so the last connection may be gone. The event is sent on another one."""
    (bus, _), (_, heard) = node_in_here(mortal), node_in_here(mortal)
    bus._send(event(mortal, 1, node=bus.node))  # in this thread, so the reply has been read when this returns
    assert heard.reaches(1)
    clients = own_redis.command("CLIENT", "LIST").decode()
    (sender,) = [line.split()[0].removeprefix("id=") for line in clients.splitlines() if " cmd=xadd " in line]
    own_redis.command("CLIENT", "KILL", "ID", sender)
    bus._send(event(mortal, 2, node=bus.node))
    assert heard.reaches(2)
    assert heard.gaps == 1


def test_passwords_work_and_are_not_shown(opened, tmp_path, caplog):
    """A wrong password is an outage whose warning does not contain it."""
    caplog.set_level(logging.DEBUG)
    server = RedisServer(tmp_path, password="right-secret").start()
    try:
        redis = opened("redis", url=server.url)
        (bus, _), (_, heard) = node_in_here(redis), node_in_here(redis)
        bus.publish(1)
        assert heard.reaches(1)
        wrong = opened("redis", url=server.url.replace("right-secret", "wrong-secret")).open()
        wrong.start(heard)
        assert eventually(lambda: outages(caplog))
        assert not wrong.connected
        assert "secret" not in caplog.text
        redis.close()
        wrong.stop()
    finally:
        server.stop()


def test_a_user_with_few_rights_is_enough(opened, own_redis):
    """The stream commands are enough; stopping only takes a moment longer."""
    rights = ("~democrai:events:*", "+xadd", "+xread", "+xrange", "+xrevrange")
    own_redis.command("ACL", "SETUSER", "node", "on", ">pass", *rights)
    redis = opened("redis", url=own_redis.url.replace("redis://", "redis://node:pass@"))
    (bus, _), (_, heard) = node_in_here(redis), node_in_here(redis)
    bus.publish(1)
    assert heard.reaches(1)
    before = time.monotonic()
    bus.stop()
    assert time.monotonic() - before < PATIENCE


def test_the_query_of_a_url_does_not_change_how_answers_are_read(opened, redis_server):
    """The query cannot request text instead of bytes, for example."""
    redis = opened("redis", url=redis_server.url + "?decode_responses=True&protocol=3&socket_timeout=0.1")
    (bus, _), (_, heard) = node_in_here(redis), node_in_here(redis)
    bus.publish(1)
    assert heard.reaches(1)
    time.sleep(0.3)
    assert bus.connected


def test_processes_hear_each_other_and_one_that_is_killed_harms_nobody(opened, redis_server):
    """Nodes in separate processes, as in production."""
    redis = opened("redis", url=redis_server.url)
    first, second, third = [redis.process() for _ in range(3)]
    for node in (first, second, third):
        assert node.heard.has_gaps(1)
    first.ask("publish", 1)
    assert second.heard.reaches(1)
    assert third.heard.reaches(1)
    second.kill()
    first.ask("publish", 2)
    assert third.heard.reaches(2)
    assert third.heard.gaps == 1
    assert [first.end(), third.end()] == [0, 0]
    assert first.answers == {"threads": 1}


# ---- settings


NO_URLS = ["", "localhost:6379", "http://localhost", "redis://h:port/0", "redis://h/?timeout=x", "redis://h/?what=1", 7]


@rows("url", NO_URLS)
def test_a_url_that_is_none_of_redis_is_refused(url):
    """The URL is rejected immediately, and not repeated in the error, because it may contain a password."""
    with pytest.raises(InvalidInputError) as refused:
        open_bus("redis", url=url)
    assert refused.value.problems[0].pointer == "/url"


@rows("longest", [0, -1, 10, True, "1000", 1e3])
def test_a_stream_that_is_too_short_is_refused(longest):
    """Nodes need time to read the entries."""
    with pytest.raises(InvalidInputError) as refused:
        open_bus("redis", url="redis://localhost", longest=longest)
    assert refused.value.problems[0].pointer == "/longest"


def test_without_its_package_the_error_names_the_extra(monkeypatch):
    """The package is optional."""
    monkeypatch.delitem(sys.modules, "democrai_sandbox.access.events.redis_stream", raising=False)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(InvalidInputError, match=r"democrai-sandbox\[redis\]") as refused:
        open_bus("redis", url="redis://localhost")
    assert refused.value.problems[0].pointer == "/type"
