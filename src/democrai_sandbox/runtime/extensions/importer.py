"""Import of extension code under its guard: the functions that it declares, and reasons of failed imports."""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import SandboxDenied
from democrai_sandbox.guard import own_code
from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.runtime.calls.outcome import DENIED, FAILED, VALUE, Outcome, describe, know_errors
from democrai_sandbox.runtime.child_process import settle_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from democrai_sandbox.guard.interface import RawView

PACKAGE = "democrai_extensions"
SURFACES = ("render", "action", "command", "task", "method", "tool", "agent", "pipeline", "step")
_LONGEST_HINT = 300
_MOST_SURFACES = 1000
_LONGEST_NAME = 128


class Surface(NamedTuple):
    """A function that an extension declares for callers."""

    kind: str
    name: str
    options: dict[str, Any]
    function: FunctionType

    @property
    def is_async(self) -> bool:
        """Whether calling it returns a coroutine."""
        return bool(self.function.__code__.co_flags & inspect.CO_COROUTINE)

    @property
    def is_stream(self) -> bool:
        """Whether it yields its results one by one."""
        return bool(self.function.__code__.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR))


def described(surface: Surface) -> tuple[tuple[str, ...], str]:
    """Return the parameter names of a function and the first line of its documentation: texts of the extension."""
    code, text = surface.function.__code__, surface.function.__doc__
    # The extension controls the documentation: accept only a plain str.
    hint = text.strip().partition("\n")[0][:_LONGEST_HINT] if type(text) is str else ""
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return tuple(map(_encodable, named)), _encodable(hint)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class Declarations:
    """Collects the declarations of extensions during their import, each for itself only."""

    def __init__(self) -> None:
        self._open: dict[str, dict[tuple[str, str], Surface]] = {}

    def begin(self, label: str) -> None:
        """Accept declarations of a subject that is about to be imported."""
        self._open[label] = {}

    def end(self, label: str) -> tuple[Surface, ...]:
        """Return the declarations of a subject, and accept no more."""
        return tuple(self._open.pop(label, {}).values())

    def declare(self, view: RawView | None, kind: str, name: str, options: dict[str, Any], function: Any) -> None:
        """Register one declaration: the service behind the decorators of the SDK."""
        if view is None:
            return  # a plain import outside the runtime, such as a unit test
        taken = self._open.get(view.labels[-1])
        if taken is None:
            raise InvalidInputError.of(f"declare a {kind} while its file is imported, not later", pointer=f"/{kind}")
        if kind not in SURFACES:
            raise InvalidInputError.of(f"unknown kind {kind!r}; one of: {', '.join(SURFACES)}", pointer="/kind")
        if type(name) is not str or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise InvalidInputError.of(f"expected a name of at most {_LONGEST_NAME} characters", pointer=f"/{kind}")
        if type(function) is not FunctionType:
            raise InvalidInputError.of(f"expected a function, got {type(function).__name__}", pointer=f"/{kind}/{name}")
        if (kind, name) in taken:
            raise InvalidInputError.of(f"{kind} {name!r} is declared twice", pointer=f"/{kind}/{name}")
        if len(taken) >= _MOST_SURFACES:
            raise InvalidInputError.of(f"more than {_MOST_SURFACES} declarations", pointer=f"/{kind}/{name}")
        taken[kind, name] = Surface(kind, name, options, function)


def package_name(kind: str, name: str) -> str:
    """Return the package in which the code of an extension is imported."""
    safe = re.sub(r"[^A-Za-z0-9]", lambda match: f"_{ord(match[0]):x}_", name)
    return f"{PACKAGE}.{kind}.x_{safe}"


_prepared: set[str] = set()


def prepare(kind: str, name: str, folder: str) -> str:
    """Register the package of an extension with the import system, and return its name. Called by the host."""
    # First each time: a previously loaded extension may have inserted a finder, which would run in the guard of this
    # one. Compare by identity, so that no method of a foreign finder runs.
    sys.meta_path[:] = [_FINDER, *(finder for finder in sys.meta_path if finder is not _FINDER)]
    package = package_name(kind, name)
    parent, _, _ = package.rpartition(".")
    for outer in (PACKAGE, parent):
        sys.modules.setdefault(outer, _bare_package(outer, ()))
    if package in _prepared:
        forget(package)
    _prepared.add(package)
    sys.modules[package] = _bare_package(package, (folder,))
    return package


