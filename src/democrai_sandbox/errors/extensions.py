"""Errors of extensions, their installation, their tasks and their worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.policy import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.policy import Problem


class ExtensionUnknown(SandboxError, LookupError):
    """No such extension, action, command, task or method.

    Nothing ran. The text suggests the nearest name.
    """

    code = "extension_unknown"
    guidance = """
    Cause: The name is misspelled, the configuration does not name the folder, or the function has no decorator of the
    SDK.
    Fix: Correct the name. `democrai-sandbox extensions list` and `runtime.extensions` show all extensions.
    Example:
    POST /api/v1/modules/reprots/actions/show
    -> 404 {"code": "extension_unknown", "detail": "... did you mean 'reports'?", ...}
    See: extensions.md
    """


class ExtensionBroken(SandboxError, RuntimeError):
    """The extension cannot run.

    It was not loaded; other extensions work. The text lists every problem.
    """

    code = "extension_broken"
    guidance = """
    Cause: The manifest is invalid, the entry file is missing, the import failed or took too long, two extensions have
    the same name, or a tool declares more than its module.
    Fix: Fix the problems in the text and restart. `democrai-sandbox manifest check` finds those of the manifest.
    Example:
    manifest.json has "operation": "raed":
    -> ExtensionBroken: module reports: /access/0/operation: ... (did you mean 'read'?)
    See: extensions.md#broken-ones
    """


class ExtensionFailed(SandboxError, RuntimeError):
    """The code of the extension raised an error.

    ``kind`` is the class name, ``message`` the text and ``traceback`` the place. The exception object itself never
    leaves the guard.
    """

    code = "extension_failed"
    guidance = """
    Cause: A bug in the extension, or an argument that it does not accept.
    Fix: Read `diagnostics()`, which includes the traceback, and fix the extension.
    Example:
    @sdk.action("show")
    def show():
        return 1 / 0
    -> ExtensionFailed: ZeroDivisionError: division by zero
    See: modules.md
    """

    def __init__(self, message: str, *, kind: str = "", traceback: str = "", advice: str = "") -> None:
        super().__init__(f"{kind}: {message}" if kind else message)
        self.kind = kind
        self.message = message
        self.traceback = traceback
        self.advice = advice

    def diagnostics(self) -> str:
        """Return the text, the traceback and the advice."""
        return "\n".join(filter(None, (super().diagnostics(), self.traceback.rstrip(), self.advice)))


class LimitReached(ExtensionFailed):
    """A worker reached one of its resource limits in a call.

    ``limit`` is its name. The worker continues to run, unless the limit is processor time or the temp folder.
    """

    code = "extension_limit_reached"
    guidance = """
    Cause: The call needed more memory, larger files, more temp space, or more open files or threads than its worker
    may use.
    Fix: Let the code use less, or raise the limit under `limits` in the manifest; `sandbox.limits` of the host caps it.
    Example:
    data = bytearray(10**12)     # in an action
    -> LimitReached: module:reports reached its limit memory_mb of 2048: MemoryError
    See: manifests.md#limits
    """

    def __init__(self, label: str, limit: str, number: int, failure: ExtensionFailed) -> None:
        super().__init__(f"{label} reached its limit {limit} of {number}: {failure}", traceback=failure.traceback)
        self.kind = failure.kind
        self.limit = limit


class ResultInvalid(ExtensionFailed):
    """The extension returned a value that cannot cross the guard.

    The code ran to its end, so its effects remain. ``problems`` has the place of each value. The extension is at fault,
    not the caller.
    """

    code = "extension_result_invalid"
    guidance = """
    Cause: The result contains an object of a class, a set, a generator, an open file or a number that is not finite;
    has keys that are not strings, more than 64 levels or a million values; or is too large for a message.
    Fix: Return plain data, enums, dataclasses, named tuples, dates, times, UUIDs, decimals or paths. Write large data
    to a file and return its path.
    Example:
    @sdk.action("names")
    def names():
        return {"a", "b"}    # a set
    -> ResultInvalid: the result cannot be passed on: ...
    See: modules.md
    """

    def __init__(self, message: str, *, problems: Iterable[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> ResultInvalid:
        """Return the error for these problems."""
        found = tuple(problems)
        return cls(f"the result cannot be passed on: {'; '.join(map(str, found))}", problems=found)


class CallTimeout(SandboxError, TimeoutError):
    """A call into an extension exceeded its timeout.

    An async function was canceled. A plain function cannot be stopped: it continues under the guard in its thread, and
    its result is discarded.
    """

    code = "extension_timeout"
    guidance = """
    Cause: The call took longer than `call_timeout` of the settings, or than the `timeout` of its task.
    Fix: Move long work into a task. Run code that may hang in a worker, which can be killed.
    Example:
    @sdk.action("slow")
    async def slow():
        await asyncio.sleep(60)
    -> CallTimeout after 30 s
    See: tasks.md
    """


class NoRuntime(SandboxError, RuntimeError):
    """The SDK was used without a runtime.

    The process runs no extensions, so the call has no subject and no rights.
    """

    code = "extension_no_runtime"
    guidance = """
    Cause: A file of an extension was imported directly, for example by a test, and called the SDK.
    Fix: Run the extension with a host, or in tests with `sdk.testing`.
    Example:
    $ python -c 'import module; module.show()'
    -> NoRuntime: no runtime serves ... in this process
    See: testing.md
    """


class RuntimeServiceFailed(SandboxError, RuntimeError):
    """A service of the runtime failed while it worked for an extension.

    Nothing was denied. The extension gets no details; the log of the host has them.
    """

    code = "extension_service_failed"
    guidance = """
    Cause: An error in the host, or the runtime is not running yet or is shutting down.
    Fix: Read the log of the host, fix the failure there, and retry.
    Example:
    await sdk.tasks.start("import")      # while the host shuts down
    -> RuntimeServiceFailed: tasks are not served: the runtime is not running
    See: monitoring.md
    """


class NotInstalled(SandboxError, RuntimeError):
    """An engine or extractor is not installed.

    It has no environment for the requirements in its manifest, so it was not called.
    """

    code = "extension_not_installed"
    guidance = """
    Cause: It was never installed; or its requirements, local packages or interpreter changed since.
    Fix: Run `democrai-sandbox extensions install engine:NAME`, install it in the console, or set `install: true` under
    `extensions.engines`. An embedding application calls `runtime.engines.install(name)`.
    Example:
    The manifest of engine whisper now requires torch==2.5, and the engine is called:
    -> NotInstalled: engine:whisper is not installed; ...
    See: engines.md
    """


class InstallFailed(SandboxError, RuntimeError):
    """An environment could not be built.

    The previous environment, if any, stays in use. ``lines`` are the last lines of pip, ``denials`` the denials
    of the guard.
    """

    code = "extension_install_failed"
    guidance = """
    Cause: pip failed, or the guard refused an access: often a host or file that is declared for `runtime` but not for
    `install`.
    Fix: Fix the failure in `lines` and `denials`, then install again.
    Example:
    $ democrai-sandbox extensions install engine:whisper     # install declares no network access
    extension_install_failed: engine:whisper: ...
      refused: External URL is locked. (sandbox_network_denied:whisper:https://packages.example.com/simple)
    See: engines.md
    """

    def __init__(self, message: str, *, lines: tuple[str, ...] = (), denials: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.lines = lines
        self.denials = denials

    def diagnostics(self) -> str:
        """Return the message, the denials, and the last lines of pip."""
        parts = [super().diagnostics()]
        parts += [f"  refused: {denial}" for denial in self.denials]
        parts += [f"  {line}" for line in self.lines]
        return "\n".join(parts)


class InstallBusy(SandboxError, RuntimeError):
    """Another process installs the same extension.

    This installation did not start.
    """

    code = "extension_install_busy"
    guidance = """
    Cause: Two hosts share a data directory, or an earlier installation still runs.
    Fix: Wait for the other installation: all hosts use its result.
    Example:
    $ democrai-sandbox extensions install engine:whisper     # in two terminals
    extension_install_busy: engine:whisper is being installed
    See: engines.md
    """


class TaskUnknown(SandboxError, LookupError):
    """No task has this id, or none that the caller may see.

    A task of another module looks the same as a missing one.
    """

    code = "runtime_task_unknown"
    guidance = """
    Cause: The id is mistyped, belongs to another module, or its record was removed after 30 days.
    Fix: Use an id from `sdk.tasks.start(...)` or `sdk.tasks.listed()`.
    Example:
    GET /api/v1/tasks/01K9ZZZZZZZZZZZZZZZZZZZZZZ
    -> 404 {"code": "runtime_task_unknown", ...}
    See: tasks.md
    """


class TaskQueueFull(SandboxError, RuntimeError):
    """The task queue of the module is full.

    This task was not queued.
    """

    code = "runtime_task_queue_full"
    guidance = """
    Cause: Tasks start faster than they finish.
    Fix: Retry later, or do more work per task.
    Example:
    for row in a_million_rows:
        await sdk.tasks.start("import_row", {"row": row})
    -> TaskQueueFull: 100 tasks of module reports wait already
    See: tasks.md
    """


_LONGEST_LINE = 300


class WorkerFailed(SandboxError, RuntimeError):
    """A worker failed.

    Nothing was denied. It is unknown whether the call had an effect. ``output`` is the end of the worker's standard
    error.
    """

    code = "worker_failed"
    guidance = """
    Cause: The worker could not be started, was stopped, or sent a malformed message.
    Fix: Read `diagnostics()`. The next call starts a new worker.
    Example:
    A module in a worker is called while the host shuts down:
    -> WorkerFailed: worker_failed:module:reports: it was stopped
    See: modules.md
    """

    def __init__(self, label: str, why: str, *, output: str = "") -> None:
        super().__init__(label, why, output)
        self.label = label
        self.why = why
        self.output = output

    @property
    def parts(self) -> tuple[str, str]:
        """The arguments that rebuild the error across a guard or a process."""
        return self.label, self.why

    def __str__(self) -> str:
        return f"{self.code}:{self.label}: {self.why}"

    def before_ready(self) -> WorkerFailed:
        """Return the same error for a worker that ended before it was ready, with its last line of output."""
        last = next((line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "")
        said = f"; its last line was: {last[:_LONGEST_LINE]}" if last else ", without an error message"
        return type(self)(self.label, f"{self.why} before it was ready{said}", output=self.output)

    def diagnostics(self) -> str:
        """Return the line, followed by the end of the worker's standard error."""
        lines = (f"  | {line}" for line in self.output.splitlines())
        return "\n".join((str(self), *lines))


class WorkerCrashed(WorkerFailed):
    """A worker ended during a call.

    The text names the signal or the exit status. It is unknown whether the call had an effect.
    """

    code = "worker_crashed"
    guidance = """
    Cause: Native code crashed, the worker ran out of memory, or another program killed it.
    Fix: Read `diagnostics()`, fix the extension or raise its memory limit, and retry: the next call starts a new
    worker.
    Example:
    os.abort()               # in an action of a module that runs in a worker
    -> WorkerCrashed: worker_crashed:module:reports: it was ended by signal SIGABRT
    See: modules.md
    """


class WorkerTimeout(WorkerFailed, CallTimeout):
    """A call in a worker exceeded its timeout.

    The call was canceled. A worker that did not stop the call was killed.
    """

    code = "worker_timeout"
    guidance = """
    Cause: The call took longer than `call_timeout` of the settings, or than the `timeout` of its task.
    Fix: Move long work into a task, or raise `call_timeout`.
    Example:
    while True: pass         # in an action of a module that runs in a worker
    -> WorkerTimeout after 30 s, and the worker is killed
    See: tasks.md
    """


class WorkerBroken(WorkerFailed):
    """A worker failed to start several times in a row.

    Calls fail at once until the time in the text, then the next call starts a worker again.
    """

    code = "worker_broken"
    guidance = """
    Cause: The import of the extension ends the process or does not return, or its environment is damaged.
    Fix: Fix the extension, or install it again with `democrai-sandbox extensions install`.
    Example:
    sys.exit(1)              # at the top of the file of a module that runs in a worker
    -> WorkerBroken after a few calls
    See: modules.md
    """


class WorkerFlooded(WorkerFailed):
    """A worker sent too many unsolicited messages and was killed.

    The limit covers messages and bytes that the host did not ask for. Results and streams do not count. The next call
    starts a new worker.
    """

    code = "worker_flooded"
    guidance = """
    Cause: Code in the worker writes to the worker's socket, or calls the host from very many threads at once.
    Fix: Find the loop in the extension. The SDK waits for each answer of the host, so ordinary use stays below the
    limit.
    Example:
    A module in a worker finds the worker's socket and writes to it in a loop:
    -> WorkerFlooded
    See: modules.md
    """


class FrameError(SandboxError, ValueError):
    """A message on a worker's channel is malformed.

    Only code that implements a worker sees this; the host reports ``worker_failed``.
    """

    code = "worker_frame"
    guidance = """
    Cause: Another program or the extension wrote to the channel.
    Fix: Remove the code that writes to the channel. The runtime stops the worker.
    Example:
    os.write(3, b"hello")    # 3 is the channel of the worker
    -> the host raises worker_failed, with FrameError as the reason
    See: modules.md
    """
