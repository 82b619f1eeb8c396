"""Configuration, node, token and database of a command, and lists of the API."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import stat
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlencode, urlsplit

from democrai_sandbox.cli.arguments.options import TOKEN_FILE, TOKEN_VARIABLE, URL_VARIABLE
from democrai_sandbox.errors import CommandMisused, CommandRefused, NodeRefused, NodeUnreachable

if TYPE_CHECKING:
    import argparse
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from democrai_sandbox.access.store import SqlStore
    from democrai_sandbox.host.config import Loaded
    from democrai_sandbox.host.settings import HostSettings

    from .output import CommandOutput, Mood


class TimedAnswer(http.client.HTTPResponse):
    """HTTP response that raises ``TimeoutError`` after its deadline, or after a pause that is too long."""

    def __init__(self, sock: socket.socket, *rest: Any, longest: float, **named: Any) -> None:
        """Read from a socket, whose timeout is the longest pause."""
        super().__init__(sock, *rest, **named)
        timed = _TimedReader(sock, self.fp.detach(), longest)
        self.fp = io.BufferedReader(timed)
        self.prolong = timed.prolong


class _TimedReader(io.RawIOBase):
    """Reader of a socket with a deadline."""

    def __init__(self, sock: socket.socket, stream: io.RawIOBase, longest: float) -> None:
        self._sock = sock
        self._stream = stream
        self._longest = longest
        self._pause = sock.gettimeout() or longest
        self.prolong()

    def prolong(self) -> None:
        """Restart the deadline."""
        self._until = monotonic() + self._longest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(min(left, self._pause))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


_BASE = "/api/v1"
_LARGEST = 64 * 1024 * 1024
_AT_ONCE = 64 * 1024
_LONGEST_LINE = 16 * 1024 * 1024
_LINES = frozenset({"application/x-ndjson", "text/csv"})
_MARK = "X-Request-Id"
"""Header in every answer of a node, and rarely in answers of proxies and other programs."""
_PAGE = 200
_MOST_PAGES = 5000
_FINE, _REFUSED = range(200, 300), 400


class NodeClient:
    """Client of one node with a token. A refusal raises ``NodeRefused``, a missing answer ``NodeUnreachable``.

    It uses the standard library only, and has a deadline also for slow senders.
    """

    patience = 30.0
    """Timeout in seconds between two parts of an answer."""
    longest = 120.0
    """Timeout in seconds for a whole answer, or for each line of a text."""

    def __init__(self, url: str, source: str = "--url", *, token: str) -> None:
        self.url = url.rstrip("/")
        self._source = source
        self._token = token
        self._place = _place(self.url, source)
        self.has_answered = False

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Send a GET. Empty parameters are omitted, lists are repeated."""
        return self._asked("GET", path + _query(query))

    def post(self, path: str, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a POST."""
        return self._asked("POST", path, content or {})

    def patch(self, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Send a PATCH."""
        return self._asked("PATCH", path, content)

    def delete(self, path: str) -> dict[str, Any]:
        """Send a DELETE; return the removed object."""
        return self._asked("DELETE", path)

    def items(self, path: str, most: int = 0, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield a list page by page, up to a limit."""
        after, left = "", most
        for _ in range(_MOST_PAGES):
            limit = min(left, _PAGE) if most else _PAGE
            found = self.get(path, **query, after=after, limit=limit)
            yield from found["items"]
            before, after, left = after, found["next"], left - limit
            if not after or (most and left <= 0):
                return
            if after == before or not found["items"]:
                break
        raise ValueError("the list does not end")

    def lines(self, path: str, **query: Any) -> Iterator[bytes]:
        """Yield the lines of a text answer as they arrive, with their line ends."""
        with self._answer("GET", path + _query(query)) as answer, self._reaching():
            if answer.headers.get_content_type() not in _LINES:
                raise self._no_node()
            yield from _lines(answer)

    def _asked(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with self._answer(method, path, content) as answer, self._reaching():
            return self._object(answer)

    @contextmanager
    def _answer(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> Iterator[TimedAnswer]:
        headers = {"Accept": "application/json", "Connection": "close"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        body = None if content is None else json.dumps(content)
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            with self._reaching():
                connection.request(method, f"{self._place.path}{_BASE}{path}", body, headers)
                answer = cast("TimedAnswer", connection.getresponse())
                if _MARK not in answer.headers or not (answer.status in _FINE or answer.status >= _REFUSED):
                    raise self._no_node()
                if answer.status >= _REFUSED:
                    raise NodeRefused(answer.status, self._object(answer))
            yield answer
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._place.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._place.hostname or "", self._place.port, timeout=self.patience)
        connection.response_class = partial(TimedAnswer, longest=self.longest)  # type: ignore[assignment] # it makes one
        return connection

    def _object(self, answer: http.client.HTTPResponse) -> dict[str, Any]:
        body = answer.read(_LARGEST + 1)
        if len(body) <= _LARGEST:
            _must_be_whole(answer)
        try:
            found = json.loads(body) if len(body) <= _LARGEST else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._no_node()
        self.has_answered = True
        return found

    def misread(self, error: Exception) -> NodeUnreachable:
        """Return the error for an unexpected answer, from another version or another program."""
        return NodeUnreachable(
            f"{self.url} does not answer like a node of this version: {type(error).__name__}: {error} "
            f"(that address is from {self._source})",
            fix="use the command line of the node's version, or name another node with --url",
        )

    def _no_node(self) -> NodeUnreachable:
        return NodeUnreachable(
            f"the program at {self.url} is not a node (that address is from {self._source})",
            fix="name another node with --url",
        )

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Raise ``NodeUnreachable`` with the reason for every connection error."""
        try:
            yield
        except NodeRefused:
            raise
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise NodeUnreachable(
                f"{self.url} does not answer as a node: {_reason(error)} (that address is from {self._source})",
                fix="start it, or name another node with --url",
            ) from None


def below(*parts: str) -> str:
    """Return a path of the API, with quoted parts."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def _lines(answer: TimedAnswer) -> Iterator[bytes]:
    """Split an answer into lines. ``readline`` would accept a truncated answer."""
    begun: list[bytes] = []  # parts of an incomplete line, joined once
    while part := answer.read1(_AT_ONCE):
        *whole, left = part.split(b"\n")
        if whole:
            whole[0] = b"".join((*begun, whole[0]))
            begun = []
        begun.append(left)
        if sum(map(len, begun)) > _LONGEST_LINE:
            raise http.client.LineTooLong("line")
        for line in whole:
            yield line + b"\n"
            answer.prolong()
    _must_be_whole(answer)
    if left := b"".join(begun):
        yield left


def _must_be_whole(answer: http.client.HTTPResponse) -> None:
    if answer.length:  # announced, but missing
        raise http.client.IncompleteRead(b"", answer.length)


def _reason(error: Exception) -> str:
    """Return the reason of a connection error, without data from the other side."""
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, http.client.IncompleteRead | http.client.RemoteDisconnected):
        return "the connection ended in the middle of an answer"
    if isinstance(error, http.client.HTTPException | UnicodeError):
        return "the answer is not valid HTTP"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _query(query: Mapping[str, Any]) -> str:
    given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def _place(url: str, source: str) -> Any:
    """Parse an address; refuse one that would send the token unencrypted."""
    try:
        place = urlsplit(url)
        _ = place.port
    except ValueError as error:
        shown = url.rpartition("@")[2]  # the part before the host may be a password
        what = f"{source}: {shown!r} is not a valid address: {error}"
        raise CommandMisused(what, fix="write http://host:port") from None
    host = place.hostname or ""
    is_more = place.query or place.fragment or place.username is not None
    if place.scheme not in {"http", "https"} or not host or is_more:
        # The part before the host may be a password.
        shown = f"{place.scheme}://***@{host}" if place.username is not None else url
        what = f"{source}: {shown!r} is not the address of a node"
        raise CommandMisused(what, fix="write http://host:port or https://host")
    if place.scheme == "http" and not _is_here(host):
        what = f"{source}: {url!r} is not encrypted, so others could read the token"
        raise CommandMisused(what, fix="use https, or a tunnel")
    return place


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


_LONGEST = 4096
_TOKEN = re.compile(r"[!-~]{1,1000}")
"""Characters allowed in a header."""


def configuration(options: argparse.Namespace) -> Loaded:
    """Load the configuration of a command."""
    from democrai_sandbox.host.config import load  # noqa: PLC0415 - takes its time, and not every command needs it

    return load(options.config)


def node(options: argparse.Namespace) -> NodeClient:
    """Return the node. Needs no configuration if address and token are given."""
    address, token = _address(options), _token(options)
    if not token:
        with suppress(NodeRefused):
            NodeClient(*address, token="").get("/status")  # a missing node is the better error
        raise CommandMisused(
            "the token for the node is missing",
            fix=f"run democrai-sandbox admin token create --save, or set {TOKEN_VARIABLE}",
        )
    asked = NodeClient(*address, token=token)
    options.asked = asked  # for the error output
    return asked


def _address(options: argparse.Namespace) -> tuple[str, str]:
    """Return the address of the node and its origin."""
    if options.url:
        return str(options.url), "--url"
    if given := os.environ.get(URL_VARIABLE):
        return given, URL_VARIABLE
    loaded = configuration(options)
    server = loaded.settings.server
    running = _running(loaded.settings.state_dir)
    if running:
        return running, f"the address file in {loaded.settings.state_dir}"
    if server.public_url:
        return server.public_url, "server.public_url"
    if not server.port:
        raise NodeUnreachable(
            f"no node runs on {loaded.settings.state_dir}, and server.port is 0",
            fix="start one with democrai-sandbox serve, or name one with --url",
        )
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"http://{host}:{server.port}", "server.host and server.port"


def _running(state_dir: str) -> str:
    """Return the address of the node that uses a state folder, or an empty text."""
    from democrai_sandbox.host.directories import ADDRESS_FILE, read_node_address  # noqa: PLC0415 - as above

    try:
        found = read_node_address(state_dir)
    except OSError as error:
        raise _unreadable(f"{state_dir}/{ADDRESS_FILE}", error) from None
    if found is None:
        return ""
    if not found.is_held:
        raise NodeUnreachable(
            f"the node that wrote {state_dir}/{ADDRESS_FILE} ended without removing it",
            fix="start it again with democrai-sandbox serve, or name another one with --url",
        )
    return found.url


def _token(options: argparse.Namespace) -> str:
    """Return the token, or an empty text if none is found."""
    if options.token_file:
        token, source = _kept(options.token_file, waits=True), options.token_file
        if not token:
            raise CommandRefused(f"{source} contains no token", fix="write a token into its first line")
    elif token := os.environ.get(TOKEN_VARIABLE, ""):
        source = TOKEN_VARIABLE
    else:
        source = f"{configuration(options).settings.state_dir}/{TOKEN_FILE}"
        token = _kept(source)
    if token and not _TOKEN.fullmatch(token):
        raise CommandRefused(f"{source} does not contain a valid token", fix="copy the whole token, and nothing else")
    return token


def _kept(file: str, *, waits: bool = False) -> str:
    """Return the token of a file that other users cannot read, or an empty text.

    ``waits`` allows a pipe, such as the process substitution of a shell; not for the default file.
    """
    try:
        with open(file, "rb", opener=None if waits else open_without_waiting) as text:
            mode = os.fstat(text.fileno()).st_mode
            if not waits and not stat.S_ISREG(mode):
                raise CommandRefused(f"{file} is not a regular file", fix=f"remove it, or set {TOKEN_VARIABLE}")
            if stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO):
                raise CommandRefused(f"other users can read {file}", fix=f"chmod 600 {file}, and create a new token")
            return text.readline(_LONGEST).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _unreadable(file, error) from None


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a pipe; for ``opener=``."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _unreadable(file: str, error: OSError) -> CommandRefused:
    fix = f"run this as its owner, or use --url and {TOKEN_VARIABLE}"
    return CommandRefused(f"{file} cannot be read: {error.strerror}", fix=fix)


def given_filters(options: argparse.Namespace) -> dict[str, Any]:
    """Return the filters as parameters of the API."""
    return {name: getattr(options, name) for name in options.filters}


def list_items(
    node: NodeClient, path: str, options: argparse.Namespace, **query: Any
) -> tuple[list[dict[str, Any]], bool]:
    """Return the items of a list up to the limit, and whether more exist."""
    found = list(islice(node.items(path, most=options.limit + 1, **given_filters(options), **query), options.limit + 1))
    return found[: options.limit], len(found) > options.limit


def show_items(
    output: CommandOutput,
    schema: str,
    found: tuple[list[dict[str, Any]], bool],
    heads: Sequence[str],
    row: Callable[[dict[str, Any]], Sequence[object]],
    *,
    moods: Mapping[str, Mood] | None = None,
    empty: str,
) -> None:
    """Show the items, each as a row, and a note if more exist."""
    items, has_more = found
    if output.data(schema, {"items": items, "has_more": has_more}):
        return
    output.table(heads, map(row, items), moods, empty=empty)
    if has_more:
        output.say(f"more than {len(items)} exist: use --limit or filters")


_HIDDEN = "***"


def database_url(options: argparse.Namespace) -> str:
    """Return the URL of the database after checking its owner. It may contain a password."""
    from democrai_sandbox.access.store.database_location import is_secret  # noqa: PLC0415 - takes its time

    if options.database is None:
        url = configuration(options).settings.database
    else:
        url = options.database
        if _parsed(url).password == _HIDDEN:  # copied from an error, where passwords are hidden
            url = _parsed(url)._replace(password=None).render_as_string()
        parsed = _parsed(url)
        if parsed.password is not None or any(is_secret(name) for name in parsed.query):
            raise CommandMisused(
                "all users of this machine can read a password in a command line",
                fix="remove it, and set PGPASSWORD, use ~/.pgpass, or name a configuration with --config",
            )
    check_owner(url)
    return str(url)


def shown_database(url: str) -> str:
    """Return the URL without its password."""
    from democrai_sandbox.access.store.database_location import shown_url  # noqa: PLC0415 - takes its time

    return shown_url(_parsed(url))


def database_file(url: str) -> str:
    """Return the file of a SQLite database, or an empty text for a server."""
    parsed = _parsed(url)
    return str(parsed.database) if parsed.get_backend_name() == "sqlite" else ""


def check_owner(url: str) -> None:
    """Refuse a file of another user, whose node could not use the files that SQLite creates beside it.

    Also refuse a file that is not a database: opening it would change its permissions.
    """
    from democrai_sandbox.access.store.database_location import is_database  # noqa: PLC0415 - takes its time

    file = database_file(url)
    if not file:
        return
    try:
        with open(file, "rb", opener=open_without_waiting) as stream:
            owner, link = os.fstat(stream.fileno()).st_uid, os.lstat(file).st_uid
            is_one = is_database(stream)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CommandRefused(
            f"the database {file} cannot be read: {error.strerror}", fix="run this as the owner of the file"
        ) from None
    if link not in {0, owner}:  # the owner of the link chooses the file that is opened
        raise CommandRefused(f"the link {file} belongs to {user_name(link)}", fix="name the target of the link")
    if owner != os.geteuid():
        name = user_name(owner)
        raise CommandRefused(f"the database {file} belongs to {name}", fix=f"run this as that user: sudo -u {name} ...")
    if not is_one:
        raise CommandRefused(f"{file} is not a SQLite database", fix="name another file")


@contextmanager
def open_database(url: str, settings: HostSettings | None = None, *, create: bool = False) -> Iterator[SqlStore]:
    """Open the store without a node, or while one uses it. ``create`` creates a missing database and its folders."""
    from democrai_sandbox.access.store import open_store  # noqa: PLC0415 - takes its time

    check_owner(url)
    file = database_file(url)
    if create and settings is not None:
        from democrai_sandbox.host.directories import prepare_directories  # noqa: PLC0415 - takes its time

        prepare_directories(settings)
    elif file and not os.path.exists(file):  # noqa: PTH110 - a text
        raise CommandRefused(
            f"the database {file} does not exist yet",
            fix="start democrai-sandbox serve once, or create the first administrator: democrai-sandbox admin create",
        )
    store = open_store(url, create=create)
    try:
        yield store
    finally:
        store.close()


def _parsed(url: str) -> Any:
    from democrai_sandbox.access.store.database_location import parse_url  # noqa: PLC0415 - takes its time
    from democrai_sandbox.errors import InvalidInputError  # noqa: PLC0415

    try:
        return parse_url(url, needs_folder=False)
    except InvalidInputError as error:
        raise CommandMisused("; ".join(each.message for each in error.problems), fix="see --help") from None


def user_name(uid: int) -> str:
    """Return the name of a user, or the number of an unknown one."""
    import pwd  # noqa: PLC0415 - seldom needed

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"
