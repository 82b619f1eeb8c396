"""Explanation of failed imports: the package that failed, the denied access, and the fix.

It runs inside the guard, next to the raised error, and returns plain text.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import SandboxDenied

from .loading import PACKAGE
from .outcomes import DENIED, FAILED, VALUE, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from .outcomes import Outcome

_OWN = frozenset({PACKAGE, "democrai_sandbox", "__main__"})
_LONGEST_CHAIN = 20
_MOST_FILES = 2000
_LONGEST_NAME = 200


def capture_import(function: Callable[..., None], /, *args: Any) -> Outcome:
    """Return the outcome of an import like ``capture``; a failure names the package in which it happened."""
    try:
        function(*args)
    except BaseException as error:  # noqa: BLE001 - an extension must not end its host
        outcome = describe(_trimmed(error))
        try:
            return _explained(outcome, error)
        except BaseException:  # noqa: BLE001 - objects of the extension may raise anything when read
            return outcome
    return (VALUE, None)


def _explained(outcome: Outcome, error: BaseException) -> Outcome:
    packages = _packages(error)
    if outcome[0] == DENIED and packages:
        kind, name, facts = outcome
        return (kind, name, {**facts, "package": packages[-1]})
    if outcome[0] == FAILED:
        return (*outcome[:4], "\n".join(_advice(error, packages)))
    return outcome


def _trimmed(error: BaseException) -> BaseException:
    """Remove the frames of the runtime, which are the same for every import, from a traceback."""
    with suppress(BaseException):  # likewise
        BaseException.with_traceback(error, _own_trace(error.__traceback__))
    return error


def _own_trace(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and not str(trace.tb_frame.f_globals.get("__name__")).startswith(f"{PACKAGE}."):
        trace = trace.tb_next
    return trace


def _packages(error: BaseException) -> list[str]:
    """Return the packages that were being imported, the innermost last; empty for the extension's own code."""
    names: list[object] = []
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name == "<module>":
            names.append(frame.f_globals.get("__name__"))
        trace = trace.tb_next
    if isinstance(error, ImportError):
        names.append(error.name)
    found: list[str] = []
    for name in names:
        root = name.partition(".")[0][:_LONGEST_NAME] if type(name) is str else ""
        if root and root not in _OWN and root not in sys.stdlib_module_names and root not in found[-1:]:
            found.append(root)
    return found


def _advice(error: BaseException, packages: list[str]) -> Iterator[str]:
    """Yield the package that failed, and the fix."""
    denial = next((one for one in _chain(error) if isinstance(one, SandboxDenied)), None)
    if packages:
        by = f", which {packages[-2]!r} imports," if len(packages) > 1 else ""
        yield f"The package {packages[-1]!r}{by} could not be imported."
        if denial is None:
            yield _fix(error, packages[-1])
    if denial is not None:
        yield "An access was denied before that:"
        yield denial.diagnostics()


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that caused an error, the nearest first."""
    found = error.__cause__ or error.__context__
    for _ in range(_LONGEST_CHAIN):
        if found is None:
            return
        yield found
        found = found.__cause__ or found.__context__


def _fix(error: BaseException, package: str) -> str:
    where = f"the Python environment that runs the extension ({sys.prefix})"
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return f"It is not installed: install it into {where}."
    path = error.path if isinstance(error, ImportError) and type(error.path) is str else ""
    if path.endswith(".so"):
        return f"Its native module {path} is damaged, or was built for another Python: reinstall it in {where}."
    folder = os.path.dirname(path) if path else ""  # noqa: PTH120 - a text
    foreign = next(_built_for_others(folder), "") if folder else ""
    if foreign:
        return (
            f"Its native module {foreign} was built for another Python than this one ({EXTENSION_SUFFIXES[0]}): "
            f"reinstall it in {where}."
        )
    return f"Its own code failed. If it is not installed completely, reinstall it in {where}."


def _built_for_others(folder: str) -> Iterator[str]:
    """Yield the native modules of a folder that lack a file for this interpreter."""
    files = [name for name in os.listdir(folder)[:_MOST_FILES] if name.endswith(".so")]  # noqa: PTH208 - texts
    loadable = {name.partition(".")[0] for name in files if name[name.index(".") :] in EXTENSION_SUFFIXES}
    yield from sorted(name for name in files if name.partition(".")[0] not in loadable)
