"""Proxies: they need a rule of their own, and do not hide what is asked for."""

from __future__ import annotations

import pytest

from tests.guard.network.proxied import PROXIED

FILE = __file__.replace("test_proxies.py", "proxied.py")


def cells(world):
    """Every case of one client, in guards with and without a rule for the proxy."""
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


@pytest.mark.parametrize("client", PROXIED)
class TestProxies:
    def test_a_declared_proxy_serves_what_is_declared(self, net, client):
        """Plain and through a tunnel, with a rule for the proxy in host form or as a URL."""
        told = net.run(cells, client)
        for form in ("host rule", "url rule"):
            for case in ("http", "https"):
                verdict, arrived = told[f"{form}: {case}"]
                assert verdict == 200, (form, case)
                assert [entry["at"] for entry in arrived][0] == "proxy", (form, case)
                assert "/allowed/x" in {entry.get("path") for entry in arrived}, (form, case)

    def test_what_is_asked_for_is_checked_behind_it_too(self, net, client):
        """Another path or port is denied for what it is, and the proxy never hears of it."""
        told = net.run(cells, client)
        ports = {place: net.places[place][1] for place in ("http", "https", "other", "tls")}
        expected = {
            "http, other path": f"denied receive http://127.0.0.1:{ports['http']}/secret",
            "https, other path": f"denied receive https://127.0.0.1:{ports['https']}/secret",
            "http, other port": f"denied receive http://127.0.0.1:{ports['other']}/allowed",
            "https, other port": f"denied receive https://127.0.0.1:{ports['tls']}/allowed",
        }
        for form in ("host rule", "url rule", "proxy only"):
            for case, verdict in expected.items():
                seen, arrived = told[f"{form}: {case}"]
                assert seen == verdict, (form, case)
                assert arrived == [], (form, case)

    def test_an_undeclared_proxy_is_denied(self, net, client):
        """It is a connection like any other."""
        told = net.run(cells, client)
        for case in ("http", "https"):
            verdict, arrived = told[f"no rule: {case}"]
            assert verdict == f"denied connect 127.0.0.1:{net.places['proxy'][1]}", case
            assert arrived == [], case

    def test_without_a_guard_everything_passes_through_it(self, net, client):
        """The client does use the proxy."""
        told = net.run(cells, client, guarded=False)
        for case in ("http", "https", "http, other path", "https, other path", "http, other port"):
            assert told[f"no rule: {case}"][0] == 200, case
            assert "proxy" in {entry["at"] for entry in told[f"no rule: {case}"][1]}, case
