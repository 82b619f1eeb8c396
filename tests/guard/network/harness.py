"""Run the body of a network test in a separate process next to real servers, here or in a network namespace.

The child has everything that other guard tests' children have, and knows the addresses of the servers (see child.py).
"""

from __future__ import annotations

import inspect
import json
import os
import select
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.guard.harness import Case, ChildError
from tests.services.forks import ForkedCase

if TYPE_CHECKING:
    from tests.guard.network.servers.all_servers import Bed

CHILD = Path(__file__).with_name("child.py")
TOWN = Path(__file__).parent / "servers" / "namespace_servers.py"
COMMAND = [sys.executable, "-P", "-W", "ignore::DeprecationWarning", str(CHILD)]
START_LIMIT = 30
# Below TLS an adapter does the same, so one interpreter is enough.
PLACES = ["http", pytest.param("https", marks=pytest.mark.once)]


# Modules of clients and the guard, except those that the guard adapts or changes: each test loads these.
PARTS = (
    *("email.message", "email.parser", "email.utils", "encodings.idna", "fractions", "hashlib", "hmac", "http"),
    *("http.cookies", "inspect", "json", "locale", "logging", "mimetypes", "netrc", "pathlib", "platform", "queue"),
    *("random", "selectors", "signal", "sysconfig", "tempfile", "typing", "uuid", "zipfile", "democrai_sandbox.errors"),
    *("certifi", "charset_normalizer", "click", "h11", "idna", "multidict", "pygments", "rich.progress", "yarl"),
)
# Imports of a host that uses clients: the guard first, so that its adapters apply to each of them.
LOADED = (
    *("democrai_sandbox.guard", "asyncio", "http.client", "ssl", "urllib.request", "requests", "urllib3", "httpx"),
    *("httpcore", "httpx2", "httpcore2", "truststore", "anyio._backends._asyncio", "h2.connection", "wsproto"),
    *("aiohttp", "uvloop"),
)


def installed(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules that are installed."""
    return tuple(name for name in names if find_spec(name.partition(".")[0]))


class NetCase(ForkedCase):
    """Private world with servers on this machine's loopback."""

    child = CHILD
    modules = installed(PARTS)
    leaves = True

    def __init__(self, base: Path, bed: Bed) -> None:
        super().__init__(base)
        self._bed = bed
        self.places = bed.places

    def run(
        self,
        body: Any,
        *args: Any,
        guarded: bool = True,
        fresh: bool = False,
        loaded: bool = False,
        timeout: float = 120,
        **extra: str,
    ) -> Any:
        """Run the body in a child. It creates its guards; if not `guarded`, they guard nothing.

        The child is a fork of a process that has imported parts of clients, unless it must be `fresh`; with `loaded`,
        of one that has imported the guard and then the clients.
        """
        self._bed.journal.drain()
        if loaded:
            self.modules = installed(PARTS + LOADED)
        play = Case.play if fresh or extra else ForkedCase.play
        return result_of(*play(self, self.spec(body, args, guarded=guarded), self.environment(**extra), timeout))

    def spec(self, body: Any, args: tuple[Any, ...], *, guarded: bool) -> dict[str, Any]:
        """Return the settings of the child."""
        return {
            "file": inspect.getsourcefile(body),
            "body": body.__name__,
            "base": str(self.base),
            "args": args,
            "guard": None,
            "guarded": guarded,
            "places": self.places,
        }


class TownCase(NetCase):
    """Private world in which every address is local; names resolve according to the test's zone."""

    def __init__(self, base: Path, town: Town) -> None:
        Case.__init__(self, base)
        self._town = town
        self.places = town.places
        self.arrived: list[dict[str, Any]] = []

    def run(
        self,
        body: Any,
        *args: Any,
        zone: dict[str, Any] | None = None,
        guarded: bool = True,
        loaded: bool = False,
        timeout: float = 60,
        **extra: str,
    ) -> Any:
        """Run the body in a child inside the namespace: a fork as in `NetCase`, or with `extra` a new process."""
        spec, environment = self.spec(body, args, guarded=guarded), self.environment(**extra)
        self._given = {"zone": zone or {}, "timeout": timeout}
        if extra:
            command = {"command": [*COMMAND, json.dumps(spec)], "cwd": str(self.base), "env": environment}
            told = self._tell(command)
            return result_of(told["code"], told["out"], told["err"])
        if loaded:
            self.modules = installed(PARTS + LOADED)
        return result_of(*self.play(spec, environment, timeout))

    def fork(self, order: dict[str, Any]) -> int | None:
        """Let the namespace's process fork for a command."""
        return self._tell({"fork": order, "child": str(self.child), "modules": self.modules})["code"]

    def _tell(self, what: dict[str, Any]) -> dict[str, Any]:
        told = self._town.order(what | self._given)
        self.arrived = told["journal"]
        return told


class Town:
    """Process that serves a namespace for all tests of a session."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [*unshare(), sys.executable, "-P", str(TOWN), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.places = json.loads(self._line(START_LIMIT))
        except BaseException:
            self.close()
            raise

    def order(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run a command in the namespace."""
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._line(order["timeout"] + 10))

    def close(self) -> None:
        """End the process reliably."""
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _line(self, patience: float) -> str:
        # Unbuffered, because the process answers each line with one line.
        if not select.select([self._process.stdout], [], [], patience)[0]:
            raise ChildError("the namespace does not answer")
        line = self._process.stdout.readline()
        if not line:
            raise ChildError(f"the namespace's process ended: {self._process.poll()}")
        return line


def unshare() -> list[str]:
    """Return the command that starts another one in separate namespaces, as root or as any user."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--mount", "--uts", "--kill-child"]


def why_no_namespaces() -> str | None:
    """Return why this machine cannot provide namespaces; None if it can."""
    try:
        probe = subprocess.run(
            [*unshare(), "ip", "link", "set", "lo", "up"], capture_output=True, text=True, timeout=START_LIMIT
        )
    except FileNotFoundError as error:
        return f"{error.filename} is not installed"
    return None if probe.returncode == 0 else f"no network namespaces here: {probe.stderr.strip()}"


def result_of(code: object, out: str, err: str) -> Any:
    """Return the value of a body, or raise an error with the output of its process."""
    if code != 0:
        raise ChildError(f"exit {code}\n{out[-2000:]}\n{err[-6000:]}")
    return json.loads(out.rstrip("\n").rpartition("\n")[2])
