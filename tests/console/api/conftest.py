"""API clients for the server that the tests of a worker share."""

from __future__ import annotations

import pytest

from democrai_sandbox.host.scopes import Scope


@pytest.fixture(scope="module")
def admin(served):
    """A program of the first administrator, with every scope."""
    with served.bearer(served.administrator()) as client:
        yield client


@pytest.fixture(scope="module")
def uma(served):
    """A program of a user who may not decide, with every scope."""
    with served.bearer(served.person("uma"), *Scope) as client:
        yield client


@pytest.fixture
def ask(served, uma, request):
    """Let uma's module be denied at a new path; return the id of the pending request."""

    def stopped(path="", client=uma):
        return served.stop_weather(client, f"/{request.node.originalname}{path}")

    return stopped
