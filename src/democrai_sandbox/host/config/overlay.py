"""Settings in the environment: ``DEMOCRAI_CONFIG__SANDBOX__OS__ENABLED=true`` sets ``sandbox.os.enabled``.

Other variables with the prefix ``DEMOCRAI_`` identify the subject of a child process. They are never read here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.policy import Problem, nearest, pointer_to

from .document import read_document
from .keys import KEYS, NAMED, OPEN, form_of
from .origins import ConfigProblem, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .origins import Origins

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
            yield _placed(problem, setting.variable)


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
            problems.append(_placed(wrong, variable))
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
    if form_of(pointer).is_text:
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


def _placed(problem: Problem, variable: str) -> ConfigProblem:
    return ConfigProblem(problem.pointer, problem.message, problem.suggestion, Origin(variable))
