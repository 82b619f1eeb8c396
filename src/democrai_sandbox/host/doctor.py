"""Check what this machine can enforce for a configuration, before anything is served.

Nothing is changed: tests that have effects run in separate processes, and folders, files and databases are only read.
"""

from __future__ import annotations

import errno
import os
import platform
import pwd
import socket
import stat
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox import __version__
from democrai_sandbox.access.keyring import KeyRing
from democrai_sandbox.access.store.database_location import parse_url, shown_url
from democrai_sandbox.access.store.schema import HEAD, peek_schema
from democrai_sandbox.errors import ConfigInvalid, KernelLayerError, SpawnFailed, StateUnusable, StoreUnavailable
from democrai_sandbox.host.config.display import without_password
from democrai_sandbox.kernel.application import Kernel, unenforced_here
from democrai_sandbox.kernel.capability_probe import NOT_TESTED_FIX, probe_in_child_process
from democrai_sandbox.kernel.helper.protocol import LONGEST_SOCKET_PATH
from democrai_sandbox.kernel.settings import socket_path
from democrai_sandbox.kernel.spawn import SpawnServer
from democrai_sandbox.manifests import FindingCode, Severity, lint
from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.runtime.confinement.confiner import unenforced_limits
from democrai_sandbox.runtime.extensions.registry import discover

from .directories import database_file, landlock_application_paths, read_node_address, unreachable_reason
from .extension_admin import check_configured, key_of
from .settings import ExtensionSettings
from .status_report import LayerReport, ReportArea, ReportLine, ReportLineState, control_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from democrai_sandbox.kernel.selftest import SelfTestAttempt
    from democrai_sandbox.kernel.status import ControlStatus
    from democrai_sandbox.manifests import Finding
    from democrai_sandbox.runtime.extensions.registry import RegisteredExtension, Registry

    from .settings import HostSettings

_OLDEST, _NEWEST = (3, 11), (3, 13)
_GUARD_TIMEOUT = 60.0
_GUARD_PROGRAM = """
from democrai_sandbox.guard import patched_entries
print(sum(is_patched for *_, is_patched in patched_entries()))
"""
_CONSOLE = ("fastapi", "uvicorn", "jinja2")


def _interpreter() -> ReportLine:
    name = f"{platform.python_implementation()} {platform.python_version()}"
    line = ReportLine("python", "Interpreter", ReportArea.HOST, summary=f"{name}, {sys.executable}")
    if platform.python_implementation() != "CPython" or not _OLDEST <= sys.version_info[:2] <= _NEWEST:
        oldest, newest = (".".join(map(str, version)) for version in (_OLDEST, _NEWEST))
        fix = f"use CPython {oldest} to {newest}, which the guard supports"
        return replace(line, state=ReportLineState.UNSUPPORTED, fix=fix)
    return line


def _console() -> ReportLine:
    missing = [name for name in _CONSOLE if find_spec(name) is None]
    line = ReportLine("console_packages", "Console packages", ReportArea.HOST)
    if missing:
        summary = f"{', '.join(missing)} cannot be imported, so serve cannot start"
        return line.off(summary, "pip install 'democrai-sandbox[console]'")
    return line.ok("installed")


def _guard() -> ReportLine:
    """Start the guard in a separate process: it tests itself, and refuses an unsupported interpreter."""
    line = ReportLine("guard", "Python guard", ReportArea.GUARD)
    fix = "reinstall democrai-sandbox for this interpreter; it has a compiled part"
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter with a fixed program
            [sys.executable, "-P", "-c", _GUARD_PROGRAM],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GUARD_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return line.off(f"it could not be tested: {error}", fix)
    if done.returncode or not done.stdout.strip().isdecimal():
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return line.off(f"it cannot start: {said}", fix)
    return line.ok(f"works: {done.stdout.strip()} guarded functions, every canary was stopped")


_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_LONGEST_PID = 4194304


def place_lines(settings: HostSettings) -> Iterator[ReportLine]:
    """Check the folders, the key file and the path of the helper's socket."""
    yield _user_line(settings)
    yield _folder_line("state_dir", "State folder", settings.state_dir)
    yield _folder_line("data_dir", "Data folder", settings.data_dir)
    yield _key_file_line(settings.key_file)
    if settings.os.enabled:
        yield _helper_socket_line(settings)


def _limits_root(settings: HostSettings) -> bool:
    """Return whether the spawn server limits the processes of root: start one, which measures it."""
    if os.geteuid() != 0 or not settings.os.wants_spawn_server:
        return False
    try:
        server = SpawnServer.start()
    except SpawnFailed:
        return False
    server.stop()
    return server.limits_processes


