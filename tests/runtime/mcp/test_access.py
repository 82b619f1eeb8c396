"""The MCP row of the declaration checklist: the registered endpoint, and the state of its approval."""

from __future__ import annotations

import asyncio
import os

from democrai_sandbox.policy import EXTERNAL_URL_LOCKED
from tests.services.golden import sentence

HOST = os.path.join(os.path.dirname(__file__), "host.py")


def registry_story(world):
    url = world.args[0]
    said = {}
    with world.load(HOST)["Host"](world) as host:

        async def use():
            host.decide("approval", "mcp:search", "send", url)
            host.decide("approval", "mcp:search", "receive", url)
            said["approved only"] = await host.tools("search")
            host.register("search", url, enabled=False)
            said["not enabled"] = await host.tools("search")
            said["not enabled, call"] = await host.call("search")
            host.change("search", enabled=True)
            said["enabled"] = await host.tools("search")
            said["servers"] = [server.name for server in await host.mcp.servers()]
            host.change("search", endpoint_url=url.replace("/mcp", "/mcp/below"))
            said["another path"] = await host.tools("search")
            host.store.remove_mcp_server("search")
            said["removed"] = await host.tools("search")
            said["bad tool"] = (await host.call("search", "a\nb")).split(":")[0]
            said["bad arguments"] = [
                (await host.call("search", "echo", given)).split(":")[0]
                for given in ([], "x", {"a": object()}, {"a": float("nan")}, {1: 2}, {"a": "x" * 2_000_000})
            ]

        asyncio.run(use())
    return said


def test_a_server_works_when_it_is_registered_and_enabled(case, servers):
    """An approval does not replace the registry entry, which names the endpoint, not its host."""
    said = case.run(registry_story, servers["streamable_http"])
    assert said["approved only"].startswith("McpUnknown: mcp_server_unknown:search: ")
    sentence("an unknown server", said["approved only"])
    assert said["not enabled"].startswith("McpDisabled: mcp_server_disabled:search: ")
    assert said["not enabled, call"].startswith("McpDisabled: mcp_server_disabled:search: ")
    assert "echo" in said["enabled"]
    assert said["servers"] == ["search"]
    assert said["another path"].startswith("McpProtocolError: mcp_protocol_error:search: ")
    assert said["removed"].startswith("McpUnknown: ")
    assert said["bad tool"] == "InvalidInputError"
    assert set(said["bad arguments"]) == {"InvalidInputError"}


def denied_story(world):
    from democrai_sandbox.access import Caller
    from democrai_sandbox.errors import NetworkDenied

    url = world.args[0]
    said = {}
    with world.load(HOST)["Host"](world) as host:
        host.register("search", url)
        host.register("twin", url)

        async def use():
            host.decide("denial", "module:demo", "send", url)
            said["denied to a module"] = await host.tools("search", chain=("module:demo",))
            host.decide("denial", "mcp:search", "send", url)
            try:
                await host.mcp.list_tools("search", Caller(user_id="uma"), chain=("module:demo",))
            except NetworkDenied as denial:
                said["denial"] = [denial.decision.code, [str(link) for link in denial.subject_chain]]
                said["text"] = str(denial)
                said["attributes"] = [denial.subject, denial.subject_kind, denial.operation, denial.target]
            said["call"] = await host.call("search")
            said["twin"] = "echo" in await host.tools("twin")
            denial = next(item for item in host.admin("denials").items if str(item.access.subject) == "mcp:search")
            host.admin("revoke", denial.id)
            said["revoked"] = "echo" in await host.tools("search")
            host.decide("denial", "mcp:search", "receive", url.rpartition("/")[0])
            said["the whole host"] = await host.tools("search")
            said["pending"] = host.pending()

        asyncio.run(use())
    return said


def test_a_recorded_denial_wins_over_the_registry(case, servers):
    """It is the later and narrower decision; it applies to this server, not to others or to the caller."""
    url = servers["streamable_http"]
    said = case.run(denied_story, url)
    assert "echo" in said["denied to a module"]
    assert said["denial"] == ["denied", ["module:demo", "mcp:search"]]
    assert said["attributes"] == ["search", "mcp", "send", url]
    assert said["text"].endswith(f" (sandbox_network_denied:search:{url})")
    assert EXTERNAL_URL_LOCKED not in said["text"]
    assert said["call"] == said["the whole host"] == f"NetworkDenied: {said['text']}"
    assert said["twin"] is True
    assert said["revoked"] is True
    assert said["pending"] == []


