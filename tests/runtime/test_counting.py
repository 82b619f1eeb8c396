"""Request counts: a call that asks and then acts counts once, in any process."""

from __future__ import annotations

import os

import pytest

HOUSE = os.path.join(os.path.dirname(__file__), "host_setup.py")
MODULE = """
import urllib.request
from democrai_sandbox import sdk

@sdk.action("fetch")
async def fetch(url):
    sdk.access.require_external_access(
        resource_type="network", operation="receive", target=url, resume_action="fetch", resume_context={"url": url}
    )
    await sdk.tasks.run_blocking(read, url)

def read(url):
    urllib.request.urlopen(url, timeout=10)
"""


def calling(world):
    """Call an action a number of times; return the count of its request, and the answers counted."""
    house = world.load(HOUSE)["House"](world)
    house.extension("demo", MODULE)

    async def story():
        from democrai_sandbox.access import Caller
        from democrai_sandbox.errors import NetworkDenied

        given = {"url": f"{house.web.url}/page"}
        named = []
        for _ in range(3):
            try:
                await house.runtime.modules.action("demo", "fetch", given, Caller(user_id="uma", session_key="monday"))
            except NetworkDenied as denied:
                named.append(denied.request_id)
        answers = house.access.service.answers()
        (request,) = house.admin("pending_requests").items
        return [answers["pending"], named == [request.id] * 3, request.resume_action]

    return house.serve(story, isolation={"module:demo": world.args[0]})


@pytest.mark.parametrize("isolation", ["in_process", "process"])
def test_a_call_that_asks_and_fetches_is_counted_once(case, isolation):
    """Three calls are three questions; the denial names the request that the question filed."""
    assert case.run(calling, isolation) == [3, True, "fetch"]
