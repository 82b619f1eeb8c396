"""Every client and entry point against every way to exceed a rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.guard.network.clients import CLIENTS
from tests.guard.network.harness import PLACES

CLIENT_FILE = str(Path(__file__).with_name("clients.py"))
CASES = ("allowed", "other path", "other port", "other scheme", "other method", "redirect out", "raw socket")


def table(world):
    """Run all cells of one client, each in a separate guard, and return the arrivals."""
    client, place, file = world.args
    other = {"http": "https", "https": "http"}[place]
    home = world.url(place)
    allowed = rule(f"{home}/allowed", "receive")
    cells = {
        "allowed": ("GET", f"{home}/allowed/page"),
        "other path": ("GET", f"{home}/allowedx"),
        "other port": ("GET", home.replace(str(world.port(place)), str(world.port("other"))) + "/allowed"),
        "other scheme": ("GET", home.replace(place, other, 1) + "/allowed"),
        "other method": ("POST", f"{home}/allowed"),
        "redirect out": ("GET", f"{home}/allowed/redirect?to={home}/secret"),
    }

    def one(fetch, cell):
        if cell == "raw socket":
            return world.guard(allowed).run(lambda: [brief(told(fetch, *cells["allowed"])), raw(world, place)])
        return brief(world.guard(allowed).run(told, fetch, *cells[cell]))

    seen = {}
    for form, recipe in world.load(file)["CLIENTS"][client].items():
        fetch = recipe(world.places["ca"])
        for cell in (*cells, "raw socket"):
            seen[f"{form}: {cell}"] = {"told": one(fetch, cell), "arrived": arrivals(world)}
    return seen


def by_name(world):
    """Run the main cells by host name, with a name server that records questions."""
    client, file = world.args
    allowed = rule("https://api.example.com/allowed", "receive")
    cells = {
        "allowed": "https://api.example.com/allowed/page",
        "other path": "https://api.example.com/other",
        "other name": "https://evil.example.com/allowed",
        "other port": "https://api.example.com:8080/allowed",
        "other scheme": "http://api.example.com/allowed",
        "by address": "https://203.0.113.5/allowed",
        "redirect out": "https://api.example.com/allowed/redirect?to=https://evil.example.com/allowed",
    }
    seen = {}
    for form, recipe in world.load(file)["CLIENTS"][client].items():
        fetch = recipe(world.places["ca"])
        for cell, url in cells.items():
            seen[f"{form}: {cell}"] = {
                "told": brief(world.guard(allowed).run(told, fetch, "GET", url)),
                "arrived": arrivals(world),
            }
    return seen


def http2_cells(world):
    """Run a client that keeps one HTTP/2 connection for all its requests."""
    import asyncio

    module = __import__(world.args[0])
    context = world.tls()
    home = world.url("http2")
    cells = {
        "allowed": ("GET", f"{home}/allowed"),
        "other path": ("GET", f"{home}/secret"),
        "other method": ("POST", f"{home}/allowed"),
        "redirect out": ("GET", f"{home}/allowed/redirect?to={home}/secret"),
        "again": ("GET", f"{home}/allowed/again"),
    }
    options = {"http2": True, "verify": context, "follow_redirects": True, "timeout": 5}

    def blocking():
        with module.Client(**options) as client:
            return {name: outcome(lambda: version(client.request(*cell))) for name, cell in cells.items()}

    async def on_loop():
        seen = {}
        async with module.AsyncClient(**options) as client:
            for name, cell in cells.items():
                try:
                    seen[name] = version(await client.request(*cell))
                except Exception as error:
                    seen[name] = tell(error)
        return seen

    forms = {"client": blocking, "async client": lambda: asyncio.run(on_loop())}
    told = {}
    for name, form in forms.items():
        result = world.under([rule(f"{home}/allowed", "receive")], {"it": form})
        told[name] = {"seen": result["seen"]["it"], "arrived": result["arrived"]}
    return told


def version(response):
    return [response.status_code, response.http_version]


def told(fetch, method, url):
    """Fetch, and return either the response or all attributes of the error."""
    try:
        answer = fetch(method, url, b"" if method == "POST" else None)
        return run_async(answer) if hasattr(answer, "__await__") else answer
    except Exception as error:
        return facts(error)


def brief(answer):
    """Return the status of a response."""
    return answer[0] if isinstance(answer, list) else answer


def raw(world, place):
    import socket

    try:
        socket.create_connection(world.address(place), timeout=5).close()
    except Exception as error:
        return facts(error)
    return "connected"


def arrivals(world):
    """Describe the arrivals; a connection counts even without data."""
    words = {
        "connect": lambda entry: f"connection at {entry['at']}",
        "request": lambda entry: f"{entry['method']} {entry['path']}",
        "query": lambda entry: f"query {entry['name']}",
    }
    return [words[entry["event"]](entry) for entry in world.journal()]


def wrong_denial(facts, operation, target):
    """Return what is wrong with a denial."""
    if not isinstance(facts, dict):
        return [f"no denial: {facts!r}"]
    entry = json.dumps({"resource_type": "network", "operation": operation, "target": target})
    text = f"External URL is locked. (sandbox_network_denied:demo:{target})"
    expected = {"type": "NetworkDenied", "errno": 13, "operation": operation, "target": target, "str": text}
    wrong = [f"{key}: {facts[key]!r}" for key, value in expected.items() if facts[key] != value]
    if entry not in (facts["hint"] or ""):
        wrong.append(f"hint: {facts['hint']!r}")
    return wrong + ([] if "PermissionError" in facts["bases"] else [f"bases: {facts['bases']}"])


class TestTable:
    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize("client", CLIENTS)
    def test_each_case(self, net, client, place):
        """The allowed request succeeds; every other one is denied with all attributes, and nothing of it arrives."""
        home = f"{place}://127.0.0.1:{net.places[place][1]}"
        other = {"http": "https", "https": "http"}[place]
        here, ways = (
            f"connection at {place}",
            {
                "other path": ("receive", f"{home}/allowedx"),
                "other port": ("receive", f"{place}://127.0.0.1:{net.places['other'][1]}/allowed"),
                "other scheme": ("receive", f"{other}://127.0.0.1:{net.places[place][1]}/allowed"),
                "other method": ("send", f"{home}/allowed"),
                "redirect out": ("receive", f"{home}/secret"),
                "raw socket": ("connect", f"127.0.0.1:{net.places[place][1]}"),
            },
        )
        arrives = {
            "allowed": [here, "GET /allowed/page"],
            "redirect out": [here, "GET /allowed/redirect"],
            "raw socket": [here, "GET /allowed/page"],
        }
        seen = net.run(table, client, place, CLIENT_FILE, loaded=True)
        assert {name.partition(": ")[2] for name in seen} == set(CASES)
        wrong = {}
        for name, cell in seen.items():
            case = name.partition(": ")[2]
            answer = cell["told"]
            if case == "raw socket":
                first, answer = answer
                assert first == 200, name
            faults = wrong_denial(answer, *ways[case]) if case in ways else [answer][answer == 200 :]
            if cell["arrived"] != arrives.get(case, []):
                faults.append(f"arrived: {cell['arrived']}")
            if faults:
                wrong[name] = faults
        assert wrong == {}

    @pytest.mark.once  # the core looks up and checks names
    @pytest.mark.parametrize("client", CLIENTS)
    def test_by_host_name(self, town, client):
        """Another name is not looked up, and the address is not another spelling of the host."""
        ways = {
            "other path": "https://api.example.com/other",
            "other name": "https://evil.example.com/allowed",
            "other port": "https://api.example.com:8080/allowed",
            "other scheme": "http://api.example.com/allowed",
            "by address": "https://203.0.113.5/allowed",
            "redirect out": "https://evil.example.com/allowed",
        }
        zone = {"api.example.com": {"A": ["203.0.113.5"]}, "evil.example.com": {"A": ["203.0.113.6"]}}
        wrong = {}
        for name, cell in town.run(by_name, client, CLIENT_FILE, zone=zone, loaded=True).items():
            case = name.partition(": ")[2]
            answer = cell["told"]
            faults = wrong_denial(answer, "receive", ways[case]) if case in ways else [answer][answer == 200 :]
            sent = [entry for entry in cell["arrived"] if entry != "query api.example.com"]
            through = {"allowed": ["GET /allowed/page"], "redirect out": ["GET /allowed/redirect"]}.get(case)
            if sent != (["connection at https", *through] if through else []):
                faults.append(f"arrived: {cell['arrived']}")
            if faults:
                wrong[name] = faults
        assert wrong == {}


class TestHttp2:
    @pytest.mark.parametrize("client", ["httpx", "httpx2"])
    def test_each_case(self, net, client):
        """Over HTTP/2, each of many requests on one connection is checked, and a denied one sends no frame."""
        home = f"https://127.0.0.1:{net.places['http2'][1]}"
        for form, told in net.run(http2_cells, client, loaded=True).items():
            assert told["seen"] == {
                "allowed": [200, "HTTP/2"],
                "other path": f"denied receive {home}/secret",
                "other method": f"denied send {home}/allowed",
                "redirect out": f"denied receive {home}/secret",
                "again": [200, "HTTP/2"],
            }, form
            requests = [
                f"{entry['method']} {entry['path']}" for entry in told["arrived"] if entry["event"] == "request"
            ]
            assert requests == ["GET /allowed", f"GET /allowed/redirect?to={home}/secret", "GET /allowed/again"], form


@pytest.mark.once  # concerns the clients alone
class TestTheCellsThemselves:
    @pytest.mark.parametrize("client", CLIENTS)
    def test_without_a_guard(self, net, client):
        """Without a guard every cell arrives, except over the wrong protocol."""
        for name, cell in net.run(table, client, "http", CLIENT_FILE, guarded=False, loaded=True).items():
            case = name.partition(": ")[2]
            if case != "other scheme":
                assert cell["told"] in (200, [200, "connected"]), (name, cell)
            assert cell["arrived"], name

    def test_without_a_guard_by_host_name(self, town):
        """The other name is looked up and reached."""
        zone = {"api.example.com": {"A": ["203.0.113.5"]}, "evil.example.com": {"A": ["203.0.113.6"]}}
        seen = town.run(by_name, "requests", CLIENT_FILE, zone=zone, guarded=False, loaded=True)
        assert seen["request: other name"]["told"] == seen["request: redirect out"]["told"] == 200
        assert "query evil.example.com" in seen["request: other name"]["arrived"]