def forget(package: str) -> None:
    """Remove the modules of an extension before it is loaded again."""
    # Iterate over a copy: other threads may import at the same time.
    for name in [name for name in list(sys.modules) if name == package or name.startswith(package + ".")]:
        del sys.modules[name]


_preloaded = False


def preload() -> None:
    """Import the modules of the host that extensions need, and save the environment, before the first guard."""
    preload_modules()
    settle_environment()


def preload_modules() -> None:
    """Import the modules of the host that extensions need: inside a guard they would be the extension's.

    Import by name, because the SDK is a higher layer. The libraries are those that our code first needs inside a guard.
    """
    global _preloaded  # noqa: PLW0603 - settled once
    if _preloaded:  # by the template of this process
        return
    for name in ("democrai_sandbox.sdk", "asyncio", "http.client", "json", "ssl", "traceback"):
        importlib.import_module(name)
    know_errors()
    _preloaded = True


def import_entry(package: str, entry: str, folder: str | None = None) -> None:
    """Import the file of an extension that declares its surfaces. Runs under its guard.

    With ``folder`` the file is loaded from there directly, even if other code changed the import system.
    """
    stem, _ = os.path.splitext(entry)  # noqa: PTH122 - a guard may deny pathlib
    name = f"{package}.{stem.replace('/', '.')}"
    if folder is None or "/" in entry:
        importlib.import_module(name)
        return
    file = f"{folder}/{entry}"
    spec = importlib.machinery.ModuleSpec(name, loader := _ExtensionLoader(name, file), origin=file)
    spec.has_location = True
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    setattr(sys.modules[package], stem, module)


def _bare_package(name: str, path: Iterable[str]) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = list(path)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__package__ = name
    return module


class _ExtensionFinder:
    """Finds the files of extensions, only below their packages.

    An extension is a separate package, ``democrai_extensions.<kind>.<name>``, made of the files of its folder: relative
    imports work, and two extensions can have files of the same name. Bytecode caches are neither read nor written,
    because another program could have changed them.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of an extension's module; None for all others."""
        del target
        if not name.startswith(PACKAGE + ".") or path is None:
            return None
        tail = name.rpartition(".")[2]
        for folder in path:
            for file, places in ((f"{folder}/{tail}/__init__.py", [f"{folder}/{tail}"]), (f"{folder}/{tail}.py", None)):
                if os.path.isfile(file):  # noqa: PTH113 - pathlib would do more than this check
                    return importlib.util.spec_from_file_location(
                        name, file, loader=_ExtensionLoader(name, file), submodule_search_locations=places
                    )
        return None


class _ExtensionLoader(importlib.machinery.SourceFileLoader):
    """Compiles the source each time and tells the guard which subject owns the code."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the file with a separate copy of the builtins, so that its changes to them affect only itself."""
        module.__dict__["__builtins__"] = dict(vars(builtins))
        super().exec_module(module)

    def get_code(self, fullname: str) -> Any:
        """Return the code of a file, marked as the subject's."""
        path = self.get_filename(fullname)
        code = compile(self.get_data(path), path, "exec", dont_inherit=True)
        own_code(code)
        return code


_FINDER = _ExtensionFinder()


_OWN = frozenset({PACKAGE, "democrai_sandbox", "__main__"})
_LONGEST_CHAIN = 20
_MOST_FILES = 2000
_LONGEST_PACKAGE_NAME = 200


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
        trace = error.__traceback__
        while trace is not None and not str(trace.tb_frame.f_globals.get("__name__")).startswith(f"{PACKAGE}."):
            trace = trace.tb_next
        BaseException.with_traceback(error, trace)
    return error


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
        root = name.partition(".")[0][:_LONGEST_PACKAGE_NAME] if type(name) is str else ""
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
