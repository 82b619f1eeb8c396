"""The pip that installations use: its guarded process, its effective configuration, and the package hosts as rules."""

from __future__ import annotations

import asyncio
import compileall
import importlib.util
import json
import logging
import os
import re
import shutil
import socket
import sysconfig
import tempfile
import zipfile
from collections import deque
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from democrai_sandbox.errors import InstallFailed
from democrai_sandbox.policy import AccessRule, InvalidInputError, Operation, ResourceType, normalise_target
from democrai_sandbox.runtime.child_process import INTERPRETER, host_environment

from .guard import CONTROL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from democrai_sandbox.runtime.worker.process import WorkerProcess, WorkerStarter

LONGEST_MESSAGE = 64 * 1024
_LAST_LINES = 40
_LONGEST_LINE = 4000
_MOST_DENIALS = 50
_MOST_QUESTIONS = 1000
_LAST_WORDS = 1.0
_log = logging.getLogger(__name__)


class InstallProcess:
    """Output and denials of a child. For one run, on one loop."""

    def __init__(
        self, on_line: Callable[[str], None], decide: Callable[[list[Any]], Awaitable[list[Any] | bool | None]]
    ) -> None:
        """Take the receiver of the child's lines, and the function that answers its guard; None means undecided."""
        self.lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.denials: deque[tuple[str, str]] = deque(maxlen=_MOST_DENIALS)
        self._on_line = on_line
        self._decide = decide
        self._questions: asyncio.Queue[tuple[Any, list[Any]]] = asyncio.Queue(_MOST_QUESTIONS)

    async def run(
        self,
        starter: WorkerStarter,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: str,
        lock: int,
        timeout: float,  # noqa: ASYNC109 - the timeout ends the child
    ) -> int:
        """Run the child and return its exit code; in any case, stop all its processes."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003 - signature of the standard library
        told = {**environment, CONTROL: str(theirs.fileno())}
        with ours:
            with theirs:
                process = await starter.start(command, env=told, pass_fds=(theirs.fileno(), lock), cwd=folder)
            answering = asyncio.create_task(self._answer(ours))
            try:
                async with _ended(process), asyncio.timeout(timeout):
                    return await self._follow(process, ours)
            except TimeoutError:
                raise InstallFailed(f"pip took longer than {timeout:g} seconds", lines=tuple(self.lines)) from None
            finally:
                answering.cancel()

    async def _follow(self, process: WorkerProcess, control: socket.socket) -> int:
        """Read until the child has ended. No stream can block another, or grow without limit."""
        readers = (
            _OutputReader(process.stdout, _LONGEST_LINE, self._hear),
            _OutputReader(process.stderr, _LONGEST_LINE, self._hear),
            _OutputReader(control.fileno(), LONGEST_MESSAGE, self._be_told),
        )
        return await _read_until_end(process, readers)

    def _hear(self, line: str) -> None:
        # Lines are displayed, so remove terminal control characters.
        self.lines.append("".join(letter if letter.isprintable() else " " for letter in line))
        self._on_line(line)

    def _be_told(self, line: str) -> None:
        """Handle a message of the child's guard; a malformed one is not answered, which allows nothing."""
        try:
            message = json.loads(line)
            if "refused" in message:
                self.denials.append((str(message["code"]), str(message["refused"])))
            else:
                self._questions.put_nowait((message["number"], list(message["ask"])))
        except (ValueError, KeyError, TypeError, RecursionError, asyncio.QueueFull):
            self._hear("(the child sent a malformed message)")

    async def _answer(self, control: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            number, question = await self._questions.get()
            try:
                answer = await self._decide(question)
            except Exception:  # noqa: BLE001 - the child waits for an answer in any case
                _log.exception("an access question of an installation could not be answered")
                answer = None  # no decision, so nothing is allowed
            with suppress(OSError):
                await loop.sock_sendall(control, json.dumps({"number": number, "answer": answer}).encode() + b"\n")


async def output_of(
    starter: WorkerStarter, command: Sequence[str], environment: Mapping[str, str], seconds: float
) -> str:
    """Return the output of a program of the host; raise an error with its last lines if it fails."""
    process = await starter.start(command, env=environment, pass_fds=(), cwd="/")
    said: list[str] = []
    complaints: deque[str] = deque(maxlen=_LAST_LINES)
    readers = [
        _OutputReader(process.stdout, LONGEST_MESSAGE, said.append),
        _OutputReader(process.stderr, _LONGEST_LINE, complaints.append),
    ]
    try:
        async with _ended(process), asyncio.timeout(seconds):
            code = await _read_until_end(process, readers)
    except TimeoutError:
        raise InstallFailed(f"{command[0]} did not finish within {seconds:g} seconds") from None
    if code != 0:
        raise InstallFailed(f"{command[0]} failed with exit code {code}", lines=tuple(complaints))
    return "\n".join(said)


@asynccontextmanager
async def _ended(process: WorkerProcess) -> AsyncIterator[None]:
    """End a process with its whole group: a compiler that keeps writing would change what was verified."""
    try:
        yield
    finally:
        process.kill()
        await asyncio.shield(process.wait())
        process.close()


async def _read_until_end(process: WorkerProcess, readers: Sequence[_OutputReader]) -> int:
    """Read until a process has ended, and return its exit code."""
    try:
        code = await process.wait()
        # A detached grandchild may keep the output open, so read only for a moment longer.
        await asyncio.wait([reader.ended for reader in readers], timeout=_LAST_WORDS)
    finally:
        for reader in readers:
            reader.stop()
    return code


class _OutputReader:
    """Splits the data of a descriptor into lines, and cuts long ones."""

    def __init__(self, descriptor: int, longest: int, on_line: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._descriptor = descriptor
        self._longest = longest
        self._on_line = on_line
        self._rest = b""
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, LONGEST_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (not data or len(self._rest) > LONGEST_MESSAGE):
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._on_line(line[: self._longest].decode(errors="replace").rstrip("\r"))
        if not data:
            self.stop()

    def stop(self) -> None:
        if not self.ended.done():
            self._loop.remove_reader(self._descriptor)
            self.ended.set_result(None)


_PATIENCE = 60.0

# Ask pip for the options that "pip install" would use here, so that its own rules about files, sections and variables
# apply, including its default index.
_QUESTION = """
import json, sys
sys.path.insert(0, sys.argv[1])
import pip
from pip._internal.commands import create_command
from pip._internal.models.index import PyPI
options, _ = create_command("install").parse_args([])
wanted = ("index_url", "extra_index_urls", "no_index", "find_links", "proxy", "trusted_hosts", "cert", "client_cert",
          "timeout", "retries", "constraints", "prefer_binary", "pre")
told = {name: getattr(options, name) for name in wanted}
told["no_binary"] = sorted(options.format_control.no_binary)
told["only_binary"] = sorted(options.format_control.only_binary)
told.update(version=pip.__version__, default_index=PyPI.simple_url, default_files="https://" + PyPI.file_storage_domain)
print(json.dumps(told))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipConfiguration:
    """Settings that choose package sources and versions. The destination is never taken from here."""

    version: str
    index_url: str
    default_index: str
    """Index that pip uses when none is configured."""
    default_files: str
    """File host of that index."""
    extra_index_urls: tuple[str, ...] = ()
    no_index: bool = False
    find_links: tuple[str, ...] = ()
    proxy: str = ""
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    timeout: float = 15.0
    retries: int = 5
    constraints: tuple[str, ...] = ()
    prefer_binary: bool = False
    pre: bool = False
    no_binary: tuple[str, ...] = ()
    only_binary: tuple[str, ...] = ()


def find_pip(kept_in: Path) -> Path:
    """Return the folder of a standalone ``pip`` package: a copy of the host's, or of the interpreter's bundled one.

    Copied once per version. pip restarts itself from its own folder and reads files beside it, which the guard would
    refuse among the host's packages.
    """
    spec = importlib.util.find_spec("pip")
    if spec is not None and spec.origin is not None:
        source = Path(spec.origin).parent
        version = _version_of(source)
        return _kept(kept_in / f"pip-{version}", lambda to: shutil.copytree(source, to / "pip"))
    archives = _bundled()
    if not archives:
        why = f"run {INTERPRETER} -m ensurepip, or install pip beside this distribution"
        raise InstallFailed(f"pip is missing: {why}")
    return _kept(kept_in / archives[0].stem, lambda to: _unpack(archives[0], to))


def _kept(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return the package in a folder, created atomically, because other processes may create it at the same time."""
    if not (folder / "pip" / "__init__.py").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as unfinished:
            made = Path(unfinished, folder.name)
            made.mkdir()
            make(made)
            try:
                made.rename(folder)
            except OSError:
                if not (folder / "pip" / "__init__.py").is_file():  # no other process was faster
                    raise
    return folder / "pip"


def _unpack(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    # Later installations cannot write there, and each would compile it again.
    compileall.compile_dir(folder, quiet=2)


def _version_of(package: Path) -> str:
    found = re.search(r'__version__ = "([\w.]+)"', (package / "__init__.py").read_text("utf-8"))
    return found[1] if found else "unknown"


async def read_configuration(starter: WorkerStarter, pip: Path) -> PipConfiguration:
    """Ask pip for its configuration. An unexpected answer is an error, never replaced by a guess."""
    command = [INTERPRETER, "-I", "-c", _QUESTION, str(pip.parent)]
    try:
        told = json.loads(await output_of(starter, command, host_environment(), _PATIENCE))
        fields: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in told.items()}
        return PipConfiguration(**fields)
    except InstallFailed as error:
        raise InstallFailed(f"the configuration of pip could not be read: {error}", lines=error.lines) from error
    except (OSError, ValueError, TypeError) as error:
        raise InstallFailed(f"the configuration of pip in {pip} could not be read: {error}") from error


def _bundled() -> list[Path]:
    """Return the pip archives that come with the interpreter, newest first."""
    places = [Path(sysconfig.get_path("stdlib"), "ensurepip", "_bundled")]
    if elsewhere := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        places.insert(0, Path(elsewhere))
    return sorted((file for place in places for file in place.glob("pip-*.whl")), reverse=True)


_WEB = ("http", "https")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# "/", a top-level folder, and the index itself: the parent of a shallower index may contain anything.
_LEAST_DEPTH = 3


def package_rules(configuration: PipConfiguration) -> tuple[AccessRule, ...]:
    """Return the rules that pip needs beyond the environment itself: receive from its hosts, read its local folders.

    Scheme, host and port are fixed. Links in an index may lead to other hosts: the file host of the default index is
    known; for another index the extension declares them, or they are configured as trusted hosts.
    """
    found: dict[AccessRule, None] = {}
    for place in _places(configuration):
        found[_rule_for(place)] = None
    for host in configuration.trusted_hosts:
        for scheme in _WEB:
            found[_network(Operation.RECEIVE, f"{scheme}://{host}")] = None
    for proxy in _proxies(configuration):
        found[_network(Operation.CONNECT, _origin(proxy))] = None
    for file in (configuration.cert, configuration.client_cert, *_certificates().values(), *configuration.constraints):
        if file:
            found[_rule_for(file)] = None
    return tuple(found)


def pip_variables(configuration: PipConfiguration) -> dict[str, str]:
    """Return the complete configuration as pip's variables, because pip in the guard reads no file of the host."""
    listed = {
        "PIP_EXTRA_INDEX_URL": configuration.extra_index_urls,
        "PIP_FIND_LINKS": tuple(map(_as_url, configuration.find_links)),
        "PIP_TRUSTED_HOST": configuration.trusted_hosts,
        "PIP_CONSTRAINT": tuple(map(_as_url, configuration.constraints)),
        "PIP_NO_BINARY": configuration.no_binary,
        "PIP_ONLY_BINARY": configuration.only_binary,
    }
    single = {
        "PIP_INDEX_URL": configuration.index_url,
        "PIP_PROXY": configuration.proxy,
        "PIP_CERT": configuration.cert or "",
        "PIP_CLIENT_CERT": configuration.client_cert or "",
        "PIP_DEFAULT_TIMEOUT": f"{configuration.timeout:g}",
        "PIP_RETRIES": str(configuration.retries),
        "PIP_NO_INDEX": "1" if configuration.no_index else "",
        "PIP_PREFER_BINARY": "1" if configuration.prefer_binary else "",
        "PIP_PRE": "1" if configuration.pre else "",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_NO_COLOR": "1",
        "PIP_KEYRING_PROVIDER": "disabled",
    }
    made = {name: " ".join(values) for name, values in listed.items()}
    kinds = (*_WEB, "all", "no")
    proxies = {f"{scheme}_proxy": url for scheme, url in _given_proxies().items() if scheme in kinds}
    return {name: value for name, value in {**made, **single, **proxies, **_certificates()}.items() if value}


def _certificates() -> dict[str, str]:
    """Return the variables of the host that name its certificates."""
    return {name: value for name in _CERTIFICATES if (value := host_environment().get(name))}


def _places(configuration: PipConfiguration) -> Iterator[str]:
    yield from configuration.find_links
    if configuration.no_index:
        return
    yield configuration.index_url
    yield from configuration.extra_index_urls
    default = urlsplit(configuration.default_index).hostname
    if default in {urlsplit(url).hostname for url in (configuration.index_url, *configuration.extra_index_urls)}:
        yield configuration.default_files


def _rule_for(place: str) -> AccessRule:
    parts = urlsplit(place)
    if parts.scheme in _WEB:
        return _network(Operation.RECEIVE, _origin(place))
    if parts.scheme == "file":
        return _read(_local_index(unquote(parts.path)))
    if "://" in place:
        raise InstallFailed(f"pip is configured with an unsupported location: {parts.scheme}://{parts.hostname}")
    return _read(place)


def _read(path: str) -> AccessRule:
    absolute = str(Path(path).expanduser().absolute())
    normal = normalise_target(ResourceType.FILESYSTEM, absolute)
    return AccessRule(ResourceType.FILESYSTEM, Operation.READ, absolute, normal)


def _local_index(path: str) -> str:
    """Return the readable folder of a local index: pages in a folder named simple link to files beside that folder."""
    folder = Path(path)
    enough = len(folder.parts) > _LEAST_DEPTH
    return str(folder.parent) if folder.name == "simple" and enough else path


def _network(operation: Operation, target: str) -> AccessRule:
    try:
        return AccessRule(ResourceType.NETWORK, operation, target, normalise_target(ResourceType.NETWORK, target))
    except InvalidInputError as error:
        raise InstallFailed(f"pip is configured with an invalid host: {error}") from error


def _origin(url: str) -> str:
    """Return scheme, host and port, without the password, which is never part of a rule."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _as_url(place: str) -> str:
    """Return a path as a URL, because pip's variables separate list items with spaces."""
    if "://" in place:
        return place
    return "file://" + quote(str(Path(place).expanduser().absolute()))


def _proxies(configuration: PipConfiguration) -> Iterator[str]:
    found = [configuration.proxy] if configuration.proxy else []
    found += [url for scheme, url in _given_proxies().items() if scheme in ("http", "https", "all")]
    for url in found:
        yield url if "://" in url else f"http://{url}"


def _given_proxies() -> dict[str, str]:
    """Return the proxies of the host's environment by scheme, like urllib: names in lower case take precedence."""
    given = host_environment().items()
    found = {name.lower()[:-6]: value for name, value in given if name.lower().endswith("_proxy")}
    found |= {name.lower()[:-6]: value for name, value in given if name.endswith("_proxy")}
    return {scheme: value for scheme, value in found.items() if value}
