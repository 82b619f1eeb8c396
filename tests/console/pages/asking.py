"""Requests and decisions in the database of a served process."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from itertools import count

from democrai_sandbox.access.store import open_store
from democrai_sandbox.access.values import (
    AccessTuple,
    DecisionEffect,
    DecisionScope,
    NewDecision,
    NewRequest,
    Requester,
    new_id,
)
from democrai_sandbox.policy import Operation, ResourceType, Subject
from tests.console.pages.reading import form
from tests.console.serving import PASSWORD

_numbers = count(1)


class Desk:
    """Files requests, and reads their results."""

    def __init__(self, served):
        self.store = open_store(f"sqlite:///{served.folder}/state/sandbox.db")

    def ask(self, target=None, *, subject="module:weather", operation="receive", raw="", **more):
        """File a request, by default with a new target; return its id."""
        target = target or f"https://host{next(_numbers)}.example/v1/item"
        kind = "filesystem" if target.startswith("/") else "network"
        origin = Requester(more.get("user", "uma"), more.get("organization", ""), more.get("session", "a-session"))
        access = AccessTuple(Subject.parse(subject), ResourceType(kind), Operation(operation), target)
        action = more.get("action", "")
        request = NewRequest(access, raw or target, more.get("chain", (subject,)), origin, action, id=new_id())
        now = datetime.now(UTC) - more.get("ago", timedelta(0))
        return self.store.register(request, now=now).request_id

    def resume(self, request_id, *, node):
        """Approve a request with an action, and have another node run that; return the resumption.

        All happens an hour ahead, so that the served node does not take it.
        """
        ahead = datetime.now(UTC) + timedelta(hours=1)
        access = self.store.request(request_id).access
        self.store.decide(
            NewDecision(access, DecisionEffect.APPROVAL, DecisionScope.PERMANENT, "ada", request_id=request_id),
            now=ahead,
        )
        return self.store.claim_resume(node=node, lease_until=ahead + timedelta(hours=1), now=ahead)

    def state(self, request_id):
        return self.store.request(request_id).state.value

    def close(self):
        self.store.close()


def words(page):
    """The visible text of a page, in one line."""
    text = page if isinstance(page, str) else page.text
    main = text[text.index("<main") :] if "<main" in text else text
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", main)))


def decide(client, request_id, act, **more):
    """Open a request, press a button, and confirm if needed."""
    seen = re.search(r'name="seen" value="([\d,]*)"', client.get(f"/requests/{request_id}").text)
    filled = {"act": act, "choice": "0", "seen": seen[1] if seen else "", "confirmed": "yes", "password": PASSWORD}
    return client.post(f"/requests/{request_id}/decide", data={**filled, **more})


def approve_again(client, decision_id, **more):
    """Approve the access of a decision on its page."""
    path = f"/decisions/{decision_id}/approve"
    return client.post(path, data={**form(client.get(path), "/approve"), "password": PASSWORD, **more})


def button(page, label):
    """The tag of a button, by its label."""
    return re.search(rf"<button([^>]*)>{re.escape(label)}</button>", page.text).group(1)
