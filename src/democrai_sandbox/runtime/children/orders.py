"""Conversion of a caller's request to a launch order: checks, program lookup, environment."""

from __future__ import annotations

from binascii import hexlify
from dataclasses import dataclass
from os import X_OK, access, stat, urandom
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import FilesystemDenied, SubprocessDenied
from democrai_sandbox.guard import location_of
from democrai_sandbox.policy import InvalidInputError, Operation, nearest
from democrai_sandbox.policy.problems import pointer_to

from .environment import base_environment, check_given, child_environment, is_text
from .interface import Order
from .rights import denied
from .supervision import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from democrai_sandbox.guard.views import RawView
    from democrai_sandbox.policy import AccessRule, Subject

    from .rights import Rights

_ENTRYPOINT = "sdk.tasks.run_subprocess"
_OPTIONS = ("cwd", "env", "timeout", "input", "stdout_limit", "stderr_limit", "stream")
_NEVER = frozenset({"engine", "extractor", "mcp"})
"""Kinds that start programs only in their install phase, which does not use this service."""
_MOST_WORDS = 4096
_LONGEST_WORD = 131_071
_LONGEST_INPUT = 16 << 20


@dataclass(frozen=True, slots=True)
class ChildrenSettings:
    """Limits of a host for children."""

    timeout: float = 300.0
    """Default timeout in seconds."""
    longest_timeout: float = 86_400.0
    grace: float = 2.0
    """Seconds between the request to stop and the kill."""
    output_limit: int = 1 << 20
    """Default maximum bytes of standard output and of standard error."""
    largest_output_limit: int = 16 << 20
    most: int = 64
    """Maximum number of concurrent children."""
    most_of_subject: int = 16


class Orders:
    """Creates orders for callers."""

    def __init__(
        self,
        rights: Rights,
        settings: ChildrenSettings,
        home_of: Callable[[Subject], str],
        host: Mapping[str, str],
        *,
        longest: Callable[[RawView | None], float | None] = lambda _view: None,
        approved: Callable[[RawView], tuple[AccessRule, ...]] = lambda _view: (),
    ) -> None:
        """Take ``home_of``, which returns the data folder of a subject, the default working directory of its children.

        ``longest`` returns the maximum run time of a caller's children, if its manifest or the host sets one.
        ``approved`` returns the approvals of a caller; a Python child reads its guard from the environment.
        """
        self._longest = longest
        self._approved = approved
        self._rights = rights
        self._settings = settings
        self._home_of = home_of
        self._base = base_environment(host)

    def make(self, view: RawView | None, argv: object, options: object) -> tuple[Order, Limits, bytes]:
        """Return an order, its limits and its input, or refuse the request."""
        _check_caller(view)
        words = _words(argv)
        wanted = _checked_options(options)
        given = check_given(view, wanted.get("env"), self._rights)
        home = self._home(view)
        folder = self._folder(view, wanted.get("cwd"), home)
        program = self._program(view, words[0], folder, given.get("PATH", self._base["PATH"]))
        mark = hexlify(urandom(16)).decode()
        approved = () if view is None else self._approved(view)
        environment = child_environment(view, given, approved, base=self._base, home=home, mark=mark)
        data = _input(wanted.get("input"))
        named = () if wanted.get("cwd") is None else (folder,)
        order = Order(program, words, environment, folder, view, mark, with_input=data is not None, readable=named)
        return order, self._limits(view, wanted), data or b""

    def _home(self, view: RawView | None) -> str:
        if view is None:
            return str(Path.home())
        own = [self._home_of(link.subject) for link in reversed(view.allow_chain)]
        return next((folder for folder in own if folder and _is_folder(folder)), "/")

    def _folder(self, view: RawView | None, given: object, home: str) -> str:
        if given is None:
            return home
        folder = _located(_below(home, _path(given, "/cwd")), "/cwd")
        self._rights.require(view, Operation.READ, folder)
        if not _is_folder(folder):
            raise InvalidInputError.of(f"{folder!r} is not a folder", pointer="/cwd")
        return folder

    def _program(self, view: RawView | None, name: str, folder: str, path: str) -> str:
        """Return the real file to run. For a script, its own path is checked, not its interpreter's."""
        if "/" in name:
            return self._program_at(view, _located(_below(folder, name), "/argv/0"), name.rpartition("/")[2])
        places = (place for place in path.split(":") if place.startswith("/"))
        found = [real for place in places if _is_program(real := _located(f"{place}/{name}", "/argv/0"))]
        for real in found:
            if self._rights.may_execute(view, real, name=name):
                return real
        # Programs of the system are public. The existence of others is not revealed.
        for real in filter(self._rights.is_of_system, found):
            return self._program_at(view, real, name)
        message = f"no permitted program {name!r} was found in PATH"
        raise InvalidInputError.of(message, pointer="/argv/0")

    def _program_at(self, view: RawView | None, real: str, name: str) -> str:
        # Check before reading: the existence of files outside the caller's rights is not revealed.
        if view is not None and not self._rights.may_execute(view, real, name=name, register=True):
            raise denied(FilesystemDenied, view, real, Operation.EXECUTE.value)
        if not _is_program(real):
            raise InvalidInputError.of(f"{real!r} is not a program", pointer="/argv/0")
        return real

    def _limits(self, view: RawView | None, wanted: Mapping[str, Any]) -> Limits:
        settings = self._settings
        timeout = _number(wanted.get("timeout"), settings.timeout, settings.longest_timeout, "/timeout")
        longest = self._longest(view)
        if longest is not None:
            timeout = min(timeout, longest)
        largest = settings.largest_output_limit
        stdout = _number(wanted.get("stdout_limit"), settings.output_limit, largest, "/stdout_limit")
        stderr = _number(wanted.get("stderr_limit"), settings.output_limit, largest, "/stderr_limit")
        return Limits(timeout, settings.grace, int(stdout), int(stderr), wanted.get("stream") is True)


