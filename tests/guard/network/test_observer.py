"""Observer: called unguarded before each allowed connection, once per endpoint and minute."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.once  # does not depend on the interpreter


def fetch(url):
    import urllib.request

    with urllib.request.urlopen(url, timeout=5) as response:
        return response.status


def dial(address):
    import socket

    socket.create_connection(address, timeout=5).close()


def install(act=lambda endpoint: None):
    """Configure an observer that records its calls."""
    from democrai_sandbox import configure_guard, current_guard

    told = []

    class Observer:
        def observe(self, endpoint):
            told.append(
                {
                    "subject": endpoint.subject,
                    "kind": str(endpoint.subject_kind),
                    "host": endpoint.host,
                    "addresses": sorted(endpoint.addresses),
                    "port": endpoint.port,
                    "guarded": current_guard() is not None,
                }
            )
            return act(endpoint)

    configure_guard(observer=Observer())
    return told


def endpoints(world):
    """Return the observer's calls for requests and sockets, allowed and denied."""
    told = install()
    allowed = [rule(world.url("http", "/allowed"), "receive"), rule(world.at("tcp"), "connect")]
    counts = {}

    def note(name, *actions):
        before = len(told)
        seen = [outcome(action) for action in actions]
        counts[name] = [told[before:], seen]

    def subject():
        note("denied", lambda: fetch(world.url("http", "/other")), lambda: dial(world.address("sink")))
        note("request", lambda: fetch(world.url("http", "/allowed")))
        note("again", lambda: fetch(world.url("http", "/allowed/x")), lambda: fetch(world.url("http", "/allowed")))
        note("socket", lambda: dial(world.address("tcp")))
        note("socket again", lambda: dial(world.address("tcp")))

    world.guard(*allowed, subject_kind="engine").run(subject)
    world.guard(*allowed).run(note, "new activation", lambda: fetch(world.url("http", "/allowed")))
    before = len(told)
    fetch(world.url("http", "/allowed"))
    return {**counts, "host": told[before:]}


def names(world):
    """Use a name with several addresses."""
    told = install()
    rules = [rule("http://two.example.com/allowed", "receive"), rule("dual.example.com:7", "connect")]

    def subject():
        return [outcome(fetch, "http://two.example.com/allowed"), outcome(dial, ("dual.example.com", 7))]

    return world.guard(*rules).run(subject), told


def order(world):
    """Return whether anything was sent before the observer was called."""
    arrived = []
    install(lambda endpoint: arrived.extend(world.journal()))
    seen = world.guard(rule(world.url("http", "/allowed"), "receive")).run(
        outcome, fetch, world.url("http", "/allowed")
    )
    return seen, arrived, len(world.journal())


def later(world):
    """Use the same endpoint repeatedly while time passes."""
    import os

    told = install()
    url = world.url("http", "/allowed")

    def subject():
        counts = []
        for seconds in (0, 30, 90, 100, 200):
            os.environ["LATER"] = str(seconds)
            assert fetch(url) == 200
            counts.append(len(told))
        return counts

    return world.guard(rule(url, "receive")).run(subject)


def failing(world):
    """Use an observer that raises."""
    box = [RuntimeError("no kernel here")]

    def act(endpoint):
        if box[0] is not None:
            raise box[0]

    install(act)
    url = world.url("http", "/allowed")

    def subject():
        told = [facts(caught(fetch, url)), facts(caught(dial, world.address("tcp")))]
        box[0] = PermissionError(13, "not for you")
        told.append(facts(caught(fetch, url)))
        return told

    rules = [rule(url, "receive"), rule(world.at("tcp"), "connect")]
    told = world.guard(*rules).run(subject)
    arrived = world.journal()
    box[0] = None
    return told, arrived, world.guard(*rules).run(outcome, fetch, url)


def not_an_observer(world):
    from democrai_sandbox import configure_guard

    return [world.verdict(lambda value=value: configure_guard(observer=value)) for value in (1, "x", object(), print)]


class TestEndpoints:
    def test_it_is_told_of_what_is_permitted(self, net):
        """Subject, host, addresses and port of a request and of a raw socket; nothing that is denied."""
        seen = net.run(endpoints)
        assert seen["denied"][0] == []
        common = {
            "subject": "demo",
            "kind": "engine",
            "host": "127.0.0.1",
            "addresses": ["127.0.0.1"],
            "guarded": False,
        }
        assert seen["request"] == [[{**common, "port": net.places["http"][1]}], [200]]
        assert seen["socket"][0] == [{**common, "port": net.places["tcp"][1]}]

    def test_it_is_told_once(self, net):
        """Once per endpoint and activation for a while; another activation reports it again, the host never."""
        seen = net.run(endpoints)
        assert seen["again"] == [[], [200, 200]]
        assert seen["socket again"] == [[], ["ok"]]
        assert len(seen["new activation"][0]) == 1
        assert seen["host"] == []

    def test_it_is_told_again_after_a_minute(self, net, clock):
        """A long-running subject keeps its endpoints current."""
        assert net.run(later, **clock) == [1, 1, 2, 2, 3]

    def test_a_name_comes_with_all_its_addresses(self, town):
        """Only the addresses that it may connect to."""
        zone = {
            "two.example.com": {"A": ["203.0.113.5", "203.0.113.6", "127.0.0.1"]},
            "dual.example.com": {"A": ["203.0.113.5"], "AAAA": ["2001:db8::5"]},
        }
        seen, told = town.run(names, zone=zone)
        assert seen == [200, "ok"]
        assert [(one["host"], one["addresses"], one["port"]) for one in told] == [
            ("two.example.com", ["203.0.113.5", "203.0.113.6"], 80),
            ("dual.example.com", ["2001:db8::5", "203.0.113.5"], 7),
        ]

    def test_it_is_told_before_the_connection_is_made(self, net):
        """The kernel's allowlist can then be ready."""
        assert net.run(order) == [200, [], 2]


class TestFailures:
    def test_what_it_raises_stops_the_connection(self, net):
        """It is a failed check, not a denial; nothing is sent, and a working observer is called again."""
        told, arrived, recovered = net.run(failing)
        assert [one["type"] for one in told] == ["ExternalAccessCheckFailed"] * 3
        assert all("OSError" not in one["bases"] for one in told)
        assert arrived == []
        assert recovered == 200

    def test_it_must_be_one(self, net):
        """Other objects are rejected in the configuration."""
        assert set(net.run(not_an_observer)) == {"InvalidInputError"}
