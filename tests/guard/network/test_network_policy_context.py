"""network_policy_context: a guard for the network alone."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.once  # does not depend on the interpreter


def fetch(url, method="GET"):
    import urllib.request

    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5) as response:
        return response.status


def dial(address):
    import socket

    socket.create_connection(address, timeout=5).close()


def network(**arguments):
    from democrai_sandbox import network_policy_context

    return network_policy_context(**{"subject": "demo", **arguments})


def alone(world):
    """Only the network is restricted."""
    import subprocess
    import sys

    url = world.url("http", "/allowed")
    actions = {
        "request": lambda: fetch(url),
        "other path": lambda: fetch(world.url("http", "/other")),
        "other method": lambda: fetch(url, "POST"),
        "socket": lambda: dial(world.address("tcp")),
        "read": lambda: read(world.secret).decode(),
        "write": lambda: write(world.out("new")),
        "child": lambda: subprocess.run([sys.executable, "-c", ""], check=True) and None,
        "import": lambda: __import__("ctypes").c_int(1) and None,
    }
    world.journal()
    seen = network(access=[rule(url, "receive")]).run(outcomes, actions)
    return {"seen": seen, "arrived": [entry.get("path") for entry in world.journal() if entry["event"] == "request"]}


def shorthand(world):
    """A target in the short form means connecting, receiving and sending."""
    actions = {
        "get": lambda: fetch(world.url("http", "/allowed")),
        "post": lambda: fetch(world.url("http", "/allowed"), "POST"),
        "socket": lambda: dial(world.address("tcp")),
        "other": lambda: dial(world.address("sink")),
    }
    targets = [world.url("http", "/allowed"), world.at("tcp")]
    forms = {"network": network(allowed_targets=targets), "process": world.guard(allowed_targets=targets)}
    return {name: guard.run(outcomes, actions) for name, guard in forms.items()}


def enter(guard, act):
    """Enter a context as runtime code, which merges instead of narrowing."""
    with guard:
        return act()


def together(world):
    """Enter it as the runtime together with a process guard, in both orders, and on a loop."""
    import asyncio

    from democrai_sandbox import configure_guard, process_guard_context

    configure_guard(runtime_code=[enter])
    url = world.url("http", "/allowed")
    actions = {
        "request": lambda: fetch(url),
        "other": lambda: fetch(world.url("http", "/other")),
        "inside": lambda: write(world.inside("f")),
        "secret": lambda: read(world.secret).decode(),
    }

    def act():
        return outcomes(actions)

    def process():
        return process_guard_context(subject="demo", allowed_paths=[world.root])

    def net():
        return network(access=[rule(url, "receive")])

    async def on_loop():
        async with process():
            return await asyncio.to_thread(enter, net(), act)

    seen = {
        "process, network": enter(process(), lambda: enter(net(), act)),
        "network, process": enter(net(), lambda: enter(process(), act)),
        "on a loop": asyncio.run(on_loop()),
        "one guard": world.guard(rule(url, "receive")).run(act),
    }
    return {**seen, "afterwards": act()}


def view(world):
    """Return the guard's own information about the subject."""
    from democrai_sandbox import current_guard

    def look():
        seen = current_guard()
        return [seen.subject, str(seen.subject_kind), seen.user_id, seen.organization_id, seen.session_key]

    who = {"subject": "whisper", "subject_kind": "engine", "user_id": "u", "organization_id": "o", "session_key": "s"}
    error = network(**who).run(caught, fetch, world.url("http", "/other"))
    return network(**who).run(look), facts(error)


def narrowing(world):
    """Open a network context as a subject inside a process guard."""
    from democrai_sandbox import network_policy_context

    url = world.url("http", "/allowed")

    def subject():
        seen = {"before": outcome(fetch, url)}
        with network_policy_context(subject="me"):
            seen["nothing"] = outcome(fetch, url)
        with network_policy_context(subject="me", allowed_targets=[world.url("http"), world.at("tcp")]):
            seen["wide"] = outcomes(
                {
                    "allowed": lambda: fetch(url),
                    "other": lambda: fetch(world.url("http", "/other")),
                    "socket": lambda: dial(world.address("tcp")),
                    "secret": lambda: read(world.secret),
                }
            )
        seen["after"] = outcome(fetch, url)
        return seen

    return world.guard(rule(url, "receive")).run(subject)


def wrong(world):
    """Return the errors for invalid arguments."""
    cases = {
        "no subject": {"subject": ""},
        "kind": {"subject_kind": "alien"},
        "lone target": {"allowed_targets": "example.com"},
        "bad target": {"allowed_targets": ["http://a b/"]},
        "empty target": {"allowed_targets": [""]},
        "wild": {"allowed_targets": ["*.com"]},
        "operation": {"access": [rule("example.com", "read")]},
        "several": {"subject": "", "allowed_targets": ["http://", "::ffff"], "access": [{"target": 1}]},
    }
    return {name: world.verdict(network, **arguments) for name, arguments in cases.items()}


class TestAlone:
    def test_it_restricts_the_network_only(self, net):
        """Files, children and imports are not restricted."""
        seen = net.run(alone)
        url = f"http://127.0.0.1:{net.places['http'][1]}"
        assert seen["seen"] == {
            "request": 200,
            "other path": f"denied receive {url}/other",
            "other method": f"denied send {url}/allowed",
            "socket": f"denied connect 127.0.0.1:{net.places['tcp'][1]}",
            "read": "SECRET",
            "write": "ok",
            "child": "ok",
            "import": "ok",
        }
        assert seen["arrived"] == ["/allowed"]

    def test_targets_stand_for_all_three_operations(self, net):
        """The same applies in a process guard."""
        for form, seen in net.run(shorthand).items():
            other = f"denied connect 127.0.0.1:{net.places['sink'][1]}"
            assert seen == {"get": 200, "post": 200, "socket": "ok", "other": other}, form

    def test_it_knows_its_subject(self, net):
        """It also knows the identity; its denials contain both."""
        seen, told = net.run(view)
        assert seen == ["whisper", "engine", "u", "o", "s"]
        assert (told["type"], told["subject"], told["subject_chain"]) == (
            "NetworkDenied",
            "whisper",
            ["engine:whisper"],
        )

    def test_bad_arguments(self, net):
        """They are rejected when the context is created."""
        assert set(net.run(wrong).values()) == {"InvalidInputError"}


class TestTogether:
    def test_entered_with_a_process_guard_both_hold(self, net):
        """In either order, and on a loop: the same as one guard that declares both."""
        seen = net.run(together)
        free = seen.pop("afterwards")
        assert (free["other"], free["secret"]) == (200, "SECRET")
        denied = f"denied receive http://127.0.0.1:{net.places['http'][1]}/other"
        for form, told in seen.items():
            assert told == {"request": 200, "other": denied, "inside": "ok", "secret": "FilesystemDenied"}, form

    def test_a_subject_can_only_narrow_with_it(self, net):
        """It removes rights, adds nothing to the network, and opens no file."""
        seen = net.run(narrowing)
        assert seen["before"] == seen["after"] == seen["wide"]["allowed"] == 200
        assert seen["nothing"].startswith("denied receive ")
        assert seen["wide"]["other"].startswith("denied receive ")
        assert seen["wide"]["socket"].startswith("denied connect ")
        assert seen["wide"]["secret"] == "FilesystemDenied"
