"""Settings of a host for its extensions."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from democrai_sandbox.manifests.limits import NO_LIMITS, Limits, limit_problems
from democrai_sandbox.policy import InvalidInputError, Problem, Subject, SubjectKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from democrai_sandbox.manifests import McpServer

_ISOLATED = (SubjectKind.MODULE, SubjectKind.TOOL)
_WHY = dict.fromkeys(SubjectKind, "it runs with its caller") | {
    SubjectKind.ENGINE: "an engine always runs in a separate process",
    SubjectKind.EXTRACTOR: "an extractor always runs in a separate process",
    SubjectKind.AGENT: "it runs with its module",
    SubjectKind.PIPELINE: "it runs with its module",
    SubjectKind.TASK: "it runs with its module",
}


class McpApproval(StrEnum):
    """Condition under which the runtime contacts a registered MCP server."""

    REGISTERED = "registered"
    """An enabled entry of the registry is enough, unless the endpoint was denied to ``mcp:<name>``."""
    REQUIRED = "required"
    """The endpoint must also be approved for ``mcp:<name>``."""


class Isolation(StrEnum):
    """Process in which the code of a subject runs."""

    AUTO = "auto"
    """The default: in a separate worker process, which the kernel confines wherever the machine supports it."""
    IN_PROCESS = "in_process"
    """In the host's process, under its guard, for extensions that the host trusts."""
    PROCESS = "process"
    """In a separate worker process, also for a single tool of a module."""


DEFAULT_ISOLATION = "default"
"""Key of the isolation of all subjects without an entry."""


_MEGABYTE = 1024 * 1024
_LEAST_MEMORY_MB = 1024
_PART_OF_MEMORY = 4
_MOST_PROCESSES = 4096


def default_worker_limits() -> Limits:
    """Return the default limits of a worker, such as a quarter of the machine's memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MEGABYTE
    return Limits(
        memory_mb=max(memory // _PART_OF_MEMORY, _LEAST_MEMORY_MB),
        file_size_mb=4096,
        open_files=4096,
        processes=default_processes(),
        temp_mb=4096,
    )


def default_processes() -> int:
    """Return the limit of processes: at most half of this user's own, so that the host can always start some.

    For root, each worker and program has a limit of its own, where the kernel enforces it.
    """
    if os.geteuid() == 0:
        return _MOST_PROCESSES
    own, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return _MOST_PROCESSES if own == resource.RLIM_INFINITY else max(1, min(_MOST_PROCESSES, own // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionDefaults:
    """Folders of extensions and of their data, isolation, limits and timeouts, for a host and its runtime."""

    data_dir: str
    """Folder with one subfolder per subject, such as ``modules/reports``; subjects cannot read each other's."""
    modules_path: str | None = None
    engines_path: str | None = None
    extractors_path: str | None = None
    extra_module_dirs: tuple[str, ...] = ()
    extra_engine_dirs: tuple[str, ...] = ()
    extra_extractor_dirs: tuple[str, ...] = ()
    isolation: Mapping[str, str] = field(default_factory=dict)
    """Isolation of modules and tools: ``default``, or a subject such as ``module:reports``, and an ``Isolation``."""
    limits: Limits = NO_LIMITS
    """Resource limits of each extension process; a lower limit in its manifest takes precedence."""
    call_timeout: float = 30.0
    """Seconds for a render, an action or a command."""
    load_timeout: float = 30.0
    """Seconds for importing an extension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings(ExtensionDefaults):
    """Settings of a runtime."""

    native_packages: tuple[str, ...] = ()
    """Installed packages that may use ctypes and cffi, and so run native code for a subject."""
    worker_idle_seconds: float = 600.0
    """Seconds after its last call until the worker of a module is stopped; the next call starts it again."""
    warm_workers: int = 32
    """Maximum number of idle workers of modules; those that were idle for longest are stopped earlier."""
    threads_per_subject: int = 8
    """Maximum concurrent calls of synchronous functions per subject; further calls wait."""
    capture_output: bool = True
    """Store the output of extensions for the host to read, instead of printing it."""

    mcp_approval: McpApproval = McpApproval.REGISTERED
    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict, repr=False)
    """Registered MCP servers by name, in addition to those in the database. A URL may contain a secret."""
    configurations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """Settings of engines and extractors, by subject such as ``engine:whisper``; they replace stored ones."""

    worker_limits: Limits = field(default_factory=default_worker_limits)
    """Limits of each worker that neither ``limits`` nor its manifest sets."""

    def __post_init__(self) -> None:
        """Reject invalid settings, and report all problems together."""
        problems = [*self._path_problems(), *self._isolation_problems(), *limit_problems(self.limits)]
        problems += [
            Problem(f"/{name}", "expected a positive number of seconds")
            for name in ("call_timeout", "load_timeout", "worker_idle_seconds")
            if not 0 < getattr(self, name) < float("inf")
        ]
        if problems:
            raise InvalidInputError(problems)

    def folders(self, kind: str) -> tuple[str, ...]:
        """Return the folders that contain extensions of a kind, the main one first."""
        main = getattr(self, f"{kind}s_path")
        return (*((main,) if main else ()), *getattr(self, f"extra_{kind}_dirs"))

    def data_of(self, subject: Subject) -> str:
        """Return the data folder of a subject."""
        return str(Path(self.data_dir, f"{subject.kind}s", subject.name))

    def is_isolated(self, subject: Subject) -> bool:
        """Return whether a module or a tool runs in a worker. Without an entry, a tool runs with its module."""
        default = self.isolation.get(DEFAULT_ISOLATION, Isolation.AUTO)
        given = self.isolation.get(str(subject), Isolation.IN_PROCESS if subject.kind is SubjectKind.TOOL else default)
        return given != Isolation.IN_PROCESS

    @property
    def protected(self) -> tuple[str, ...]:
        """Paths that no subject reaches unless they are its own: data and code of all extensions."""
        kinds = ("module", "engine", "extractor")
        return (self.data_dir, *(folder for kind in kinds for folder in self.folders(kind)))

    def _path_problems(self) -> Iterator[Problem]:
        if not Path(self.data_dir).is_absolute():
            yield Problem("/data_dir", f"expected an absolute path, got {self.data_dir!r}")
        for kind in ("module", "engine", "extractor"):
            for folder in self.folders(kind):
                if not Path(folder).is_absolute():
                    yield Problem(f"/{kind}s_path", f"expected an absolute path, got {folder!r}")

    def _isolation_problems(self) -> Iterator[Problem]:
        for label, how in self.isolation.items():
            if label != DEFAULT_ISOLATION:
                yield from _subject_problems(label)
            if how not in tuple(Isolation):
                yield Problem(f"/isolation/{label}", f"expected one of {', '.join(Isolation)}, got {how!r}")


def _subject_problems(label: str) -> Iterator[Problem]:
    try:
        kind = Subject.parse(label).kind
    except InvalidInputError as error:
        yield from (Problem(f"/isolation/{label}", item.message) for item in error.problems)
    else:
        if kind not in _ISOLATED:
            yield Problem(f"/isolation/{label}", f"isolation is for modules and tools, not for {kind}s: {_WHY[kind]}")
