"""DNS rebinding: a name with another address the next time, with every client."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.once  # does not depend on the interpreter

CLIENT_FILE = __file__.replace("test_rebinding.py", "clients.py")
ZONE = {"rebind.example.com": {"A": [["203.0.113.5"], ["127.0.0.1"]]}}


def fetch_twice(world):
    """Fetch a name twice over new connections with each client; return the results and arrivals."""
    client, rules = world.args
    told = {}
    for form, recipe in world.load(CLIENT_FILE)["CLIENTS"][client].items():
        fetch = recipe(world.places["ca"])
        url = f"http://{form.replace(' ', '-')}.rebind.example.com/allowed"
        result = world.under(
            [rule(*one) for one in rules], {n: lambda: status(fetch, url) for n in ("first", "second")}
        )
        at = [entry["address"] for entry in result["arrived"] if entry["event"] == "request"]
        told[form] = {**result["seen"], "at": at, "connections": count(result["arrived"], "connect")}
    return told


def status(fetch, url):
    """Return the status, or the denial behind the client's error."""
    try:
        answer = fetch("GET", url)
        return (run_async(answer) if hasattr(answer, "__await__") else answer)[0]
    except Exception as error:
        return tell(denial_behind(error))


def count(entries, event):
    return len([entry for entry in entries if entry["event"] == event])


def rebinding(world):
    """Connect in every plain way to a name that resolves to the outside first and to the inside then."""
    import socket

    def dial():
        with socket.create_connection(("rebind.example.com", 80), timeout=5) as made:
            return made.getpeername()[0]

    def to(address):
        with socket.create_connection((address, 80), timeout=5) as made:
            return made.getpeername()[0]

    steps = {
        "first": dial,
        "second": dial,
        "third": dial,
        "kept": lambda: to("203.0.113.5"),
        "inside": lambda: to("127.0.0.1"),
    }
    return world.under([rule("rebind.example.com", "connect")], steps)


class TestRebinding:
    def test_a_later_answer_is_checked_again(self, town):
        """The first answer stays usable; the second is forbidden and always refused."""
        told = town.run(rebinding, zone=ZONE)
        assert told["seen"]["first"] == told["seen"]["kept"] == "203.0.113.5"
        assert told["seen"]["second"].startswith("denied connect 127.0.0.1")
        assert told["seen"]["third"] == told["seen"]["second"]
        assert told["seen"]["inside"] == "denied connect 127.0.0.1:80"
        assert len([entry for entry in told["arrived"] if entry["event"] == "connect"]) == 2

    @pytest.mark.parametrize(
        "client", ["urllib.request", "http.client", "requests", "urllib3", "httpx", "httpx2", "aiohttp"]
    )
    def test_no_client_follows_a_name_inside(self, town, client):
        """The first fetch succeeds; the second opens no connection."""
        records = {"A": [["203.0.113.5"], ["127.0.0.1"]]}
        forms = (
            "urlopen",
            "opener",
            "connection",
            "request",
            "session",
            "manager",
            "pool",
            "function",
            "send",
            "stream",
        )
        zone = {f"{form}.rebind.example.com": records for form in forms}
        zone |= {f"async-{form}.rebind.example.com": records for form in ("request", "send", "stream")}
        rules = [["http://" + name, "receive"] for name in zone]
        for form, told in town.run(fetch_twice, client, rules, zone=zone, loaded=True).items():
            assert told["first"] == 200, form
            assert told["second"].startswith("denied connect 127.0.0.1"), form
            assert told["at"] == ["203.0.113.5"], form
            assert told["connections"] == 1, form

    @pytest.mark.parametrize("client", ["requests", "httpx2", "aiohttp"])
    def test_a_name_that_moves_outside_is_followed(self, town, client):
        """Another public address is allowed."""
        records = {"A": [["203.0.113.5"], ["203.0.113.6"]]}
        forms = ("request", "session", "function", "send", "stream", "async-request", "async-send", "async-stream")
        zone = {f"{form}.rebind.example.com": records for form in forms}
        rules = [["http://" + name, "receive"] for name in zone]
        for form, told in town.run(fetch_twice, client, rules, zone=zone, loaded=True).items():
            assert (told["first"], told["second"]) == (200, 200), form
            assert told["at"] == ["203.0.113.5", "203.0.113.6"], form