def _user_line(settings: HostSettings) -> ReportLine:
    """Return the user of this check: other users may have other rights."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = f"#{os.geteuid()}"
    means = "directly" if os.geteuid() == 0 else "only through sudo, pkexec or systemd"
    summary = f"{name}: can use packet filters and cgroups {means}"
    if missing := unenforced_limits(processes=_limits_root(settings)):
        summary += f"; limits of extensions that the kernel does not enforce: {', '.join(missing)}"
    details = {"uid": os.geteuid(), "unenforced_limits": missing}
    return ReportLine("user", "User", ReportArea.HOST, summary=summary, details=details)


def _folder_line(name: str, title: str, path: str) -> ReportLine:
    line = ReportLine(name, title, ReportArea.HOST, summary=path)
    place = Path(path)
    try:
        found = place.stat()
    except FileNotFoundError:
        return _missing_folder_line(line, place)
    except OSError as error:
        return line.off(f"{path} cannot be read: {error.strerror}", "use another folder")
    problem = _folder_problem(path, found)
    return line if problem is None else line.off(*problem)


def _folder_problem(path: str, found: os.stat_result) -> tuple[str, str] | None:
    """Return the problem of a folder, and the fix."""
    if not stat.S_ISDIR(found.st_mode):
        return f"{path} is not a folder", "use another path, or move the file"
    if found.st_uid != os.geteuid():
        fix = f"run this as user {found.st_uid}, or use another folder"
        return f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}", fix
    if found.st_mode & _OTHERS_WRITE:
        return f"other users can write to {path} (mode {stat.S_IMODE(found.st_mode):04o})", f"chmod 700 {path}"
    if not os.access(path, os.W_OK | os.X_OK):
        return f"{path} is not writable", "make it writable for this user, or use another folder"
    return None


def _missing_folder_line(line: ReportLine, place: Path) -> ReportLine:
    above = next(parent for parent in place.parents if parent.exists())
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return line.ok(f"{place}, created at the first start")
    return line.off(
        f"{place} does not exist and cannot be created in {above}",
        "create it for the user of the host, or use another folder",
    )


def _key_file_line(path: str) -> ReportLine:
    line = ReportLine("keys", "Key file", ReportArea.HOST)
    try:
        ring = KeyRing.read(path)
    except FileNotFoundError:
        return line.ok(f"{path}, created at the first start")
    except OSError as error:
        return line.off(f"{path} cannot be read: {error.strerror}", "make it readable for the user of the host")
    except InvalidInputError as error:
        return line.off(" ".join(str(error).split()), "restore the key file that was created with the database")
    number = len(ring.keys)
    return replace(line, summary=f"{path}, {number} key{'' if number == 1 else 's'}", details={"keys": number})


def _helper_socket_line(settings: HostSettings) -> ReportLine:
    """Check the length of the helper's socket path, with the longest possible process id."""
    path = socket_path(settings.os.helper_socket, settings.state_dir, _LONGEST_PID)
    line = ReportLine("helper_socket", "Helper's socket", ReportArea.HOST, summary=path)
    size = len(os.fsencode(path))
    if size > LONGEST_SOCKET_PATH:
        summary = f"{path} has {size} bytes; the limit for a socket path is {LONGEST_SOCKET_PATH}"
        return line.off(summary, "set sandbox.os.helper_socket to a shorter path, e.g. below /run")
    return line


_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def service_lines(settings: HostSettings) -> Iterator[ReportLine]:
    """Test the database, the events and the address."""
    yield _database_line(settings)
    yield _events(settings)
    yield _address_line(settings)


def _database_line(settings: HostSettings) -> ReportLine:
    shown = shown_url(parse_url(settings.database, needs_folder=False))
    line = ReportLine("store", "Database", ReportArea.DECISIONS, details={"url": shown, "needed": HEAD})
    file = database_file(settings)
    if file and not _may_exist(file):
        return line.ok(f"{shown}, created at the first start")
    try:
        found = peek_schema(settings.database)
    except StoreUnavailable as error:
        fix = "check that it exists and that this user may use it, or set database.url"
        return line.off(f"{shown} does not answer: {unreachable_reason(error)}", fix)
    except StateUnusable as error:
        return line.off(error.what, error.fix)
    if HEAD in found.nodes:
        return line.ok(f"{shown}, schema {found.version}")
    if not found.version:
        return line.ok(f"{shown}, empty; its tables are created at the first start")
    summary = f"{shown} has the schema {found.version}; {HEAD} is needed"
    fix = "run democrai-sandbox db upgrade after a backup, or install the version that created it"
    return line.off(summary, fix)