def required_story(world):
    url = world.args[0]
    said = {}
    with world.load(HOST)["Host"](world, required=True) as host:
        host.register("search", url)

        async def use():
            here = {"chain": ("module:demo",), "user_id": "uma", "session_key": "s1"}
            said["before"] = await host.tools("search", **here)
            said["pending"] = host.pending()
            host.decide("approval", "module:demo", "send", url)
            host.decide("approval", "module:demo", "receive", url)
            said["approved for the module"] = await host.tools("search", **here)
            for request in said["pending"]:
                host.admin("approve_for_session", request["id"])
            said["approved for the session"] = "echo" in await host.tools("search", **here)
            said["another session"] = await host.tools("search", user_id="uma", session_key="s2")
            for request in host.pending():
                host.admin("approve_permanently", request["id"])
            said["approved"] = "echo" in await host.tools("search")

        asyncio.run(use())
    return said


def test_a_host_may_want_endpoints_approved_besides(case, servers):
    """Then nothing is sent before the approval; the requests contain the call chain and the caller."""
    url = servers["streamable_http"]
    said = case.run(required_story, url)
    locked = f"NetworkDenied: {EXTERNAL_URL_LOCKED} (sandbox_network_denied:search:{url})"
    assert said["before"] == locked
    assert sorted(request["operation"] for request in said["pending"]) == ["receive", "send"]
    for request in said["pending"]:
        assert (request["subject"], request["target"]) == ("mcp:search", url)
        assert request["chain"] == ["module:demo", "mcp:search"]
        assert (request["user"], request["session"]) == ("uma", "s1")
    assert said["approved for the module"] == locked
    assert said["approved for the session"] is True
    assert said["another session"] == locked
    assert said["approved"] is True


def messages_story(world):
    url = world.args[0]
    said = {}
    with world.load(HOST)["Host"](world) as host:
        host.register("search", url, "sse")

        async def use():
            one = {"chain": ("module:demo",), "user_id": "uma", "session_key": "s1"}
            two = {"user_id": "udo", "session_key": "s2"}
            said["before"] = await asyncio.gather(host.tools("search", **one), host.tools("search", **two))
            said["pending"] = host.pending()
            mine = next(request for request in said["pending"] if request["user"] == "uma")
            host.admin("approve_for_session", mine["id"])
            after = await asyncio.gather(*(host.call("search", **who) for who in (one, two, one, two)))
            said["after"] = [found if type(found) is str else "works" for found in after]

        asyncio.run(use())
    return said


def test_the_path_for_messages_of_sse_is_approved_as_a_target_of_its_own(case, servers):
    """The server names it, so the registry does not; identities of concurrent calls stay separate."""
    messages = servers["sse"].replace("/sse", "/messages")
    said = case.run(messages_story, servers["sse"])
    assert all(found.startswith(f"NetworkDenied: {EXTERNAL_URL_LOCKED} ") for found in said["before"])
    asked = {(request["user"], request["session"], tuple(request["chain"])) for request in said["pending"]}
    assert asked == {("uma", "s1", ("module:demo", "mcp:search")), ("udo", "s2", ("mcp:search",))}
    assert {(request["operation"], request["target"]) for request in said["pending"]} == {("send", messages)}
    mine, others, *again = said["after"]
    assert mine == again[0] == "works"
    assert others == again[1]
    assert others.startswith(f"NetworkDenied: {EXTERNAL_URL_LOCKED} ")


def failing_story(world):
    url = world.args[0]
    said = {}
    with world.load(HOST)["Host"](world) as host:
        host.register("search", url)

        async def use():
            from democrai_sandbox.errors import ExternalAccessCheckFailed, StoreUnavailable

            decide = host.access.service.decide

            def away(question):
                raise ExternalAccessCheckFailed

            host.access.service.decide = away
            said["service"] = await host.tools("search")
            host.access.service.decide = decide

            def gone(name):
                raise StoreUnavailable

            server, host.store.mcp_server = host.store.mcp_server, gone
            said["store"] = await host.tools("search")
            host.store.mcp_server = server
            said["back"] = "echo" in await host.tools("search")

        asyncio.run(use())
    return said


def test_a_check_that_fails_is_no_denial_and_allows_nothing(case, servers):
    """The same applies to a registry that cannot be read."""
    said = case.run(failing_story, servers["streamable_http"])
    assert said["service"] == "ExternalAccessCheckFailed: sandbox_external_access_check_failed"
    assert said["store"] == "StoreUnavailable: sandbox_external_access_check_failed"
    assert said["back"] is True
