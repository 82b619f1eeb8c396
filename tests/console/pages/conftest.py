"""An administrator for the pages, and a desk that files requests."""

from __future__ import annotations

import pytest

from tests.console.pages.asking import Desk


@pytest.fixture(scope="module")
def desk(served):
    """Files requests in the served database."""
    found = Desk(served)
    yield found
    found.close()


@pytest.fixture(scope="module")
def ada(served):
    """An administrator."""
    served.person("ada", role="super")
    with served.signed_in("ada") as client:
        yield client
