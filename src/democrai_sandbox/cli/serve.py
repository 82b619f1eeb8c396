"""``democrai-sandbox serve`` and ``config``: run the reference host until a signal, and show its configuration."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
from asyncio import CancelledError
from datetime import UTC, datetime
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

from .connection import configuration
from .output import Exit, Mood, visible
from .terminal import give_up

if TYPE_CHECKING:
    import argparse

    from .output import CommandOutput

_OWN = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "color_message", "taskName"})
"""Attributes of every record; the others were passed as ``extra``."""
_QUIET = ("uvicorn", "sqlalchemy", "alembic", "asyncio", "httpx", "mcp")


class LogFormat(StrEnum):
    """Format of a line."""

    TEXT = "text"
    JSON = "json"


def set_up_logging(wanted: str | None = None) -> None:
    """Send the log of this process to standard error: text on a terminal, JSON otherwise, or the given format."""
    is_watched = sys.stderr is not None and sys.stderr.isatty()
    form = LogFormat(wanted) if wanted else LogFormat.TEXT if is_watched else LogFormat.JSON
    handler = _ErrorStreamHandler()
    handler.setFormatter(_JsonFormatter() if form is LogFormat.JSON else _TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_worth_telling)
    logging.getLogger("asyncio").addFilter(_RateLimit())
    from democrai_sandbox.kernel.flow_log import log_lines  # noqa: PLC0415 - takes its time

    log_lines()


def _is_worth_telling(record: logging.LogRecord) -> bool:
    """Drop records of HTTP requests that the stopping server cut off, which is not an error.

    Also drop advice about WebSockets, which are not served: any client could trigger it.
    """
    is_cut_off = bool(record.exc_info and isinstance(record.exc_info[1], CancelledError))
    return not is_cut_off and "WebSocket" not in str(record.msg)


class _RateLimit(logging.Filter):
    """Limit the rate of records: the event loop can repeat one warning thousands of times."""

    most, seconds = 20, 10.0

    def __init__(self) -> None:
        super().__init__()
        self._begun = -self.seconds
        self._told = self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = monotonic()
        if now - self._begun >= self.seconds:
            if self._left_out:
                record.msg, record.args = f"{record.getMessage()} (after {self._left_out} dropped records)", ()
            self._begun, self._told, self._left_out = now, 0, 0
        self._told += 1
        self._left_out += self._told > self.most
        return self._told <= self.most


class _ErrorStreamHandler(logging.StreamHandler[TextIO]):
    """Write to standard error, if it is open. Log records of an extension go to its captured output."""

    def __init__(self) -> None:
        from democrai_sandbox.guard import is_guarded  # noqa: PLC0415 - takes its time, and arms nothing yet

        super().__init__(sys.stderr or io.StringIO())
        self._is_nowhere = sys.stderr is None
        self._is_guarded = is_guarded

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_guarded():
            # Otherwise it could fill the disk and imitate records of the host.
            print(self.format(record), file=sys.stderr)  # noqa: T201 - there it is taken for the extension's output
        elif not self._is_nowhere:
            super().emit(record)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        line = f"{at} {record.levelname.lower():<7} {visible(record.getMessage())}{_took(record)}"
        if record.exc_info:
            trace = self.formatException(record.exc_info).splitlines()
            line = "\n".join((line, *(f"    {visible(part)}" for part in trace)))
        return line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(
            line, default=str
        )  # ASCII only: characters from extensions cannot change the appearance of a line


def _took(record: logging.LogRecord) -> str:
    spent = getattr(record, "milliseconds", None)
    return "" if spent is None else f" {spent} ms"


def run_serve(options: argparse.Namespace, _: CommandOutput) -> int:
    """Serve until a signal. Slow imports are here, where an interrupt does not print a traceback."""
    from democrai_sandbox.errors import HostRefused  # noqa: PLC0415 - see above

    set_up_logging(options.log_format)
    try:
        from democrai_sandbox.console import server  # noqa: PLC0415 - the packages of the extra may be missing
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("democrai_sandbox"):
            raise
        raise HostRefused(
            f"the package {error.name!r} is missing", fix="pip install 'democrai-sandbox[console]'"
        ) from None
    from democrai_sandbox.host import Sandbox  # noqa: PLC0415 - importing it arms the guard
    from democrai_sandbox.host.config import load  # noqa: PLC0415 - see above

    settings = load(options.config, environ=_environment()).settings
    server.await_services(settings)
    sandbox = Sandbox(settings)
    try:
        # After the kernel layer: the packet filter identifies a socket by the cgroup in which it was created.
        listener = server.bind(sandbox.settings.server)
    except BaseException:
        sandbox.abandon()
        raise

    lost = asyncio.run(server.serve(sandbox, listener, _write_message))
    return Exit.UNREACHABLE if lost else Exit.OK


def _environment() -> dict[str, str]:
    """Remove the configuration from the environment and return it: it can contain a password, and modules see it."""
    from democrai_sandbox.host.config.loader import PREFIX  # noqa: PLC0415 - see run

    environ = dict(os.environ)
    for name in environ:
        if name.startswith(PREFIX):
            del os.environ[name]
    return environ


def _write_message(line: str) -> None:
    """Write a message to standard output, because a password must not be in a log.

    Raise ``OSError`` if standard output is closed.
    """
    if sys.stdout is None:
        raise OSError("it is closed")
    try:
        print(line, flush=True)  # noqa: T201 - a command's answer
    except OSError:
        give_up(sys.stdout.fileno())
        raise


def run_show(options: argparse.Namespace, output: CommandOutput) -> int:
    """Print every value."""
    from democrai_sandbox.host.config.display import shown_values  # noqa: PLC0415
    from democrai_sandbox.host.config.keys import DEFAULT  # noqa: PLC0415 - takes its time

    found = [
        each for each in shown_values(configuration(options)) if not (options.given and each.origin.source == DEFAULT)
    ]
    if output.is_json:
        values = [
            {"name": each.name, "pointer": each.pointer, "value": each.value, "origin": each.origin.source}
            for each in found
        ]
        output.data("config.show/1", {"values": values})
    elif options.origin:
        output.table(
            ("SETTING", "VALUE", "ORIGIN"), ((each.name, _text(each.value), each.origin.source) for each in found)
        )
    else:
        output.table(("SETTING", "VALUE"), ((each.name, _text(each.value)) for each in found))
    return Exit.OK


def run_check(options: argparse.Namespace, output: CommandOutput) -> int:
    """Load the configuration, which raises an error with all problems, and report success."""
    loaded = configuration(options)
    file = loaded.settings.config_file
    variables = sorted({each.source for each in loaded.origins.values() if each.source.startswith("DEMOCRAI_")})
    if output.is_json:
        output.data("config.check/1", {"ok": True, "file": file, "variables": variables})
    else:
        named = [visible(file) if file else "the defaults", *map(visible, variables)]
        output.line(f"valid: {', '.join(named)}", Mood.OK)
    return Exit.OK


def _text(value: Any) -> str:
    """Return a value as in the file, a dash for None, and a list without brackets unless it is empty."""
    if value is None:
        return "-"
    if value in ([], {}):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
