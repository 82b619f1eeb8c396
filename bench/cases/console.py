"""Console: a long queue compared with a short one, and two hundred users compared with one."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import cache, partial
from itertools import repeat
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from bench.registry import Case, add

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.fixture import Fixture
    from bench.registry import Loop

FEW, MANY = 10, 10_000
QUEUE_LIMIT = 3.0
PEOPLE = 200
ALONE = 10
PATIENCE = 120
_READY = re.compile(r"democrai-sandbox is ready at http://([^/\s]+)")
_FIRST = re.compile(r"first login: (\S+),")
_MODULES = Path(__file__).resolve().parents[2] / "examples" / "extensions" / "modules"
_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Let the kernel kill the server when the worker ends."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


class _Server:
    """Process that serves with a separate database."""

    def __init__(self, folder: Path, pending: int) -> None:
        folder.mkdir()
        config = folder / "config.yaml"
        config.write_text(
            json.dumps({"state_dir": str(folder / "state"), "modules_path": str(_MODULES), "server": {"port": 0}})
        )
        config.chmod(0o600)
        command = [sys.executable, "-m", "democrai_sandbox.cli", "serve", "--config", str(config)]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - still single-threaded
            )
        self.address = self.admin = ""
        for line in self._process.stdout or ():
            if first := _FIRST.match(line):
                self.admin = first[1]
            if ready := _READY.match(line):
                self.address = ready[1]
                break
        if not self.address:
            raise RuntimeError(f"the console did not start: {(folder / 'log').read_text()[-500:]}")
        self.cookies, self.token = _furnish(config, self.admin, pending)

    def get(self, path: str, cookie: str = "") -> bytes:
        """Return the content of a page; raise for any other status."""
        with closing(http.client.HTTPConnection(self.address, timeout=PATIENCE)) as line:
            return _read(line, "GET", path, {"Cookie": cookie or self.cookies[0]})

    def run_module(self) -> None:
        """Run a module."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        with closing(http.client.HTTPConnection(self.address, timeout=PATIENCE)) as line:
            _read(line, "POST", "/api/v1/modules/weather/render", headers, json.dumps({"params": {}}))


def _read(line: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str], body: str = "") -> bytes:
    line.request(method, path, body or None, headers)
    answer = line.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path} answered {answer.status}: {text[:200]!r}")
    return text


def _furnish(config: Path, admin: str, pending: int) -> tuple[list[str], str]:
    """File requests, and sign users in without their passwords: comparing these is slow by design."""
    from democrai_sandbox.access.store import open_store
    from democrai_sandbox.host.accounts.accounts import Accounts
    from democrai_sandbox.host.config import load

    settings = load(config, environ={}).settings
    with closing(open_store(settings.database)) as store:
        store.database.act(partial(_ask, pending=pending))
        accounts = Accounts(store.database, settings)
        found = store.database.act(partial(_enter, admin=admin))
        _, token = accounts.create_token(admin, "bench", ("modules:run",), None)
        return [f"{accounts.cookie_name}={secret}" for secret in found], token


def _ask(connection: Any, pending: int) -> None:
    from democrai_sandbox.access.store import requests
    from democrai_sandbox.access.values import AccessTuple, NewRequest, Requester, new_id
    from democrai_sandbox.policy import Operation, ResourceType, Subject, SubjectKind

    now = datetime.now(UTC)
    for number in range(pending):
        subject = Subject(SubjectKind.MODULE, f"m{number % 5}")
        target = f"https://host{number}.example/v1/items"
        access = AccessTuple(subject, ResourceType.NETWORK, Operation.RECEIVE, target)
        origin = Requester(f"user{number % 10}", "", f"session{number % 100}")
        requests.register(connection, NewRequest(access, target, (str(subject),), origin, id=new_id()), now=now)


def _enter(connection: Any, admin: str) -> list[str]:
    from sqlalchemy import insert

    from democrai_sandbox.access.values import new_id
    from democrai_sandbox.host.accounts.passwords import hashed
    from democrai_sandbox.host.accounts.tables import sessions

    made = [secrets.token_urlsafe() for _ in range(PEOPLE)]
    now = datetime.now(UTC)
    same = {"person_id": admin, "address": "127.0.0.1", "user_agent": "bench"}
    same |= {"created_at": now, "last_seen": now, "confirmed_at": now}
    connection.execute(insert(sessions), [{**same, "id": new_id(), "token_hash": hashed(secret)} for secret in made])
    return made


@cache
def _server(folder: Path, pending: int) -> _Server:
    """Start a server once for all cases of a worker that need the same."""
    return _Server(folder / f"console-{os.getpid()}-{pending}", pending)


def queue(path: str, bed: Fixture) -> Loop:
    """Open the queue: of ten thousand requests in the guarded column, otherwise of ten."""
    server = _server(bed.ground.temp, MANY if bed.guarded else FEW)

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            server.get(path)
        return perf_counter_ns() - start

    return loop


for _what, _path in {"queue page": "/requests", "API list": "/api/v1/requests?state=pending"}.items():
    add(
        Case(
            f"console, {_what}, {MANY:,} requests waiting (to {FEW})",
            partial(queue, _path),
            limit=QUEUE_LIMIT,
            wrapped=False,
            reference=False,
            parts=2,
        )
    )


@contextmanager
def _busy(server: _Server) -> Iterator[None]:
    """Run modules in parallel; fail if one fails."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            server.run_module()

    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(work) for _ in range(2)]
        try:
            yield
        finally:
            over.set()
        for one in working:
            one.result()


def _visit(server: _Server, cookie: str) -> None:
    """Listen for changes, and load pages meanwhile, like an open page."""
    with closing(http.client.HTTPConnection(server.address, timeout=PATIENCE)) as line:
        line.request("GET", "/live", headers={"Cookie": cookie, "Accept": "text/event-stream"})
        stream = line.getresponse()
        if stream.status != 200:
            raise RuntimeError(f"/live answered {stream.status}")
        while not stream.readline().startswith(b"data: "):
            pass
        for path in ("/requests", "/requests/states?ids="):
            server.get(path, cookie)


def crowd(bed: Fixture) -> Loop:
    """Sign in two hundred users at once; for comparison, some of them one after another, extrapolated."""
    server = _server(bed.ground.temp, FEW)
    visitors = server.cookies if bed.guarded else server.cookies[:ALONE]
    pool = ThreadPoolExecutor(len(visitors) if bed.guarded else 1)

    def loop(turns: int) -> int:
        with _busy(server):
            start = perf_counter_ns()
            for _ in repeat(None, turns):
                list(pool.map(partial(_visit, server), visitors))
            return (perf_counter_ns() - start) * PEOPLE // len(visitors)

    return loop


# Without a limit: the row fails if one of the users gets an error.
add(
    Case(
        f"console, a visit while {PEOPLE} people listen and modules run (to one after the other)",
        crowd,
        wrapped=False,
        reference=False,
        per=PEOPLE,
        parts=1,
        samples=3,
    )
)
