"""Without Redis, decisions arrive by polling; without the database, existing decisions still answer checks."""

from __future__ import annotations

import pytest

from democrai_sandbox.access.store import open_store
from democrai_sandbox.access.values import AuditAction, AuditFilter, PageRequest
from tests.access.nodes.processes import PATIENCE, Failed, Gone, eventually

DECIDED = ["permanent_approval", "denied"]


@pytest.fixture
def two(nodes_over, settings):
    return nodes_over(settings).start()


def test_without_redis_a_decision_is_in_force_everywhere_by_the_poll(two, redis, website):
    """After Redis is back, events work again without a restart."""
    one, other = two
    asked = [other.do("fetch", place=f"{website}/{number}")["request"] for number in range(2)]
    redis.kill()
    try:
        assert eventually(lambda: not other.do("status")["bus_connected"])
        watch = other.begin("watch", place=f"{website}/0", until="ok", wait_for=f"{website}/0")
        one.do("approve", request=asked[0])
        assert one.do("fetch", place=f"{website}/0") == {"came": "ok"}
        assert watch.result(PATIENCE)["attempts"] > 1
    finally:
        redis.start()
    assert eventually(lambda: all(node.do("status")["bus_connected"] for node in two))
    one.do("approve", request=asked[1])
    assert eventually(lambda: other.do("fetch", place=f"{website}/1") == {"came": "ok"})


def test_without_the_database_what_was_decided_is_answered_and_nothing_else_is_allowed(
    two, postgres, settings, website
):
    """A new question, and a decision, raise an error that is not a denial, in the service and in guarded code."""
    approved, denied, asked, new = (f"{website}/{name}" for name in ("approved", "denied", "asked", "new"))
    one, other = two
    one.do("decide_unasked", place=approved, effect="approval")
    one.do("decide_unasked", place=denied, effect="denial")
    pending = one.do("ask", place=asked)["request"]
    assert eventually(lambda: [code for code, _ in other.do("answers", places=[approved, denied])] == DECIDED)
    postgres.kill()
    try:
        for node in two:
            assert eventually(lambda node=node: not node.do("status")["store_reachable"])
            assert node.do("answers", places=[approved, denied]) == [
                ["permanent_approval", "ok"],
                ["denied", "denied"],
            ]
            assert node.do("fetch", place=new) == {"came": "ExternalAccessCheckFailed"}
            for act in (
                lambda node=node: node.do("ask", place=new),
                lambda node=node: node.do("approve", request=pending),
                lambda node=node: node.do("decide_unasked", place=new, effect="approval"),
            ):
                with pytest.raises(Failed, match="sandbox_external_access_check_failed"):
                    act()
    finally:
        postgres.start()
    assert eventually(lambda: all(node.do("status")["store_reachable"] for node in two))
    assert other.do("ask", place=new)["code"] == "pending"
    other.do("approve", request=pending)
    assert eventually(lambda: one.do("fetch", place=asked) == {"came": "ok"})
    store = open_store(settings["store"])
    try:
        failures = AuditFilter(actions=(AuditAction.CHECK_FAILED,))
        assert eventually(lambda: len(store.audit(failures, PageRequest()).items) >= 4)
    finally:
        store.close()


def test_a_node_that_never_saw_the_decisions_does_not_start(postgres, settings, nodes_over):
    """It would not know the denials."""
    nodes_over(settings).start(1)
    postgres.kill()
    try:
        with pytest.raises(Gone, match="StoreUnavailable"):
            nodes_over(settings).start(1)
    finally:
        postgres.start()
