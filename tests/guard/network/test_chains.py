"""Nested guards: the network rules in force, and the subject in a denial."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.once  # does not depend on the interpreter


def fetch(url, method="GET"):
    """Return the status of a request by the simplest client."""
    import urllib.request

    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5) as response:
        return response.status


def dial(address):
    """Connect a raw socket."""
    import socket

    socket.create_connection(address, timeout=5).close()


def enter_inner(world, probe):
    """Enter a tool's guard as runtime code."""
    with world.guard(rule(world.url("other", "/inner"), "receive"), subject="inner", subject_kind="tool"):
        return probe()


def enter_exact(world, probe):
    """Enter a tool with its own access list as runtime code."""
    from democrai_sandbox.guard import exact_guard_context

    access = [rule(world.url("other", "/inner"), "receive")]
    with exact_guard_context(subject="inner", subject_kind="tool", access=access):
        return probe()


def chains(world):
    """Nest guards: merged by the runtime, exact, and narrowed by the subject."""
    from democrai_sandbox import configure_guard, process_guard_context

    configure_guard(runtime_code=[enter_inner, enter_exact])
    outer, inner = world.url("http", "/outer"), world.url("other", "/inner")

    def probe():
        return outcomes(
            {
                "outer": lambda: fetch(outer),
                "inner": lambda: fetch(inner),
                "neither": lambda: fetch(world.url("http", "/else")),
                "raw": lambda: dial(world.address("tcp")),
            }
        )

    def narrowed(*rules):
        with process_guard_context(subject="me", access=list(rules)):
            return probe()

    def blamed():
        error = caught(fetch, world.url("http", "/else"))
        return [error.subject, [str(subject) for subject in error.subject_chain]]

    def subject():
        return {
            "alone": probe(),
            "merged": enter_inner(world, probe),
            "exact": enter_exact(world, probe),
            "narrowed to nothing": narrowed(),
            "narrowed to the same": narrowed(rule(outer, "receive")),
            "widened by itself": narrowed(rule(inner, "receive"), rule(world.at("tcp"), "connect")),
            "after": probe(),
            "blamed": enter_inner(world, blamed),
        }

    return world.guard(rule(outer, "receive"), subject="outer").run(subject)


class TestChains:
    def test_the_runtime_merges(self, net):
        """The declarations of module and tool apply while the tool runs; afterwards only the module's."""
        seen = net.run(chains)
        assert (seen["alone"]["outer"], seen["merged"]["outer"], seen["merged"]["inner"]) == (200, 200, 200)
        assert seen["alone"]["inner"].startswith("denied receive ")
        assert seen["after"] == seen["alone"]
        assert seen["merged"]["neither"].startswith("denied receive ")
        assert seen["merged"]["raw"].startswith("denied connect ")

    def test_an_exact_context_has_its_own_declarations_only(self, net):
        """The enclosing rules do not apply."""
        seen = net.run(chains)["exact"]
        assert seen["inner"] == 200
        assert seen["outer"].startswith("denied receive ")

    def test_a_subject_can_only_narrow(self, net):
        """A guard that it opens removes rights and adds none."""
        seen = net.run(chains)
        assert seen["narrowed to nothing"]["outer"].startswith("denied receive ")
        assert seen["narrowed to the same"]["outer"] == 200
        assert {told.split()[0] for told in seen["widened by itself"].values()} == {"denied"}

    def test_the_innermost_subject_is_named(self, net):
        """The denial contains the call chain."""
        assert net.run(chains)["blamed"] == ["inner", ["module:outer", "tool:inner"]]
