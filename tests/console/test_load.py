"""Many requests, and many people at once."""

from __future__ import annotations

import asyncio
import itertools
import socket
from datetime import UTC, datetime
from functools import partial
from time import clock_gettime

import httpx
import pytest
from sqlalchemy import insert

from democrai_sandbox.access.store import open_store
from democrai_sandbox.access.store import requests as asking
from democrai_sandbox.access.store.audit_log import Ledger
from democrai_sandbox.access.store.tables import requests
from democrai_sandbox.access.values import AccessTuple, NewRequest, Requester, new_id
from democrai_sandbox.console.server import bind
from democrai_sandbox.host.settings import ServerSettings
from democrai_sandbox.policy import Operation, ResourceType, Subject
from tests.console.serving import PLAIN, serving
from tests.console.sessions import enter, enter_often

FEW, MANY = 10, 10_000
MOST = 3
SESSIONS = 45
"""More than the threads that answer."""
ROUNDS = 6
PATIENCE = 120


def wait_for(served, number, host="host"):
    """Have so many requests wait, each for something of its own."""
    store = open_store(f"sqlite:///{served.folder}/state/sandbox.db")
    try:
        store.database.act(partial(_put, number=number, host=host))
    finally:
        store.close()


def _put(connection, number, host):
    # As registering does it, but for all of them at once.
    now = datetime.now(UTC)
    asked = [_request(one, host) for one in range(number)]
    connection.execute(insert(requests), [asking._columns(one, one.id, now) for one in asked])
    Ledger(connection).close([asking._requested(one, one.id) for one in asked], now=now)


def _request(number, host):
    subject = Subject.parse(f"module:m{number % 5}")
    target = f"https://{host}{number}.example/v1/items"
    access = AccessTuple(subject, ResourceType.NETWORK, Operation.RECEIVE, target)
    origin = Requester(f"user{number % 10}", "", f"session{number % 100}")
    return NewRequest(access, target, (str(subject),), origin, id=new_id())


def signed_in(served):
    cookies, _ = enter(served.accounts, served.admin)
    return served.client(cookies=cookies)


def test_answers_are_sent_at_once():
    """Small packets do not wait for each other, which would make every answer 40 ms slower."""
    with bind(ServerSettings(port=0)) as listener:
        listener.listen()

        async def accepted():
            taken = asyncio.get_running_loop().create_future()
            server = await asyncio.start_server(lambda _, writer: taken.set_result(writer), sock=listener)
            async with server:
                _, client = await asyncio.open_connection(*listener.getsockname())
                writer = await taken
                option = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                client.close()
                writer.close()
                return option

        assert asyncio.run(accepted())


@pytest.mark.slow
def test_a_long_queue_is_as_quick_as_a_short_one(tmp_path):
    """With ten thousand requests waiting, page and API take at most three times the work of ten."""
    folders = tmp_path / "short", tmp_path / "long"
    for folder in folders:
        folder.mkdir()
    with serving(folders[0], extensions=False) as short, serving(folders[1], extensions=False) as long:
        wait_for(short, FEW)
        wait_for(long, MANY)
        with signed_in(short) as few, signed_in(long) as many:
            assert "10,000" in many.get("/requests").text
            ratios = {
                path: work_of(long, many, path) / work_of(short, few, path)
                for path in ("/requests", "/api/v1/requests?state=pending")
            }
    assert max(ratios.values()) <= MOST, ratios


def work_of(served, client, path):
    """Return the least processor time that a server spends on a page: how busy the machine is makes no difference."""
    clock = (~served.process.pid << 3) | 2  # the clock of another process, as clock_getcpuclockid(3) makes it
    taken = []
    for _ in range(ROUNDS):
        start = clock_gettime(clock)
        assert client.get(path).status_code == 200
        taken.append(clock_gettime(clock) - start)
    return min(taken)


@pytest.mark.slow
def test_many_people_look_and_listen_at_once(served):
    """Many sessions open pages and hear of a change while modules run: every answer is the right one."""
    found = enter_often(served.accounts, served.admin, SESSIONS)
    cookies = ["; ".join(f"{name}={value}" for name, value in cookie.items()) for cookie, _ in found]
    token = served.token(served.administrator())
    heard = asyncio.run(crowd(served, cookies, token))
    assert heard == SESSIONS


async def crowd(served, cookies, token):
    """Return how many heard of the change."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=served.url, timeout=PATIENCE, **PLAIN, limits=limits) as client:
        listening = asyncio.Semaphore(0)
        changed = asyncio.Event()
        shown = itertools.cycle(("/requests/states?ids=", "/requests", "/approvals"))
        people = [
            asyncio.create_task(visitor(client, cookie, listening, changed, path))
            for cookie, path in zip(cookies, shown)
        ]
        ran, over = [], asyncio.Event()
        modules = asyncio.create_task(work(client, token, ran, over))
        for _ in cookies:
            await listening.acquire()
        await asyncio.to_thread(wait_for, served, FEW, "new")
        changed.set()
        heard = await asyncio.gather(*people)
        over.set()
        await modules
        assert ran
        return sum(heard)


async def visitor(client, cookie, listening, changed, path):
    """Look at the queue, listen, and look at a page when something changed."""
    headers = {"Cookie": cookie}
    async with client.stream("GET", "/live", headers={**headers, "Accept": "text/event-stream"}) as stream:
        assert stream.status_code == 200
        lines = stream.aiter_lines()
        first = await told(lines)
        assert (await client.get("/requests", headers=headers)).status_code == 200
        listening.release()
        await changed.wait()
        while await told(lines) == first:
            pass
    assert (await client.get(path, headers=headers)).status_code == 200
    return True


async def told(lines):
    """Return the next thing that a stream tells."""
    async for line in lines:
        if line.startswith("data: "):
            return line
    raise AssertionError("the stream has ended")


async def work(client, token, ran, over):
    """Have a module run again and again."""
    headers = {"Authorization": f"Bearer {token}"}
    while not over.is_set():
        answer = await client.post("/api/v1/modules/weather/render", json={"params": {}}, headers=headers)
        assert answer.status_code == 200, answer.text
        ran.append(answer.json())
        await asyncio.sleep(0.05)
