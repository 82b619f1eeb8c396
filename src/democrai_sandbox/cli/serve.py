"""``democrai-sandbox serve``, ``config`` and ``helper``: run the host or the privileged helper, and show settings."""

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
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

from democrai_sandbox.errors import CommandMisused, CommandRefused

from .connection import configuration
from .output import Exit, Mood, visible
from .terminal import give_up

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from democrai_sandbox.kernel.egress.inspection import FoundChain, FoundHelper
    from democrai_sandbox.kernel.helper.install_files import Installable

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
        spent = getattr(record, "milliseconds", None)
        took = "" if spent is None else f" {spent} ms"
        line = f"{at} {record.levelname.lower():<7} {visible(record.getMessage())}{took}"
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
        # ASCII only: characters from extensions cannot change the appearance of a line.
        return json.dumps(line, default=str)


def run_serve(options: argparse.Namespace, _: CommandOutput) -> int:
    """Serve until a signal, with the log on standard error.

    Slow imports are here, where an interrupt does not print a traceback.
    """
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
    """Write to standard output, because a password must not be in a log; raise ``OSError`` if it is closed."""
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

    every = shown_values(configuration(options))
    found = [each for each in every if not (options.given and each.origin.source == DEFAULT)]
    values = [
        {"name": each.name, "pointer": each.pointer, "value": each.value, "origin": each.origin.source}
        for each in found
    ]
    if not output.data("config.show/1", {"values": values}):
        shown = 3 if options.origin else 2
        rows = [(each.name, _text(each.value), each.origin.source)[:shown] for each in found]
        output.table(("SETTING", "VALUE", "ORIGIN")[:shown], rows)
    return Exit.OK


def run_check(options: argparse.Namespace, output: CommandOutput) -> int:
    """Load the configuration, which raises an error with all problems, and report success."""
    loaded = configuration(options)
    file = loaded.settings.config_file
    variables = sorted({each.source for each in loaded.origins.values() if each.source.startswith("DEMOCRAI_")})
    if not output.data("config.check/1", {"ok": True, "file": file, "variables": variables}):
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


_HELPER_MOODS = {"answers": Mood.OK, "silent": Mood.BAD}


def run_helper(options: argparse.Namespace, output: CommandOutput) -> int:
    """Replace this process by the helper, the program that sudo and polkit permit."""
    from democrai_sandbox.kernel.egress.helper_process import elevation  # noqa: PLC0415 - takes its time
    from democrai_sandbox.kernel.helper.protocol import helper_command  # noqa: PLC0415

    words = [*elevation().prefix, *helper_command(), *_told(options)]
    output.progress("")
    os.execv(words[0], words)  # noqa: S606 - without a shell, on purpose


def _told(options: argparse.Namespace) -> list[str]:
    from democrai_sandbox.kernel.settings import policy_path, socket_path  # noqa: PLC0415 - takes its time

    pid = _number("--parent-pid", options.parent_pid)
    socket, policy, seconds = options.socket, options.policy_file, options.refresh_seconds
    if socket is None or policy is None or seconds is None:
        settings = configuration(options).settings
        socket = socket or socket_path(settings.os.helper_socket, settings.state_dir, pid)
        policy = policy or policy_path(settings.os.policy_file, settings.data_dir, pid)
        seconds = seconds if seconds is not None else str(settings.os.refresh_seconds)
    told = ["--socket", socket, "--policy-file", policy, "--refresh-seconds", seconds, "--parent-pid", str(pid)]
    return [*told, "--debug"] if options.debug else told


def run_status(options: argparse.Namespace, output: CommandOutput) -> int:
    """List running helpers and their allowlists."""
    from democrai_sandbox.kernel.egress.inspection import list_chains, list_helpers  # noqa: PLC0415 - takes its time

    settings = configuration(options).settings
    found = list_helpers(settings.os, data_dir=settings.data_dir, state_dir=settings.state_dir)
    rules = list_chains() if os.geteuid() == 0 else None
    works = all(each.answers and _in_force(each, rules) for each in found)
    is_well = works and (bool(found) or not settings.os.enabled)
    helpers = [
        {**each._asdict(), "endpoints": each.endpoints and [one._asdict() for one in each.endpoints]} for each in found
    ]
    chains = None if rules is None else [rule._asdict() for rule in rules]
    if output.data("helper.status/1", {"ok": is_well, "helpers": helpers, "chains": chains}):
        return Exit.OK if is_well else Exit.FAILED
    rows = (
        (
            each.application or "-",
            "answers" if each.answers else "silent",
            "?" if each.endpoints is None else len(each.endpoints),
            _rules(each, rules),
            each.socket,
        )
        for each in found
    )
    output.table(("APPLICATION", "HELPER", "ENDPOINTS", "RULES", "SOCKET"), rows, _HELPER_MOODS)
    for each in found:
        if not each.answers:
            output.say(visible(f"{each.application}: {each.why}"), Mood.WARNING)
    for chain in rules or ():
        if chain.is_left:
            output.say(f"{chain.family}: {chain.name} is left over from an ended process; the next helper removes it")
    if not found:
        more = "" if settings.os.enabled else ", which does not enable it"
        output.say(f"no helper runs for this configuration{more}")
    return Exit.OK if is_well else Exit.FAILED


