"""Rights of a caller to a path, decided in the host from the view of its guard: rules, then decisions.

The core resolves paths, and the ``os`` functions used here are saved at import, because a subject can replace functions
of libraries.
"""

from __future__ import annotations

import sys
from os import stat
from stat import S_ISGID, S_ISUID
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from democrai_sandbox.errors import FilesystemDenied, SandboxDenied
from democrai_sandbox.guard import Decider, _core, location_of
from democrai_sandbox.guard.runtime_paths import covers, program_places, runtime_entries
from democrai_sandbox.policy import AccessRule, FileAccess, Operation, ResourceType, Subject, is_at_or_below
from democrai_sandbox.runtime.access_environment import question_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from democrai_sandbox.guard.interface import RawView

SYSTEM_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_PRIVILEGED = S_ISUID | S_ISGID
_MASKS = MappingProxyType(
    {
        Operation.READ: FileAccess.READ,
        Operation.CREATE: FileAccess.CREATE,
        Operation.MODIFY: FileAccess.MODIFY,
    }
)

_ENCODING = sys.getfilesystemencoding()

Denial = TypeVar("Denial", bound=SandboxDenied)


def denied(kind: type[Denial], view: RawView, target: str, *operations: str) -> Denial:
    """Return a denial for the caller with this view."""
    subject_kind, name = view.actor
    return kind(target, subject=name, subject_kind=subject_kind, chain=view.labels, operations=operations)


def decoded(path: bytes) -> str:
    """Return a path as a string. ``os.fsdecode`` uses a function that can be replaced."""
    return path.decode(_ENCODING, "surrogateescape")


def is_kind(path: str, kind: Callable[[int], bool]) -> bool:
    """Return whether a path leads to a file of a kind, such as ``S_ISREG``."""
    try:
        return kind(stat(path).st_mode)  # noqa: PTH116 - held by its name
    except (OSError, ValueError):
        return False


def _is_named(target: str, real: str, name: str) -> bool:
    """Return whether a system dependency is this program: by its path, or by its name in a program folder.

    Both the file and the name count, because one file can be many programs that read their own name.
    """
    is_named = "/" in target or target in (name, real.rpartition("/")[2])
    return is_named and any(real == location_of(place) for place in program_places(target))


def named_programs(rules: Iterable[AccessRule]) -> tuple[str, ...]:
    """Return the targets of the system dependencies; with any, a subject may start no other program of the system."""
    found = (rule.normalized_target for rule in rules if rule.resource_type is ResourceType.SYSTEM_DEPENDENCY)
    return tuple(dict.fromkeys(found))


Comparison: TypeAlias = "Callable[[RawView, tuple[str, str, str], Callable[[RawView], bool]], bool]"
"""Returns whether the rules of a caller allow an access, and records it, such as in the shadow runs of a host."""


class PathRights:
    """Decides for the host like the guard itself. Without a decider only the rules count."""

    def __init__(
        self,
        decider: Decider | None = None,
        owned: Callable[[Subject], Iterable[str]] = lambda _subject: (),
        compare: Comparison = lambda view, _what, allows: allows(view),
    ) -> None:
        """Take ``owned``, which returns the folders that the runtime gave to a subject below protected paths."""
        self._compare = compare
        self._decider = decider
        self._owned = owned
        self._runtime = tuple((location_of(decoded(path)), mask) for path, mask in runtime_entries())
        programs = [*SYSTEM_PROGRAMS, *(f"{prefix}/bin" for prefix in (sys.prefix, sys.base_prefix))]
        self._interpreter = location_of(sys.executable)
        self._programs = tuple(map(location_of, programs))

    def may(self, view: RawView | None, operation: Operation, path: str, *, register: bool = False) -> bool:
        """Return whether the caller may access the resolved path; ``register`` files a request otherwise."""
        if view is None:
            return True
        real = location_of(path)
        if self._is_shut(view, real):
            return False
        mask = _MASKS.get(operation, 0)
        if any(mask & given and covers(root, given, real) for root, given in self._runtime):
            return True
        return self._is_allowed(view, operation, real) or self._is_approved(view, operation, real, register=register)

    def require(self, view: RawView | None, operation: Operation, path: str, *, register: bool = False) -> None:
        """Raise a denial if the caller may not."""
        if view is not None and not self.may(view, operation, path, register=register):
            raise denied(FilesystemDenied, view, path, operation.value)

    def may_execute(self, view: RawView | None, real: str, *, name: str, register: bool = False) -> bool:
        """Return whether the caller may start a program: one of the system or interpreter, or one it may execute.

        A program that the caller can write, or a setuid program, needs a rule. With rules for named programs, only
        these programs of the system are permitted. ``real`` is resolved; ``name`` is the last part of the path before
        that.
        """
        if view is None:
            return True
        if not self._is_shut(view, real) and self._is_open(view, real, name):
            return True
        return self.may(view, Operation.EXECUTE, real, register=register)

    def _is_open(self, view: RawView, real: str, name: str) -> bool:
        rules = [rule for link in view.allow_chain for rule in link.rules]
        named = named_programs(rules)
        if named:
            program = ResourceType.SYSTEM_DEPENDENCY
            return any(_is_named(target, real, name) for target in named) or any(
                self._is_approved(view, Operation.EXECUTE, wanted, program, register=False) for wanted in (name, real)
            )
        writing = (Operation.CREATE, Operation.MODIFY)
        return self.is_of_system(real) and not any(self.is_declared(view, operation, real) for operation in writing)

    def _is_allowed(self, view: RawView, operation: Operation, real: str) -> bool:
        wish = (ResourceType.FILESYSTEM.value, operation.value, real)
        return self._compare(view, wish, lambda shown: self.is_declared(shown, operation, real))

    def is_declared(self, view: RawView, operation: Operation, real: str) -> bool:
        """Return whether a rule in force covers a resolved path."""
        rules = (rule for link in view.allow_chain for rule in link.rules)
        return any(
            rule.resource_type is ResourceType.FILESYSTEM
            and rule.operation is operation
            and is_at_or_below(real, location_of(rule.normalized_target))
            for rule in rules
        )

    def is_of_system(self, real: str) -> bool:
        """Return whether a resolved path is a program of the system or the interpreter, without setuid or setgid."""
        if real != self._interpreter and not any(is_at_or_below(real, root) for root in self._programs):
            return False
        try:
            return not stat(real).st_mode & _PRIVILEGED  # noqa: PTH116 - held by its name
        except OSError:
            return False

    def _is_shut(self, view: RawView, real: str) -> bool:
        """Return whether a path is protected from this caller, independent of its rules."""
        protected = (location_of(decoded(path)) for path, _ in _core.protected_entries())
        if not any(is_at_or_below(real, root) for root in protected):
            return False
        own = (root for link in view.allow_chain for root in self._owned(link.subject))
        return not any(is_at_or_below(real, location_of(root)) for root in own)

    def _is_approved(
        self,
        view: RawView,
        operation: Operation,
        target: str,
        resource: ResourceType = ResourceType.FILESYSTEM,
        *,
        register: bool,
    ) -> bool:
        if self._decider is None:
            return False
        what = (resource.value, operation.value, target)
        answer = self._decider.decide(question_of(view.actor, view.labels, what, view.identity, register=register))
        return answer is True or (not isinstance(answer, bool) and answer.allowed)
