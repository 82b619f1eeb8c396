"""From what an extension declares to the guard of one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import _core, policy_of

if TYPE_CHECKING:
    from democrai_sandbox.access.identity import Caller
    from democrai_sandbox.guard import Guard
    from democrai_sandbox.manifests import Section
    from democrai_sandbox.policy import Subject, SubjectChain


class Activation:
    """A subject with what it may do in one phase: compiled once, entered for every call."""

    def __init__(
        self,
        subject: Subject,
        section: Section,
        *,
        own_read: tuple[str, ...] = (),
        own_write: tuple[str, ...] = (),
        allow_subprocess: bool = False,
        exact: bool = False,
        **further: Any,
    ) -> None:
        """Take the declarations of a phase, and the places that the runtime gives to this subject."""
        self.subject = subject
        self._exact = exact
        self._declarations = {
            "subject": subject.name,
            "subject_kind": subject.kind.value,
            "access": section.access,
            "allowed_imports": section.allowed_imports,
            "own_read": own_read,
            "own_write": own_write,
            "allow_subprocess": allow_subprocess,
            **further,
        }
        self._policy = policy_of(**self._declarations)

    def below(self, ancestors: SubjectChain) -> Activation:
        """Return the same subject as it continues a chain: a task, a call from another process."""
        other = Activation.__new__(Activation)
        other.subject, other._exact = self.subject, self._exact
        other._declarations = {**self._declarations, "ancestors": ancestors}
        other._policy = policy_of(**other._declarations)
        return other

    def guard(self, caller: Caller) -> Guard:
        """Return a guard for one call on behalf of somebody."""
        return _core.guard(
            self._policy, caller[0] or None, caller[1] or None, caller[2] or None, self._exact
        )
