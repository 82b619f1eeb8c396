"""Load a configuration from a file or an argument, overridden by the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import normalise_path, pointer_to
from democrai_sandbox.policy.sections import absolute_path, described

from .anchoring import anchored
from .argument import plain_values
from .document import read_document
from .files import FileRefusedError, read_file
from .keys import KEYS, OPEN
from .origins import ARGUMENT, DEFAULT, ConfigProblem, Origin, Origins, refusal
from .overlay import FILE_VARIABLE, overlay
from .reading import read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.errors import ConfigInvalid
    from democrai_sandbox.host.settings import HostSettings


@dataclass(frozen=True, slots=True)
class Loaded:
    """Valid configuration, with the origin of its values."""

    settings: HostSettings
    origins: Mapping[str, Origin]
    """Origin of each key, set or not, by pointer."""


@dataclass(slots=True)
class _Given:
    """Values before the environment is applied."""

    values: dict[str, Any]
    origins: Origins
    problems: list[ConfigProblem]
    file: str = ""


def load(
    source: str | os.PathLike[str] | Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None
) -> Loaded:
    """Load a configuration from a file or a mapping, or the defaults without either.

    Without ``source``, the variable ``DEMOCRAI_CONFIG_FILE`` names the file. Variables with the prefix
    ``DEMOCRAI_CONFIG__`` override all of them; ``environ={}`` ignores the environment. Raise ``ConfigInvalid`` with all
    problems. Nothing is created or changed.
    """
    around = os.environ if environ is None else environ
    given = _given(source, around)
    problems = [*given.problems, *overlay(given.values, around, given.origins)]
    refused = {problem.pointer for problem in problems if problem.pointer}
    settings, found = read_settings(given.values, around, given.file)
    # Do not report an unreadable value as missing as well.
    problems += [given.origins.place(problem) for problem in found if not _lies_in(problem.pointer, refused)]
    if problems:
        raise refusal(problems)
    return Loaded(settings, dict(_leaves(given)))


def _given(source: object, environ: Mapping[str, str]) -> _Given:
    if isinstance(source, Mapping):
        values, problems = plain_values(source)
        origins = Origins(ARGUMENT)
        return _Given(values, origins, [origins.place(problem) for problem in problems])
    if source is None and FILE_VARIABLE in environ:
        return _from_file(_named_file(environ[FILE_VARIABLE]))
    if source is None:
        return _Given({}, Origins(DEFAULT), [])
    path = os.fspath(source) if isinstance(source, os.PathLike) else source
    if not isinstance(path, str) or not path:
        message = f"expected the path of a file or an object with settings, got {described(path)}"
        raise refusal([ConfigProblem("", message, None, Origin(ARGUMENT))])
    return _from_file(path)


def _named_file(text: str) -> str:
    try:
        return absolute_path(text)
    except ValueError as error:
        raise refusal([ConfigProblem("", str(error), None, Origin(FILE_VARIABLE))]) from None


def _from_file(path: str) -> _Given:
    origins = Origins(path)
    try:
        document = read_document(read_file(path))
    except FileRefusedError as error:
        raise refusal([ConfigProblem("", str(error), None, _in_file(path, error.line))]) from None
    for pointer, line in document.lines.items():
        origins.set_missing(pointer, _in_file(path, line))
    problems = [
        ConfigProblem(problem.pointer, problem.message, problem.suggestion, _in_file(path, line))
        for problem, line in document.problems
    ]
    if not isinstance(document.value, dict):
        raise _no_settings(path, document.value, problems)
    absolute = normalise_path(str(Path(path).absolute()))
    return _Given(anchored(document.value, str(Path(absolute).parent)), origins, problems, absolute)


def _no_settings(path: str, value: object, problems: list[ConfigProblem]) -> ConfigInvalid:
    if problems:
        return refusal(problems)
    message = f"expected an object with settings, got {described(value)}"
    if value is None:
        message = "the file contains no settings; write {} to use the defaults"
    return refusal([ConfigProblem("", message, None, Origin(path))])


def _in_file(path: str, line: int) -> Origin:
    return Origin(f"{path}:{line}", line) if line else Origin(path)


def _lies_in(pointer: str, refused: set[str]) -> bool:
    return any(pointer == other or pointer.startswith(f"{other}/") for other in refused)


def _leaves(given: _Given) -> Iterator[tuple[str, Origin]]:
    """Yield the origin of each key with a fixed name, and of each given key."""
    for pointer in (*KEYS, *OPEN):
        yield pointer, Origin(DEFAULT)
    for pointer in _pointers(given.values, ""):
        yield pointer, given.origins[pointer]


def _pointers(value: object, pointer: str) -> Iterator[str]:
    if isinstance(value, dict) and pointer not in KEYS and (value or pointer not in OPEN):
        for name, inner in value.items():
            yield from _pointers(inner, pointer_to(pointer, name))
    elif value is not None:
        yield pointer