def _check_caller(view: RawView | None) -> None:
    if view is None or view.allow_subprocess:
        return
    if any(link.subject.kind in _NEVER for link in view.allow_chain):
        raise denied(SubprocessDenied, view, _ENTRYPOINT)


def _below(folder: str, path: str) -> str:
    return path if path.startswith("/") else f"{folder}/{path}"


def _located(path: str, pointer: str) -> str:
    try:
        return location_of(path)
    except (OSError, ValueError) as error:
        raise InvalidInputError.of(f"not a valid path: {error}", pointer=pointer) from None


def _is_folder(path: str) -> bool:
    try:
        return S_ISDIR(stat(path).st_mode)  # noqa: PTH116 - held by its name
    except (OSError, ValueError):
        return False


def _is_program(path: str) -> bool:
    try:
        return S_ISREG(stat(path).st_mode) and access(path, X_OK)  # noqa: PTH116 - held by its name
    except (OSError, ValueError):
        return False


def _words(argv: object) -> tuple[str, ...]:
    if type(argv) not in (list, tuple) or not 0 < len(argv) <= _MOST_WORDS:  # type: ignore[arg-type]
        raise InvalidInputError.of(f"expected a list of 1 to {_MOST_WORDS} texts", pointer="/argv")
    for place, word in enumerate(argv):  # type: ignore[arg-type, var-annotated]
        if not is_text(word, _LONGEST_WORD):
            message = f"expected a text without NUL of at most {_LONGEST_WORD} bytes"
            raise InvalidInputError.of(message, pointer=pointer_to("/argv", place))
    words = tuple(argv)  # type: ignore[arg-type, var-annotated]
    if not words[0]:
        raise InvalidInputError.of("expected the name or the path of a program", pointer="/argv/0")
    return words


def _checked_options(options: object) -> dict[str, Any]:
    if type(options) is not dict:
        raise InvalidInputError.of("expected an object", pointer="/options")
    for name in options:
        if name not in _OPTIONS:
            raise InvalidInputError.of(f"unknown option {name!r}", pointer="/", suggestion=nearest(str(name), _OPTIONS))
    return options


def _path(value: object, pointer: str) -> str:
    if type(value) is not str or not value or not is_text(value, _LONGEST_WORD):
        raise InvalidInputError.of("expected a path", pointer=pointer)
    return value


def _input(value: object) -> bytes | None:
    if value is None:
        return None
    data = value.encode() if type(value) is str else value
    if type(data) is not bytes or len(data) > _LONGEST_INPUT:
        raise InvalidInputError.of(f"expected text or bytes, at most {_LONGEST_INPUT} bytes", pointer="/input")
    return data


def _number(value: object, usual: float, largest: float, pointer: str) -> float:
    if value is None:
        return usual
    if type(value) not in (int, float) or not 0 < value <= largest:  # type: ignore[operator]
        raise InvalidInputError.of(f"expected a number greater than 0 and at most {largest:g}", pointer=pointer)
    return value  # type: ignore[return-value]
