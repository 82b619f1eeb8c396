"""Proxies: they need a separate rule, and do not hide the requested URL."""

from __future__ import annotations

import pytest

from tests.guard.network.proxy_fetches import PROXIED

pytestmark = pytest.mark.once  # does not depend on the interpreter

FILE = __file__.replace("test_proxies.py", "proxy_fetches.py")


def cells(world):
    """Run every case of one client, in guards with and without a rule for the proxy."""
    client = world.args[0]
    proxy = f"http://{world.at('proxy')}"
    fetch = world.load(FILE)["PROXIED"][client](world.places["ca"], proxy)
    targets = [rule(world.url(place, "/allowed"), "receive") for place in ("http", "https")]
    rules = {
        "host rule": [*targets, rule(world.at("proxy"), "connect")],
        "url rule": [*targets, rule(proxy, "connect")],
        "no rule": targets,
        "proxy only": [rule(world.at("proxy"), "connect")],
    }
    urls = {
        "http": world.url("http", "/allowed/x"),
        "https": world.url("https", "/allowed/x"),
        "http, other path": world.url("http", "/secret"),
        "https, other path": world.url("https", "/secret"),
        "http, other port": world.url("other", "/allowed"),
        "https, other port": world.url("tls", "/allowed").replace("http:", "https:"),
    }

    def one(url):
        try:
            answer = fetch(url)
            return run_async(answer) if hasattr(answer, "__await__") else answer
        except Exception as error:
            return tell(denial_behind(error))

    told = {}
    for name, given in rules.items():
        for case, url in urls.items():
            result = world.under(given, {"it": lambda url=url: one(url)})
            told[f"{name}: {case}"] = [result["seen"]["it"], result["arrived"]]
    return told


def served(told):
    """Return the problems of cells that a declared proxy should serve: plain and through a tunnel."""
    for form in ("host rule", "url rule"):
        for case in ("http", "https"):
            verdict, arrived = told[f"{form}: {case}"]
            paths = {entry.get("path") for entry in arrived}
            if verdict != 200 or arrived[0]["at"] != "proxy" or "/allowed/x" not in paths:
                yield form, case, verdict, arrived


def denied(told, expected, forms):
    """Return the problems of cells that should be denied before the proxy is contacted."""
    for form in forms:
        for case, verdict in expected.items():
            if told[f"{form}: {case}"] != [verdict, []]:
                yield form, case, told[f"{form}: {case}"]


class TestProxies:
    @pytest.mark.parametrize("client", PROXIED)
    def test_each_case(self, net, client):
        """A declared proxy serves declared URLs; the URL is still checked; the proxy needs a rule."""
        told = net.run(cells, client, loaded=True)
        ports = {place: net.places[place][1] for place in ("http", "https", "other", "tls", "proxy")}
        hidden = {
            "http, other path": f"denied receive http://127.0.0.1:{ports['http']}/secret",
            "https, other path": f"denied receive https://127.0.0.1:{ports['https']}/secret",
            "http, other port": f"denied receive http://127.0.0.1:{ports['other']}/allowed",
            "https, other port": f"denied receive https://127.0.0.1:{ports['tls']}/allowed",
        }
        undeclared = dict.fromkeys(("http", "https"), f"denied connect 127.0.0.1:{ports['proxy']}")
        assert list(served(told)) == []
        assert list(denied(told, hidden, ("host rule", "url rule", "proxy only", "no rule"))) == []
        assert list(denied(told, undeclared, ("no rule",))) == []

    @pytest.mark.parametrize("client", ["requests", "httpx2_async", "aiohttp"])
    def test_without_a_guard_everything_passes_through_it(self, net, client):
        """The clients do use the proxy."""
        told = net.run(cells, client, guarded=False, loaded=True)
        for case in ("http", "https", "http, other path", "https, other path", "http, other port"):
            assert told[f"no rule: {case}"][0] == 200, case
            assert "proxy" in {entry["at"] for entry in told[f"no rule: {case}"][1]}, case
