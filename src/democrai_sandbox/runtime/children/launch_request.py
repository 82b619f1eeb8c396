"""Launch request of a program: checks of what the caller asked for, program lookup, and environment.

Most variables of the host are not inherited, because they may contain tokens, passwords or places of credentials.
"""

from __future__ import annotations

import os
from binascii import hexlify
from dataclasses import dataclass, field
from os import X_OK, access, fsencode, urandom
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from democrai_sandbox.errors import EnvironmentDenied, FilesystemDenied, SubprocessDenied
from democrai_sandbox.guard import location_of
from democrai_sandbox.guard.contexts import environment_of
from democrai_sandbox.policy import AccessRule, InvalidInputError, Operation, Subject, is_at_or_below, nearest
from democrai_sandbox.policy.problems import pointer_to

from .path_rights import PathRights, denied, is_kind
from .supervision import MARK, ChildLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from democrai_sandbox.guard.interface import RawView


class LaunchRequest(NamedTuple):
    """A program to start, after all checks."""

    program: str
    """A real file with all links resolved: the checked file is the one that runs."""
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Complete; nothing is inherited."""
    folder: str
    view: RawView | None
    """Guard of the caller, for a launcher that confines the child; None for the host itself."""
    mark: str
    """Set in the environment of the child and everything it starts, unless they clear it."""
    with_input: bool = False
    readable: tuple[str, ...] = ()
    """Paths that were checked for reading: the working directory, if the caller named one."""


class ChildProgram(Protocol):
    """A started program, the leader of a new session."""

    pid: int
    stdin: int | None
    """Descriptors of this process; the owner of the child closes them."""
    stdout: int
    stderr: int
    ended: int
    """Descriptor that becomes readable when the program has ended."""
    unenforced: tuple[str, ...]
    """Rules of the subject that the kernel does not enforce for the program, in words."""
    timed_out: bool
    """Whether the launcher stopped it because of its timeout; known after ``collect``."""
    failure: str
    """Reason why its exit status is unknown; empty otherwise. Known after ``collect``."""

    def is_revoked(self) -> bool:
        """Return whether an approval with which it was started is no longer in force."""

    def signal_group(self, number: int) -> None:
        """Send a signal to the program and its group. Not after ``collect``, because the pid may be reused then."""

    def collect(self) -> int:
        """Return the exit status of an ended program, negative for a signal, and release everything."""


ChildLauncher: TypeAlias = "Callable[[LaunchRequest], ChildProgram]"
"""Starts a program on a separate thread, outside any guard; raises ``OSError`` or ``KernelLayerError``."""


_INHERITED = frozenset({"PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"})
_INHERITED_PREFIX = "LC_"
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_OWNED_PREFIX = "DEMOCRAI_"
_TEMPORARY = frozenset({"TMPDIR", "TEMP", "TMP"})

# These variables make a program run other code before its own.
_REFUSED_PREFIXES = ("LD_", "DYLD_", "PYTHON", "GIT_", "PERL5", "RUBY", "NODE_", "BASH_FUNC_", "MALLOC_", "GLIBC_")
_REFUSED = frozenset(
    {
        *("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "IFS", "CDPATH", "ZDOTDIR"),
        *("GCONV_PATH", "LOCPATH", "NLSPATH", "RESOLV_HOST_CONF", "RES_OPTIONS", "LOCALDOMAIN", "HOSTALIASES"),
        *("GETCONF_DIR", "TZDIR", "PERLLIB", "PERL_UNICODE", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS"),
        *("CLASSPATH", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES", "SSLKEYLOGFILE", "LESSOPEN", "LESSCLOSE"),
        *("PAGER", "MANPAGER", "EDITOR", "VISUAL", "BROWSER", "GTK_MODULES", "QT_PLUGIN_PATH", "VIRTUAL_ENV"),
    }
)
# These only affect how Python reads and writes.
_HARMLESS = frozenset(
    {"PYTHONUNBUFFERED", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE"}
)
_MOST = 256
_LONGEST = 131_072


def base_environment(host: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that children inherit from the host."""
    kept = {name: value for name, value in host.items() if name in _INHERITED or name.startswith(_INHERITED_PREFIX)}
    return {"PATH": _DEFAULT_PATH, **kept}