def _may_exist(file: str) -> bool:
    """Return whether a file exists, or may exist: then opening it shows the reason."""
    try:
        Path(file).stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _events(settings: HostSettings) -> ReportLine:
    kind = settings.stream_type
    line = ReportLine("events", "Events", ReportArea.DECISIONS, details={"type": kind})
    if kind == "redis":
        return _redis(line, str(settings.stream["url"]))
    if kind == "ipc":
        return _ipc(line, Path(str(settings.stream["folder"])))
    return line.ok(f"{kind}: within one process")


def _redis(line: ReportLine, url: str) -> ReportLine:
    from democrai_sandbox.access.events.redis_stream import why_unreachable  # noqa: PLC0415 - redis is an extra

    shown = without_password(url)
    if reason := without_password(why_unreachable(url)):
        fix = "check that Redis is running and reachable, or set network.stream"
        return line.off(f"{shown} does not answer: {reason}", fix)
    return line.ok(f"{shown} answers")


def _ipc(line: ReportLine, folder: Path) -> ReportLine:
    try:
        mode = folder.stat().st_mode
    except OSError as error:
        return line.off(f"ipc: {folder}: {error.strerror}", f"mkdir -m 700 {folder}")
    if mode & _OTHERS:
        summary = f"ipc: other users can enter {folder} (mode {stat.S_IMODE(mode):04o})"
        return line.off(summary, f"chmod 700 {folder}")
    return line.ok(f"ipc: uses {folder}")


def _address_line(settings: HostSettings) -> ReportLine:
    host, port = settings.server.host, settings.server.port
    line = ReportLine("address", "Address", ReportArea.HOST, details={"port": port})
    if not port:
        return line.ok(f"{host}, any free port")
    problem = _bind_error(host, port)
    if problem is None:
        return line.ok(f"{host}:{port} is free")
    running = _running_node(settings.state_dir)
    if problem.errno == errno.EADDRINUSE and running:
        return line.ok(f"{host}:{port} is used by the running node, {running}")
    fix = "set server.port to another one (0 selects a free one), or stop the process that listens there"
    return line.off(f"{host}:{port} is not available: {problem.strerror}", fix)