def _in_force(each: FoundHelper, rules: Iterable[FoundChain] | None) -> bool:
    if rules is None or not each.application:
        return True  # unknown
    return any(rule.application == each.application and rule.in_force for rule in rules)


def _rules(each: FoundHelper, rules: Iterable[FoundChain] | None) -> str:
    if rules is None:
        return "visible to root only"
    own = [rule for rule in rules if rule.application == each.application and rule.in_force]
    return ", ".join(f"{rule.family} {rule.rules}" for rule in own) or "none"


def run_apply(options: argparse.Namespace, output: CommandOutput) -> int:
    """Print the packet filter rules of a policy file."""
    from democrai_sandbox.kernel.egress.inspection import dry_run  # noqa: PLC0415 - takes its time

    output.progress("resolving names")
    found = dry_run(options.file, _number("--parent-pid", options.parent_pid))
    content = {
        "digest": found.policy.digest,
        "endpoints": [one._asdict() for one in found.policy.endpoints],
        "transactions": [each._asdict() for each in found.transactions],
        "unresolved": list(found.unresolved),
        "withheld": list(found.withheld),
    }
    if output.data("helper.apply/1", content):
        return Exit.OK
    for each in found.transactions:
        output.line(f"# {each.program} --noflush", Mood.FAINT)
        output.line("\n".join(map(visible, each.text.rstrip("\n").split("\n"))))
    for names, why in (
        (found.unresolved, "does not resolve now"),
        (found.withheld, "resolves to this machine or a link-local address"),
    ):
        for name in names:
            output.say(visible(f"{name} {why}: no rule is made for it"), Mood.WARNING)
    return Exit.OK


def _print_rule(schema: str, options: argparse.Namespace, output: CommandOutput) -> int:
    """Print the rule for sudo or pkexec."""
    from democrai_sandbox.kernel.helper.install_files import polkit_file, sudoers_file  # noqa: PLC0415 - takes its time

    make = {"helper.sudoers/1": sudoers_file, "helper.polkit/1": polkit_file}[schema]
    return _printed(output, schema, lambda: make(_user(options.user)))


run_sudoers = partial(_print_rule, "helper.sudoers/1")
run_polkit = partial(_print_rule, "helper.polkit/1")


def run_systemd(options: argparse.Namespace, output: CommandOutput) -> int:
    """Print the unit for a service, with the paths of the configuration."""
    from democrai_sandbox.host.config.keys import DEFAULT  # noqa: PLC0415 - takes its time
    from democrai_sandbox.kernel.helper.install_files import ServicePaths, systemd_file  # noqa: PLC0415

    state, data = _folder("--state-dir", options.state_dir), _folder("--data-dir", options.data_dir)
    seconds = None if options.refresh_seconds is None else _number("--refresh-seconds", options.refresh_seconds)
    loaded = configuration(options)
    settings = loaded.settings
    if data is None:
        moved = state is not None and loaded.origins["/data_dir"].source == DEFAULT
        data = f"{state}/data" if moved else settings.data_dir
    paths = ServicePaths(state or settings.state_dir, data, settings.os.helper_socket, settings.os.policy_file)
    if not paths.has_socket_per_process:
        raise CommandRefused(
            f"sandbox.os.helper_socket is {settings.os.helper_socket!a}, the same for every process",
            fix="end it with {pid}.sock, or remove the key: each process has a separate helper",
        )
    chosen = settings.os.refresh_seconds if seconds is None else seconds
    return _printed(output, "helper.systemd/1", lambda: systemd_file(paths, chosen))


def _printed(output: CommandOutput, schema: str, make: Any) -> int:
    """Print a file; warn and exit with 1 if installing it would be dangerous."""
    try:
        made: Installable = make()
    except ValueError as error:
        raise CommandRefused(str(error), fix="install Python and this package at such a path") from None
    if not output.data(schema, {"text": made.text, "warnings": list(made.warnings)}):
        output.line(made.text.rstrip("\n"))
    for warning in made.warnings:
        output.say(visible(warning), Mood.WARNING)
    return Exit.FAILED if made.warnings else Exit.OK


def _user(name: str | None) -> str:
    import pwd  # noqa: PLC0415 - seldom needed

    if name is None and os.geteuid() == 0:
        raise CommandMisused("root does not need a rule", fix="add --user with the user of the application")
    try:
        return pwd.getpwuid(os.geteuid()).pw_name if name is None else pwd.getpwnam(name).pw_name
    except (KeyError, ValueError):
        raise CommandMisused(f"user {name!a} does not exist on this machine", fix="create the user first") from None


def _folder(option: str, text: str | None) -> str | None:
    if text is None:
        return None
    if not text.startswith("/") or not text.isprintable():
        raise CommandMisused(f"{option} is not an absolute path: {text!a}", fix="give a path that begins with /")
    return text.rstrip("/")


def _number(option: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 11):  # noqa: PLR2004 - more is nothing of ours
        raise CommandMisused(f"{option} is not a number: {text!a}", fix="give decimal digits")
    return int(text)