def check_given(view: RawView | None, given: object, rights: PathRights) -> dict[str, str]:
    """Return the caller's variables, or refuse them because of type, size or a reserved name."""
    if given is None:
        return {}
    if type(given) is not dict or len(given) > _MOST:
        raise InvalidInputError.of(f"expected an object of at most {_MOST} texts", pointer="/env")
    for name, value in given.items():
        _check_pair(name, value)
        if view is not None:
            _check_name(view, name, value, rights)
    return dict(given)


def is_text(value: object, longest: int) -> bool:
    """Return whether a value is a string that a program can receive: without NUL, and encodable."""
    if type(value) is not str or "\0" in value or len(value) > longest:
        return False
    try:
        return len(fsencode(value)) <= longest
    except UnicodeEncodeError:
        return False


def _check_pair(name: object, value: object) -> None:
    if type(name) is not str or not name or "=" in name or not is_text(name, _LONGEST):
        raise InvalidInputError.of(f"{name!r} is not a valid variable name", pointer="/env")
    if not is_text(value, _LONGEST - len(name)):
        message = f"expected a text without NUL; name and value have at most {_LONGEST} bytes together"
        raise InvalidInputError.of(message, pointer=pointer_to("/env", name))


def _check_name(view: RawView, name: str, value: str, rights: PathRights) -> None:
    # Case-insensitive, because some programs read their variables that way.
    folded = name.upper()
    owned = folded.startswith(_OWNED_PREFIX)
    if owned or folded in _REFUSED or (folded.startswith(_REFUSED_PREFIXES) and name not in _HARMLESS):
        raise denied(EnvironmentDenied, view, name)
    # A Python child may write to the temp folder it is given, also under the guard of its environment.
    if folded in _TEMPORARY and not rights.may(view, Operation.CREATE, value):
        raise denied(EnvironmentDenied, view, name)


