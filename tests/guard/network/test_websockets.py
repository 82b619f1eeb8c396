"""Websockets: the upgrade is a connection, and each direction is a separate operation."""

from __future__ import annotations

import pytest

ALL = ("connect", "receive", "send")


def conversations(world):
    """Receive a greeting and send a message under the given rules, at each address; return the arrivals too."""
    import aiohttp

    place, rules = world.args
    context = world.tls()
    secure = {"ssl": context} if place == "https" else {}
    home = world.url(place)
    web, ws = home, home.replace("http", "ws", 1)

    async def talk(url):
        seen = {}
        async with aiohttp.ClientSession() as session:
            try:
                async with session.ws_connect(url, **secure) as socket:
                    seen["connect"] = "ok"
                    seen["send"] = await step(socket.send_str("secret"))
                    seen["receive"] = await step(socket.receive_str(timeout=5))
            except Exception as error:
                seen["connect"] = tell(error)
        return seen

    async def step(awaitable):
        try:
            answer = await awaitable
        except Exception as error:
            return tell(error)
        return answer or "ok"

    async def get(url):
        async with aiohttp.ClientSession() as session, session.get(url, **secure) as response:
            return response.status

    async def upgrade_by_hand(url):
        headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        async with aiohttp.ClientSession(headers=headers) as session, session.get(url, **secure) as response:
            return response.status

    actions = {
        "ws": lambda: talk(f"{ws}/chat/socket?greet=1"),
        "http": lambda: talk(f"{web}/chat/socket?greet=1"),
        "other path": lambda: talk(f"{ws}/other/socket"),
        "redirected": lambda: talk(f"{ws}/chat/redirect?to={web}/other/socket"),
        "request": lambda: get(f"{web}/chat/page"),
        "by hand": lambda: upgrade_by_hand(f"{web}/chat/page"),
    }
    told = world.under(
        [rule(target.replace("HOME", home.partition("://")[2]), *ops) for target, *ops in rules], actions
    )
    return told["seen"], [entry for entry in told["arrived"] if entry["event"] in {"request", "message"}]


def rebound(world):
    """Open a websocket to a name that resolves to a forbidden address the second time."""
    import aiohttp

    async def talk():
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect("ws://rebind.example.com/socket?greet=1") as ws,
        ):
            return await ws.receive_str(timeout=5)

    def attempt():
        try:
            return run_async(talk())
        except Exception as error:
            return tell(denial_behind(error))

    return world.under([rule("ws://rebind.example.com", *ALL)], {"first": attempt, "second": attempt})


@pytest.mark.parametrize(("place", "scheme"), [("http", "ws"), ("https", "wss")])
class TestDirections:
    def test_with_every_permission_it_is_a_conversation(self, net, place, scheme):
        """Its own scheme and that of HTTP are the same address."""
        seen, arrived = net.run(conversations, place, [[f"{scheme}://HOME/chat", *ALL]], loaded=True)
        assert seen["ws"] == seen["http"] == {"connect": "ok", "send": "ok", "receive": "hello"}
        assert [entry["data"] for entry in arrived if entry["event"] == "message"] == ["secret"] * 2

    def test_connecting_is_not_sending_or_receiving(self, net, place, scheme):
        """Each direction needs its operation in the rule."""
        url = f"{scheme}://127.0.0.1:{net.places[place][1]}/chat/socket"
        seen, arrived = net.run(conversations, place, [[f"{scheme}://HOME/chat", "connect"]], loaded=True)
        assert seen["ws"] == {"connect": "ok", "send": f"denied send {url}", "receive": f"denied receive {url}"}
        assert [entry for entry in arrived if entry["event"] == "message"] == []
        seen, arrived = net.run(conversations, place, [[f"{scheme}://HOME/chat", "connect", "receive"]], loaded=True)
        assert seen["ws"] == {"connect": "ok", "send": f"denied send {url}", "receive": "hello"}
        assert [entry for entry in arrived if entry["event"] == "message"] == []

    def test_without_connect_there_is_no_upgrade(self, net, place, scheme):
        """Neither the directions alone nor rules for HTTP requests at the same address are enough."""
        home = f"{scheme}://127.0.0.1:{net.places[place][1]}"
        rules = [[f"{scheme}://HOME/chat", "receive", "send"], [f"{place}://HOME/chat", *ALL]]
        seen, arrived = net.run(conversations, place, rules, loaded=True)
        assert seen["ws"] == seen["http"] == {"connect": f"denied connect {home}/chat/socket"}
        assert seen["by hand"] == f"denied connect {home}/chat/page"
        assert seen["request"] == 200
        assert {entry["path"] for entry in arrived} <= {"/chat/page"}

    def test_another_path_is_another_address(self, net, place, scheme):
        """This also applies after a redirect; and a rule for websockets does not allow HTTP requests."""
        home = f"127.0.0.1:{net.places[place][1]}"
        seen, arrived = net.run(conversations, place, [[f"{scheme}://HOME/chat", *ALL]], loaded=True)
        assert seen["other path"] == {"connect": f"denied connect {scheme}://{home}/other/socket"}
        assert seen["redirected"] == {"connect": f"denied connect {scheme}://{home}/other/socket"}
        assert seen["request"] == f"denied receive {place}://{home}/chat/page"
        assert not any(entry.get("path", "").startswith("/other") for entry in arrived)


def test_no_name_leads_a_websocket_inside(town):
    """The second answer for the name is refused before a connection is opened."""
    zone = {"rebind.example.com": {"A": [["203.0.113.5"], ["127.0.0.1"]]}}
    told = town.run(rebound, zone=zone, loaded=True)
    assert told["seen"]["first"] == "hello"
    assert told["seen"]["second"].startswith("denied connect 127.0.0.1")
    assert [entry["address"] for entry in told["arrived"] if entry["event"] == "request"] == ["203.0.113.5"]
