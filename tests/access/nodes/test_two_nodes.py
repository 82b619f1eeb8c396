"""Two processes as two nodes: a decision on one is in force on the other, in the running activation.

The nodes poll once a minute, so a change within a test's timeout arrived by an event.
"""

from __future__ import annotations

import itertools
import time

import pytest

from tests.access.nodes.processes import PATIENCE, SCALE, eventually, percentile
from tests.services.machine_load import slowness

SAME_HOST = 1.0
ACROSS = 2.0

_names = itertools.count()


@pytest.fixture
def place(website):
    """URL that has not been requested yet."""
    return f"{website}/place-{next(_names)}"


def ask(node, place, **who):
    told = node.do("ask", place=place, **who)
    assert told["code"] == "pending" and not told["allowed"]
    return told["request"]


class TestEffect:
    def test_an_approval_at_one_node_lets_the_others_guarded_code_pass(self, pair, place):
        """The approval applies in the activation that was denied before and in the next one, on both nodes."""
        one, other = pair
        denied = other.do("fetch", place=place)
        assert (denied["came"], denied["code"]) == ("denied", "pending")
        watch = other.begin("watch", place=place, until="ok", wait_for=place)
        one.do("approve", request=denied["request"])
        assert watch.result(PATIENCE)["attempts"] > 1
        assert one.do("fetch", place=place) == other.do("fetch", place=place) == {"came": "ok"}

    def test_a_file_that_was_approved_opens_in_the_running_activation(self, pair, tmp_path):
        """Reading a file files no request, so it is requested explicitly."""
        one, other = pair
        file = tmp_path / "file"
        file.write_text("data")
        watch = other.begin("watch", place=str(file), until="ok", wait_for=str(file))
        one.do("approve", request=ask(other, str(file)))
        assert watch.result(PATIENCE)["attempts"] > 1

    def test_a_revocation_at_one_node_ends_it_at_the_other(self, pair, place):
        """The revocation applies in the running activation too."""
        one, other = pair
        decision = one.do("approve", request=ask(one, place))
        assert eventually(lambda: other.do("fetch", place=place) == {"came": "ok"})
        watch = other.begin("watch", place=place, until="denied", wait_for=place)
        one.do("revoke", decision=decision)
        assert watch.result(PATIENCE)["attempts"] > 1

    def test_a_denial_at_one_node_holds_at_the_other(self, pair, place):
        """A denial ends an approval of the same access; the next request is answered and files nothing."""
        one, other = pair
        one.do("approve", request=ask(one, place))
        assert eventually(lambda: other.do("fetch", place=place)["came"] == "ok")
        watch = other.begin("watch", place=place, until="denied", wait_for=place)
        one.do("decide_unasked", place=place, effect="denial")
        assert watch.result(PATIENCE)["attempts"] > 1
        assert other.do("fetch", place=place) == {"came": "denied", "code": "denied", "request": None}
        assert other.do("ask", place=place) == {"code": "denied", "allowed": False, "request": None}

    def test_an_approval_ends_by_itself_at_its_time(self, pair, place):
        """The approval ends on both nodes without an event."""
        one, other = pair
        for seconds in (1.5, 6.0, 24.0):  # longer if the other node received it after its end
            over = time.monotonic() + seconds
            one.do("decide_unasked", place=place, effect="approval", seconds=seconds)
            if eventually(lambda: other.do("fetch", place=place)["came"] == "ok", seconds - 0.1):
                break
        else:
            pytest.fail("it was never in force at the other node")
        assert eventually(lambda: time.monotonic() > over + 0.1)
        assert [node.do("fetch", place=place)["came"] for node in pair] == ["denied", "denied"]

    def test_two_who_decide_at_once_give_one_winner_and_one_conflict(self, pair, place):
        """Both nodes return the winner's decision."""
        one, other = pair
        for number in range(4):
            target = f"{place}/{number}"
            request = ask(one, target)
            attempts = [one.begin("approve", request=request), other.begin("deny", request=request)]
            errors = [attempt.exception(30) for attempt in attempts]
            assert [error.args[0] for error in errors if error] == ["DecisionConflict"]
            code = "denied" if errors[0] else "permanent_approval"
            for node in pair:
                assert eventually(lambda node=node: node.do("ask", place=target)["code"] == code)

    def test_the_end_of_a_session_ends_its_approvals_everywhere(self, pair, place):
        """Only the approvals of that session end."""
        one, other = pair
        for session in ("ends", "stays"):
            one.do("approve_for_session", request=ask(other, place, session=session))
        for session in ("ends", "stays"):
            assert eventually(lambda session=session: other.do("fetch", place=place, session=session)["came"] == "ok")
        assert other.do("fetch", place=place, session="third")["came"] == "denied"
        watch = other.begin("watch", place=place, until="denied", session="ends", wait_for=place)
        assert one.do("end_session", session="ends") == 1
        assert watch.result(PATIENCE)["attempts"] > 1
        assert other.do("fetch", place=place, session="stays")["came"] == "ok"


class TestTime:
    def test_an_approval_takes_effect_at_the_other_node_in_time_under_load(self, pair, tmp_path, request):
        """Time from before the approving call to the first allowed attempt of running guarded code."""
        limit = SAME_HOST if "ipc" in request.node.name else ACROSS
        for index, node in enumerate(pair):
            (tmp_path / str(index)).mkdir()
            node.do("load", folder=str(tmp_path / str(index)), seed=index)
        took, busy = [], slowness()
        for number in range(int(9 * SCALE)):
            one, other = pair if number % 2 else pair[::-1]
            file = tmp_path / f"file-{number}"
            file.write_text("data")
            waiting = ask(other, str(file))
            watch = other.begin("watch", place=str(file), until="ok", wait_for=str(file))
            begun = time.monotonic()
            one.do("approve", request=waiting)
            took.append(watch.result(PATIENCE)["since"] - begun)
        busy = max(busy, slowness())
        assert eventually(lambda: min(len(node.told_of("acknowledged")) for node in pair) > 20), "there was no load"
        for node in pair:
            node.do("rest")
        print(f"approval to effect: median {percentile(took, 0.5):.3f} s, p95 {percentile(took, 0.95):.3f} s")
        assert percentile(took, 0.5) < limit * busy
