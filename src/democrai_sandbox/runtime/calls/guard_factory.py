"""Guards of the calls to one subject, compiled from its declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import _core, policy_of

if TYPE_CHECKING:
    from democrai_sandbox.access.caller import Caller
    from democrai_sandbox.guard import Guard
    from democrai_sandbox.guard._core import Policy
    from democrai_sandbox.manifests import Section
    from democrai_sandbox.policy import Subject, SubjectChain


class GuardFactory:
    """A subject with its compiled policy for one phase: compiled once, entered for every call."""

    def __init__(
        self,
        subject: Subject,
        section: Section,
        *,
        own_read: tuple[str, ...] = (),
        own_write: tuple[str, ...] = (),
        allow_subprocess: bool = False,
        exact: bool = False,
        ancestors: SubjectChain = (),
    ) -> None:
        """Compile the declarations of a phase and the folders that the runtime gives to this subject.

        ``ancestors`` is the call chain that the subject continues, for a task or a call from another process.
        """
        self.subject = subject
        self._section = section
        self._given: dict[str, Any] = {
            "own_read": own_read,
            "own_write": own_write,
            "allow_subprocess": allow_subprocess,
        }
        self._exact = exact
        self._policy = self._compiled(section, ancestors)

    def held_against(self, section: Section | None) -> None:
        """Compare every check of this subject with a candidate's declarations; None ends the comparison.

        The current policy still decides. The guard reports differences to its watcher.
        """
        _core.candidate(str(self.subject), None if section is None else self._compiled(section, ()))

    def below(self, ancestors: SubjectChain) -> GuardFactory:
        """Return the same subject with the call chain ``ancestors`` above it."""
        return GuardFactory(self.subject, self._section, exact=self._exact, ancestors=ancestors, **self._given)

    def _compiled(self, section: Section, ancestors: SubjectChain) -> Policy:
        return policy_of(
            subject=self.subject.name,
            subject_kind=self.subject.kind.value,
            access=section.access,
            allowed_imports=section.allowed_imports,
            ancestors=ancestors,
            **self._given,
        )

    def guard(self, caller: Caller) -> Guard:
        """Return a guard for one call by ``caller``."""
        return _core.guard(self._policy, caller[0] or None, caller[1] or None, caller[2] or None, self._exact)
