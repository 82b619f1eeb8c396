"""Load a configuration from a file or an argument, overridden by the environment.

Other variables with the prefix ``DEMOCRAI_`` identify the subject of a child process. They are never read here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.policy import Problem, nearest, normalise_path, pointer_to
from democrai_sandbox.policy.config_section import absolute_path, described
from democrai_sandbox.policy.text import exact_str

from .keys import ARGUMENT, DEFAULT, KEYS, NAMED, OPEN, ConfigProblem, Origin, Origins, ValueFormat, format_of, refusal
from .sections import read_settings
from .yaml_document import DEEPEST_NESTING, LONGEST_KEY, MOST_VALUES, FileRefusedError, read_document, read_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.host.settings import HostSettings

    _Given = tuple[dict[str, Any], Origins, list[ConfigProblem], str]

_DATABASE = "sqlite:///"
_NOT_RELATIVE = ("/", "~", "$", ":memory:", "file:")


def anchored(values: dict[str, Any], folder: str) -> dict[str, Any]:
    """Make the relative paths in ``values`` absolute; leave values that are not paths for the validation to reject."""
    for pointer, form in KEYS.items():
        above, _, last = pointer.rpartition("/")
        _anchor(_at(values, above), last, form, folder)
    for pointer, forms in NAMED.items():
        entries = _at(values, pointer)
        for entry in entries.values() if isinstance(entries, dict) else ():
            for name, form in forms.items():
                _anchor(entry, name, form, folder)
    return values


def _at(values: Any, pointer: str) -> Any:
    """Return the value at a pointer; None without one."""
    for step in pointer.split("/")[1:]:
        values = values.get(step) if isinstance(values, dict) else None
    return values


def _anchor(holder: Any, name: str, form: ValueFormat, folder: str) -> None:
    value = holder.get(name) if isinstance(holder, dict) else None
    if form is ValueFormat.PATHS and isinstance(value, list):
        holder[name] = [_path(item, folder) for item in value]
    elif form is ValueFormat.PATH and value is not None:
        holder[name] = _path(value, folder)
    elif form is ValueFormat.DATABASE and isinstance(value, str) and value.startswith(_DATABASE):
        holder[name] = _DATABASE + _path(value.removeprefix(_DATABASE), folder)


def _path(value: Any, folder: str) -> Any:
    if not isinstance(value, str) or not value or "\0" in value or value.startswith(_NOT_RELATIVE):
        return value
    return normalise_path(f"{folder}/{value}")


_LARGEST_NUMBER = 10**64


class _ArgumentCopier:
    """Copy with dictionaries, lists, texts and numbers only, and the problems of other values."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._values = 0

    def copied(self, given: Mapping[Any, Any], pointer: str, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for name, value in given.items():
            key = exact_str(name)
            if key is None or len(key) > LONGEST_KEY:
                message = f"a key must be a text of at most {LONGEST_KEY} characters, got {described(name)}"
                self.problems.append(Problem(pointer, message))
            else:
                members[key] = self._value(value, pointer_to(pointer, key), depth)
        return members

    def _value(self, value: object, pointer: str, depth: int) -> Any:
        self._values += 1
        if self._values > MOST_VALUES or depth > DEEPEST_NESTING:
            # Reported once: an object that contains itself would repeat it.
            if self._values <= MOST_VALUES + 1:
                message = f"more than {MOST_VALUES:,} values, or nested deeper than {DEEPEST_NESTING} levels"
                self.problems.append(Problem(pointer, message))
            return None
        if isinstance(value, Mapping):
            return self.copied(value, pointer, depth + 1)
        if isinstance(value, list | tuple):
            return [self._value(item, pointer_to(pointer, index), depth + 1) for index, item in enumerate(value)]
        return self._scalar(value, pointer)

    def _scalar(self, value: object, pointer: str) -> Any:
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        text = exact_str(path)
        if text is not None:
            return text
        if value is None or type(value) in (bool, float):
            return value
        if type(value) is int and abs(value) < _LARGEST_NUMBER:
            return value
        self.problems.append(Problem(pointer, f"expected a plain value, got {described(value)}"))
        return None


FILE_VARIABLE = "DEMOCRAI_CONFIG_FILE"
PREFIX = "DEMOCRAI_CONFIG__"
_FAMILY = "DEMOCRAI_CONFIG"
_STEP = "__"


class _Setting(NamedTuple):
    variable: str
    steps: tuple[str, ...]
    value: Any

    @property
    def pointer(self) -> str:
        return pointer_to("", *self.steps)


def overlay(values: dict[str, Any], environ: Mapping[str, str], origins: Origins) -> Iterator[ConfigProblem]:
    """Apply the settings of the environment to ``values``; yield their problems.

    A variable for an object replaces it; variables for its keys are applied after that.
    """
    settings, problems = _settings(environ)
    yield from problems
    for setting in sorted(settings, key=lambda found: (len(found.steps), found.variable)):
        problem = _put(values, setting, origins)
        if problem is not None:
            yield ConfigProblem.at(Origin(setting.variable), problem)


def variable_for(pointer: str) -> str:
    """Return the name of the variable for a key."""
    return PREFIX + _STEP.join(pointer.upper().split("/")[1:])


def _settings(environ: Mapping[str, str]) -> tuple[list[_Setting], list[ConfigProblem]]:
    settings: list[_Setting] = []
    problems: list[ConfigProblem] = []
    seen: dict[tuple[str, ...], str] = {}
    for variable in sorted(name for name in environ if name.startswith(_FAMILY) and name != FILE_VARIABLE):
        steps = tuple(variable.removeprefix(PREFIX).lower().split(_STEP))
        wrong = _wrong_with_name(variable, steps, seen)
        if wrong is None:
            seen[steps] = variable
            wrong = _read_value(variable, steps, environ[variable], settings)
        if wrong is not None:
            problems.append(ConfigProblem.at(Origin(variable), wrong))
    return settings, problems


def _wrong_with_name(variable: str, steps: tuple[str, ...], seen: Mapping[tuple[str, ...], str]) -> Problem | None:
    if not variable.startswith(PREFIX):
        known = (FILE_VARIABLE, *map(variable_for, (*KEYS, *OPEN, *NAMED)))
        # In lower case, like the comparison in nearest().
        close = nearest(variable, [name.lower() for name in known])
        message = f"unknown variable; settings begin with {PREFIX}"
        return Problem("", message, close.upper() if close else None)
    if not all(steps):
        return Problem("", f"expected names of settings after {PREFIX}, separated by two underscores")
    if steps in seen:
        return Problem(pointer_to("", *steps), f"duplicate: {seen[steps]} sets the same key")
    return None


def _read_value(variable: str, steps: tuple[str, ...], text: str, settings: list[_Setting]) -> Problem | None:
    """Read one variable into ``settings``. Reject an empty one, which is usually a mistake."""
    pointer = pointer_to("", *steps)
    if not text:
        return Problem(pointer, "the variable is empty: set a value, or unset it")
    if format_of(pointer).is_text:
        settings.append(_Setting(variable, steps, text))
        return None
    document = read_document(text)
    for problem, _ in document.problems:
        return problem.moved(pointer)
    if document.value is None:
        return Problem(pointer, "expected a value, got nothing")
    settings.append(_Setting(variable, steps, document.value))
    return None


def _put(values: dict[str, Any], setting: _Setting, origins: Origins) -> Problem | None:
    *above, last = setting.steps
    origin = Origin(setting.variable)
    pointer = ""
    inner: Any = values
    for step in above:
        pointer = pointer_to(pointer, step)
        if inner.get(step) is None and pointer not in KEYS:
            inner[step] = {}
            origins.set_missing(pointer, origin)
        inner = inner.get(step)
        if not isinstance(inner, dict):
            return Problem(pointer, f"not an object, so it has no key {setting.pointer[len(pointer) + 1 :]!r}")
    inner[last] = setting.value
    origins.set(setting.pointer, origin)
    return None


@dataclass(frozen=True, slots=True)
class Loaded:
    """Valid configuration, with the origin of its values."""

    settings: HostSettings
    origins: Mapping[str, Origin]
    """Origin of each key, set or not, by pointer."""


def load(
    source: str | os.PathLike[str] | Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None
) -> Loaded:
    """Load a configuration from a file or a mapping, or the defaults without either.

    Without ``source``, the variable ``DEMOCRAI_CONFIG_FILE`` names the file. Variables with the prefix
    ``DEMOCRAI_CONFIG__`` override all of them; ``environ={}`` ignores the environment. Raise ``ConfigInvalid`` with all
    problems. Nothing is created or changed.
    """
    around = os.environ if environ is None else environ
    values, origins, problems, file = _given_values(source, around)
    problems += overlay(values, around, origins)
    refused = tuple(f"{problem.pointer}/" for problem in problems if problem.pointer)
    settings, found = read_settings(values, around, file)
    # Do not report an unreadable value as missing as well.
    problems += [origins.place(problem) for problem in found if not f"{problem.pointer}/".startswith(refused)]
    if problems:
        raise refusal(problems)
    defaults = dict.fromkeys((*KEYS, *OPEN), Origin(DEFAULT))
    return Loaded(settings, defaults | {one: origins[one] for one in _pointers(values, "")})


def _given_values(source: object, environ: Mapping[str, str]) -> _Given:
    """Return the values with their origins and problems, and the path of their file."""
    if isinstance(source, Mapping):
        copier, origins = _ArgumentCopier(), Origins(ARGUMENT)
        values = copier.copied(source, "", 1)
        return values, origins, [origins.place(problem) for problem in copier.problems], ""
    if source is None and FILE_VARIABLE in environ:
        return _from_file(_named_file(environ[FILE_VARIABLE]))
    if source is None:
        return {}, Origins(DEFAULT), [], ""
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
    problems = [ConfigProblem.at(_in_file(path, line), problem) for problem, line in document.problems]
    if not isinstance(document.value, dict):
        message = f"expected an object with settings, got {described(document.value)}"
        if document.value is None:
            message = "the file contains no settings; write {} to use the defaults"
        raise refusal(problems or [ConfigProblem("", message, None, Origin(path))])
    absolute = normalise_path(str(Path(path).absolute()))
    return anchored(document.value, str(Path(absolute).parent)), origins, problems, absolute


def _in_file(path: str, line: int) -> Origin:
    return Origin(f"{path}:{line}", line) if line else Origin(path)


def _pointers(value: object, pointer: str) -> Iterator[str]:
    if isinstance(value, dict) and pointer not in KEYS and (value or pointer not in OPEN):
        for name, inner in value.items():
            yield from _pointers(inner, pointer_to(pointer, name))
    elif value is not None:
        yield pointer
