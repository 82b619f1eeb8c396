"""A PostgreSQL server of our own: started in a temporary folder, gone afterwards, also when the tests are killed."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.services import places

_PATIENCE = 30
_ROOM = 4 << 30
_USERS = ("postgres", "nobody")

# The shell waits for its input to close, which happens however the tests end, and takes the server with it, also when a
# test has stopped some of its processes.
_WATCHED = """
folder=$1; shift
"$@" & server=$!
read -r word
kill -INT "$server" 2>/dev/null
kill -CONT "$server" $(cat "/proc/$server/task/$server/children") 2>/dev/null
wait "$server"
[ "$word" = keep ] || rm -rf "$folder"
"""


def find_programs() -> Path | None:
    """Return the folder of initdb and postgres, the newest there is."""
    if (found := shutil.which("initdb")) and (Path(found).resolve().parent / "postgres").exists():
        return Path(found).resolve().parent
    candidates = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    newest = max(candidates, key=lambda path: float(path.parent.parent.name), default=None)
    return newest and newest.parent


class PostgresServer:
    """One server, reached by a unix socket, so that servers of other tests cannot be in its way.

    With ``address`` it listens there too, for whoever comes; it belongs to the network namespace that it is started in.
    """

    def __init__(self, programs: Path, *, durable: bool = False, address: str = "") -> None:
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="pg-", dir=places.SHORT if durable else _quick_folder()))
        self._data = self._folder / "data"
        self._log = self._folder / "log"
        # The operating system survives what tests do to the server: without fsync nothing is lost, and all is quicker.
        self._settings = {"listen_addresses": address, "unix_socket_directories": str(self._folder)}
        self._settings |= {"max_connections": "120", "fsync": "on" if durable else "off"}
        # In its folder: what a killed server leaves in the system's shared memory stays there for good.
        self._settings |= {"dynamic_shared_memory_type": "mmap"}
        self._databases = itertools.count(1)
        self._process: subprocess.Popen | None = None
        self._user = self._choose_user()
        if self._user:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        made = [
            programs / "initdb",
            "-D",
            self._data,
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
            "-N",
        ]
        subprocess.run(made, check=True, capture_output=True, cwd="/", timeout=_PATIENCE, **self._as_user())
        if address:
            with (self._data / "pg_hba.conf").open("a") as file:
                file.write("host all all all trust\n")

    def _choose_user(self):
        """PostgreSQL refuses to run as root."""
        if os.geteuid() != 0:
            return None
        known = {entry.pw_name: entry for entry in pwd.getpwall()}
        return next(known[name] for name in _USERS if name in known)

    def _as_user(self):
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self._folder}"

    def new_database(self, like: str | None = None) -> str:
        """Make an empty database, or a copy of another that nobody is connected to; return its URL."""
        name = f"test_{os.getpid()}_{next(self._databases)}"
        template = "template1" if like is None else urlsplit(like).path.strip("/")
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def execute(self, statement: str, database: str = "postgres") -> None:
        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=5) as connection:
            connection.execute(statement)

    def start(self) -> None:
        """Start it, or start it again after ``kill``."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            self._launch()
            while self._process.poll() is None and time.monotonic() < deadline:
                if self._answers():
                    return
                time.sleep(0.02)
                if self._pid() is None:
                    break
            self.stop()
            # After a kill the old server's children may need a moment to let its memory go.
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def _launch(self) -> None:
        settings = [f"-c{name}={value}" for name, value in self._settings.items()]
        command = ["sh", "-c", _WATCHED, "sh", self._folder, self._programs / "postgres", "-D", self._data, *settings]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                **self._as_user(),
            )

    def _answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _pid(self) -> int | None:
        """The server itself: the shell's child. One that ended stays as a zombie until the shell looks."""
        for pid in _children(self._process.pid) if self._process else ():
            with suppress(OSError):
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    return pid
        return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server's first process."""
        if pid := self._pid():
            os.kill(pid, number)

    def signal_process(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to one of the server's processes, such as ``pg_backend_pid()``."""
        os.kill(pid, number)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would; what it has on the disk stays."""
        children = _children(self._pid())
        self.signal(signal.SIGKILL)
        for child in children:  # they end by themselves, unless a test stopped them
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
        deadline = time.monotonic() + _PATIENCE
        while self._pid() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.stop()

    def _abort(self) -> None:
        """Have it give back its memory and end; one that does not is killed."""
        deadline = time.monotonic() + _PATIENCE / 3
        for child in _children(self._pid()):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGQUIT)
        while self._pid() and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._pid():
            self.kill()

    def stop(self) -> None:
        """End it in good order."""
        if self._process is None:
            return
        process, self._process = self._process, None
        try:
            process.communicate(b"keep\n", timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def remove(self) -> None:
        """End it and remove all that it wrote, at once: in good order it would first tidy up what goes away anyway."""
        self._abort()
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def _quick_folder() -> str:
    """Memory instead of a disk, where there is enough of it."""
    memory = Path(places.MEMORY)
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _ROOM
    return str(memory) if roomy else places.SHORT


def _children(pid: int | None) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@contextmanager
def postgres_server(*, durable: bool = False):
    """Give a running server; skip the test where PostgreSQL is not installed."""
    programs = find_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    server = PostgresServer(programs, durable=durable)
    try:
        server.start()
        yield server
    finally:
        server.remove()
