"""Process of a script from its first frame on: configure the guard, then run the file inside it like Python does."""

from __future__ import annotations

import os
import sys
import traceback
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import SandboxDenied
from democrai_sandbox.guard import Guard, configure_guard, own_code, own_process
from democrai_sandbox.policy import Operation, ResourceType, is_at_or_below, rules_from_json
from democrai_sandbox.runtime.calls.access_recorder import recorded
from democrai_sandbox.runtime.extensions import importer

from .calls import WorkerCalls
from .host_client import HostClient, RemoteRecorder, WorkerSocket
from .main import Control, factory_of, first_message, is_confined, start_environment
from .process import NOBODY, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Callable


_LARGEST = 64 * 1024 * 1024
_FAILED, _INTERRUPTED = 1, 130


def settle_script(control: int, environment: str) -> tuple[Callable[..., int], tuple[Any, ...]]:
    """Set the process up for the parent at the other end of a descriptor; return the function that runs the script."""
    line = WorkerSocket(control, _LARGEST)
    spec, arguments = first_message(line)
    guard = _settled(spec, line)
    Control(line, HostClient(line), WorkerCalls()).start()  # ends the process when the parent is gone
    code = _compiled(spec.entry)
    sys.argv = [spec.entry, *arguments]
    # Only if the folder is readable, and only after the guard is configured: the guard treats all folders on the path
    # at that time as library code.
    beside = spec.folder if spec.tells_accesses or _may_read(spec.folder, spec.access) else ""
    return _run, (guard, code, (spec.entry, beside), environment)


def _may_read(folder: str, access: str) -> bool:
    wanted = (ResourceType.FILESYSTEM, Operation.READ)
    rules = (rule for rule in rules_from_json(access) if (rule.resource_type, rule.operation) == wanted)
    return any(is_at_or_below(folder, rule.normalized_target) for rule in rules)


def _settled(spec: WorkerSpec, line: WorkerSocket) -> Guard:
    importer.preload()
    own_process(confined=is_confined(spec))
    decider = recorded(None, line.send, spec.sensitive_imports) if spec.tells_accesses else None
    configure_guard(
        decider=decider,
        recorder=RemoteRecorder(line),
        protected_paths=spec.protected,
        sensitive_imports=spec.sensitive_imports,
        code_paths=spec.code_paths,
        read_only_paths=spec.read_only,
    )
    return factory_of(spec).guard(NOBODY)


def _compiled(file: str) -> CodeType:
    """Compile the file and mark it as the subject's code; report errors like Python does."""
    try:
        with open(file, "rb") as source:  # noqa: PTH123 - a text
            code = compile(source.read(), file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OSError) as error:
        sys.stderr.write("".join(traceback.format_exception_only(error)))
        sys.stderr.flush()
        os._exit(_FAILED)
    own_code(code)
    return code


def _run(guard: Guard, code: CodeType, places: tuple[str, str], environment: str) -> int:
    return guard.run(_carried_out, code, places, environment)


def _carried_out(code: CodeType, places: tuple[str, str], environment: str) -> int:
    """Run the script inside the guard and return its exit status."""
    try:
        start_environment(environment)
        module = sys.modules["__main__"] = ModuleType("__main__")
        module.__file__, beside = places
        sys.path[:0] = filter(None, [beside])
        exec(code, vars(module))  # noqa: S102 - running a script requires it
    except SystemExit as ending:
        return _status(ending.code)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - any exception is a failure of the script
        _tell(error)
        return _FAILED
    return 0


def _status(code: object) -> int:
    if code is None or type(code) is int:
        return (code or 0) & 0xFF
    sys.stderr.write(f"{code}\n")
    return _FAILED


def _tell(error: BaseException) -> None:
    """Print the error that ended the script, without our own frame; below a denial, print its diagnostics."""
    trace = error.__traceback__
    error.__traceback__ = None if trace is None else trace.tb_next
    traceback.print_exception(error)
    if isinstance(error, SandboxDenied):
        sys.stderr.write("\n" + error.diagnostics() + "\n")