_GIT_SETTINGS = "/etc/gitconfig"
"""May contain credentials."""
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LaunchRequests:
    """Creates orders for callers. Create it before any guard: it reads the environment."""

    rights: PathRights
    settings: ChildrenSettings = field(default_factory=ChildrenSettings)
    home_of: Callable[[Subject], str] = lambda _subject: ""
    """Returns the data folder of a subject, the default working directory of its children."""
    longest: Callable[[RawView | None], float | None] = lambda _view: None
    """Returns the maximum run time of a caller's children, if its manifest or the host sets one."""
    approved: Callable[[RawView], tuple[AccessRule, ...]] = lambda _view: ()
    """Returns the approvals of a caller; a Python child reads its guard from the environment."""
    base: Mapping[str, str] = field(default_factory=lambda: base_environment(os.environ))
    """Variables that children inherit from the host."""

    def make(self, view: RawView | None, argv: object, options: object) -> tuple[LaunchRequest, ChildLimits, bytes]:
        """Return an order, its limits and its input, or refuse the request."""
        if (
            view is not None
            and not view.allow_subprocess
            and any(link.subject.kind in _NEVER for link in view.allow_chain)
        ):
            raise denied(SubprocessDenied, view, _ENTRYPOINT)
        words = _words(argv)
        wanted = _checked_options(options)
        given = check_given(view, wanted.get("env"), self.rights)
        home = self._home(view)
        folder = self._folder(view, wanted.get("cwd"), home)
        program = self._program(view, words[0], folder, given.get("PATH", self.base["PATH"]))
        mark = hexlify(urandom(16)).decode()
        environment = {**self.base, "HOME": home, **given} if view is None else self._environment(view, given, home)
        data = _input(wanted.get("input"))
        named = () if wanted.get("cwd") is None else (folder,)
        made = {**environment, MARK: mark}
        order = LaunchRequest(program, words, made, folder, view, mark, with_input=data is not None, readable=named)
        return order, self._limits(view, wanted), data or b""

    def _environment(self, view: RawView, given: Mapping[str, str], home: str) -> dict[str, str]:
        """Return the environment. Variables of the guard come last, so that the caller cannot replace them."""
        approved = self.approved(view)
        # The subject can write the folder of the user's own Python packages.
        last = {"PYTHONNOUSERSITE": "1", **environment_of(view, approved)}
        return {**self.base, **self._git_variables(view, approved), "HOME": home, **given, **last}

    def _git_variables(self, view: RawView, approved: tuple[AccessRule, ...]) -> dict[str, str]:
        """Return the variable without which git fails where the kernel refuses its settings for the machine."""
        reads = (rule.normalized_target for rule in approved if rule.operation is Operation.READ)
        if any(is_at_or_below(_GIT_SETTINGS, target) for target in reads):
            return {}
        return {} if self.rights.is_declared(view, Operation.READ, _GIT_SETTINGS) else {"GIT_CONFIG_NOSYSTEM": "1"}

    def _home(self, view: RawView | None) -> str:
        if view is None:
            return str(Path.home())
        own = [self.home_of(link.subject) for link in reversed(view.allow_chain)]
        return next((folder for folder in own if folder and is_kind(folder, S_ISDIR)), "/")

    def _folder(self, view: RawView | None, given: object, home: str) -> str:
        if given is None:
            return home
        folder = _located(_below(home, _path(given, "/cwd")), "/cwd")
        self.rights.require(view, Operation.READ, folder)
        if not is_kind(folder, S_ISDIR):
            raise InvalidInputError.of(f"{folder!r} is not a folder", pointer="/cwd")
        return folder

    def _program(self, view: RawView | None, name: str, folder: str, path: str) -> str:
        """Return the real file to run. For a script, its own path is checked, not its interpreter's."""
        if "/" in name:
            return self._program_at(view, _located(_below(folder, name), "/argv/0"), name.rpartition("/")[2])
        places = (place for place in path.split(":") if place.startswith("/"))
        found = [real for place in places if _is_program(real := _located(f"{place}/{name}", "/argv/0"))]
        for real in found:
            if self.rights.may_execute(view, real, name=name):
                return real
        # Programs of the system are public. The existence of others is not revealed.
        for real in filter(self.rights.is_of_system, found):
            return self._program_at(view, real, name)
        message = f"no permitted program {name!r} was found in PATH"
        raise InvalidInputError.of(message, pointer="/argv/0")

    def _program_at(self, view: RawView | None, real: str, name: str) -> str:
        # Check before reading: the existence of files outside the caller's rights is not revealed.
        if view is not None and not self.rights.may_execute(view, real, name=name, register=True):
            raise denied(FilesystemDenied, view, real, Operation.EXECUTE.value)
        if not _is_program(real):
            raise InvalidInputError.of(f"{real!r} is not a program", pointer="/argv/0")
        return real

    def _limits(self, view: RawView | None, wanted: Mapping[str, Any]) -> ChildLimits:
        settings = self.settings
        timeout = _number(wanted.get("timeout"), settings.timeout, settings.longest_timeout, "/timeout")
        longest = self.longest(view)
        if longest is not None:
            timeout = min(timeout, longest)
        largest = settings.largest_output_limit
        stdout = _number(wanted.get("stdout_limit"), settings.output_limit, largest, "/stdout_limit")
        stderr = _number(wanted.get("stderr_limit"), settings.output_limit, largest, "/stderr_limit")
        return ChildLimits(timeout, settings.grace, int(stdout), int(stderr), wanted.get("stream") is True)


def _below(folder: str, path: str) -> str:
    return path if path.startswith("/") else f"{folder}/{path}"


def _located(path: str, pointer: str) -> str:
    try:
        return location_of(path)
    except (OSError, ValueError) as error:
        raise InvalidInputError.of(f"not a valid path: {error}", pointer=pointer) from None


def _is_program(path: str) -> bool:
    return is_kind(path, S_ISREG) and access(path, X_OK)


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