def _bind_error(host: str, port: int) -> OSError | None:
    """Bind the address briefly without listening; return the error, if any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((host, port))
    except OSError as error:
        return error
    return None


def _running_node(state_dir: str) -> str:
    with suppress(OSError):
        found = read_node_address(state_dir)
        return found.url if found is not None and found.is_held else ""
    return ""


_MOST_NAMED = 5


def extension_lines(settings: HostSettings) -> Iterator[ReportLine]:
    """Read all manifests."""
    runtime = settings.for_runtime()
    registry = discover(runtime)
    found = tuple(registry)
    modules = [one for one in found if one.kind.value == "module"]
    here = [str(one.subject) for one in modules if not runtime.is_isolated(one.subject)]
    findings = {
        str(one.subject): lint(one.manifest, in_process=str(one.subject) in here) if one.manifest else ()
        for one in found
    }
    yield _readable_extensions(found)
    yield _isolated(len(modules), here, unenforced_here(settings.os), wanted=settings.os.wants_spawn_server)
    yield _reviewed(findings)
    yield _native(findings)
    if settings.extensions != ExtensionSettings():
        yield _configured(settings.extensions, registry)


def _configured(settings: ExtensionSettings, registry: Registry) -> ReportLine:
    """Check the settings of extensions that a start needs: names, URLs and key files."""
    counts = {
        "models": len(settings.models),
        "mcp_servers": len(settings.mcp_servers),
        "engines": len(settings.engines),
        "extractors": len(settings.extractors),
    }
    line = ReportLine("configured", "Extension settings", ReportArea.RUNTIME, details=counts)
    try:
        check_configured(settings, registry)
        for name, model in settings.models.items():
            key_of(name, model)
    except ConfigInvalid as error:
        summary = "; ".join(map(str, error.problems))
        return line.off(summary, "correct the section extensions of the configuration")
    except StateUnusable as error:
        return line.off(error.what, error.fix)
    given = ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in counts.items() if number)
    return line.ok(given or "approval mode")


def _readable_extensions(found: tuple[RegisteredExtension, ...]) -> ReportLine:
    kinds = Counter(each.kind.value for each in found)
    counted = ", ".join(f"{number} {kind}{'' if number == 1 else 's'}" for kind, number in kinds.items()) or "none"
    broken = [str(each.subject) for each in found if each.is_broken]
    line = ReportLine("extensions", "Extensions", ReportArea.RUNTIME, details={**kinds, "broken": broken})
    if not broken:
        return line.ok(counted)
    fix = "run democrai-sandbox manifest check, which shows each problem with its line"
    return line.degraded(f"{counted}; cannot run: {_named(broken)}", fix)


def _isolated(count: int, here: list[str], unenforced: tuple[str, ...], *, wanted: bool) -> ReportLine:
    """Report where modules run, and whether the kernel would confine their workers."""
    details = {"modules": count, "in_process": here, "unenforced": unenforced}
    line = ReportLine("isolation", "Isolation", ReportArea.RUNTIME, details=details)
    told = f"{count - len(here)} of {count} modules run in workers" if count else "no modules"
    if here:
        told += f"; in the application's process by sandbox.isolation: {_named(here)}"
    if not unenforced:
        return line.ok(f"{told}; the kernel confines workers")
    summary = f"{told}; not enforced for workers: {'; '.join(unenforced)}"
    return line.degraded(summary) if wanted else line.ok(summary)


def _reviewed(findings: dict[str, tuple[Finding, ...]]) -> ReportLine:
    """Count declarations that are broader than usual. They are advice, not errors."""
    warned = [name for name, found in findings.items() if any(one.severity is Severity.WARNING for one in found)]
    advice = f"run democrai-sandbox manifest lint: it has findings for {_named(warned)}" if warned else "no findings"
    return ReportLine("lint", "Manifests", ReportArea.RUNTIME, summary=advice, details={"warned": warned})


def _native(findings: dict[str, tuple[Finding, ...]]) -> ReportLine:
    """Warn of native packages, which the guard cannot check, in extensions that only the guard restricts."""
    native = {
        subject: [one.message for one in found if one.code is FindingCode.NATIVE_ACCESS]
        for subject, found in findings.items()
    }
    affected = {subject: messages for subject, messages in native.items() if messages}
    line = ReportLine("native", "Native packages", ReportArea.RUNTIME, details=affected)
    if not affected:
        return line.ok("none used in process")
    return line.ok(
        "warning: native packages in this process open files or connections that the guard cannot check; "
        f"run these in a worker (sandbox.isolation): {_named(list(affected))}"
    )


def _named(subjects: list[str]) -> str:
    more = f" and {len(subjects) - _MOST_NAMED} more" if subjects[_MOST_NAMED:] else ""
    return ", ".join(subjects[:_MOST_NAMED]) + more


def examine(
    settings: HostSettings, *, egress: bool = False, tell: Callable[[str], None] = lambda _: None
) -> LayerReport:
    """Run all checks. With ``egress``, start the helper briefly with an empty allowlist.

    ``tell`` is called with the name of each check, because some take seconds.
    """
    tell("the interpreter and the guard")
    lines = [_interpreter(), _console(), _guard()]
    tell("folders and files")
    lines += place_lines(settings)
    tell("the database, events and the address")
    lines += service_lines(settings)
    tell("the kernel layer")
    controls, attempts = _kernel_lines(settings, egress=egress)
    tell("extensions")
    lines += (*controls, *extension_lines(settings))
    lines.sort(key=lambda line: tuple(ReportArea).index(line.area))
    return LayerReport(datetime.now(UTC), __version__, "", os.getpid(), tuple(lines), attempts)


def _kernel_lines(
    settings: HostSettings, *, egress: bool
) -> tuple[tuple[ReportLine, ...], tuple[SelfTestAttempt, ...]]:
    # Created only to read the wanted controls; it is neither prepared nor confined.
    wanted = frozenset(Kernel(settings.os, landlock_application_paths(settings)).wanted)
    try:
        found = probe_in_child_process(egress=egress, desktop=settings.os.desktop)
    except KernelLayerError as error:
        line = ReportLine("kernel", "Kernel layer", ReportArea.KERNEL, wanted=bool(wanted))
        return (line.off(error.what, error.fix),), ()
    return tuple(_line(control, wanted) for control in found.controls), found.attempts


def _line(control: ControlStatus, wanted: frozenset[str]) -> ReportLine:
    line = control_line(control, wanted=control.name in wanted)
    if control.fix == NOT_TESTED_FIX:
        # Without touching the machine's packet filter, only its availability is known.
        line = replace(line, state=ReportLineState.OK, fix="")
    elif line.state is ReportLineState.OK:
        line = line.ok("works (tested in a child process)")
    if line.state is ReportLineState.OK and not line.wanted:
        return line.ok(f"{line.summary}; not enabled in the configuration")
    return line
