"""Verification of a worker's claims about its caller, against the host's knowledge: its subject and its pending calls.

A worker's process belongs to the subject, so the host does not rely on the guard inside. The host verifies that a
worker never asks as another subject, or for a user who did not call it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors.workers import FrameError
from democrai_sandbox.guard import AccessQuestion
from democrai_sandbox.guard.views import RawView
from democrai_sandbox.manifests.covering import Coverage
from democrai_sandbox.policy import rules_for_paths, rules_from_json, rules_to_json

from .interface import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.access.identity import Caller
    from democrai_sandbox.policy import AccessRule

    from .interface import Identity, WorkerSpec

_QUESTION = 12
_INNER = frozenset({"task", "tool", "agent", "pipeline", "skill"})
_EXACT = 1
_NO_ONE = ("", "", "")
_MOST_LINKS = 256
_LONGEST_RULES = 256 * 1024
"""Maximum characters of all rules in one request."""


class Standing(NamedTuple):
    """Caller and call chain of a pending call."""

    caller: Identity | Caller
    ancestors: tuple[str, ...]


class Witness:
    """Reads questions and requests of one worker."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Take the specification of the worker's subject."""
        self._spec = spec

    def question(self, fields: Any, standing: Iterable[Standing]) -> tuple[AccessQuestion, Standing] | None:
        """Return the question for the service, and the call it belongs to; None without such a call."""
        if type(fields) is not list or len(fields) != _QUESTION:
            raise FrameError("a malformed question")
        subject, kind, chain, resource, operation, target, register, *who, action, context = fields
        texts = (subject, kind, resource, operation, target, action)
        if any(type(text) is not str for text in texts) or type(register) is not bool:
            raise FrameError("a malformed question")
        if context is not None and type(context) is not str:
            raise FrameError("a malformed question")
        labels = self._chain(chain)
        if f"{kind}:{subject}" not in labels:
            raise FrameError("a question by a subject that is not in its call chain")
        identity = _identity(who)
        found = self._found(labels, identity, standing)
        if found is None:
            return None
        user, organization, session = (text or None for text in identity)
        question = AccessQuestion(  # type: ignore[call-arg] # a structure sequence takes one sequence
            (subject, kind, labels, resource, operation, target, register, user, organization, session, action, context)  # type: ignore[arg-type]
        )
        return question, found

    def view(self, fields: Any, standing: Iterable[Standing]) -> tuple[RawView, Standing] | None:
        """Return the view of the asking code for a service, and its call; None without such a call."""
        if type(fields) is not list or len(fields) != 5:  # noqa: PLR2004 - chain, identity and inner links
            raise FrameError("a request without the identity of its caller")
        chain, *who, inner = fields
        labels = self._chain(chain)
        identity = _identity(who)
        found = self._found(labels, identity, standing)
        if found is None:
            return None
        user, organization, session = (text or None for text in identity)
        spec = self._spec
        view = RawView(
            links=((spec.kind, spec.name, self._declared, 0), *self._narrower(inner)),
            labels=labels,
            user_id=user,
            organization_id=organization,
            session_key=session,
            allow_subprocess=spec.allow_subprocess,
            allowed_imports=frozenset(spec.allowed_imports),
        )
        return view, found

    def _chain(self, chain: Any) -> tuple[str, ...]:
        """Return a call chain in which this worker may act as each subject: itself, its callers, its assets."""
        if type(chain) is not list or not 0 < len(chain) <= _MOST_LINKS or any(type(one) is not str for one in chain):
            raise FrameError("a malformed call chain")
        label = self._spec.label
        if label not in chain:
            raise FrameError(f"a question that does not come from {label}")
        for inner in chain[chain.index(label) + 1 :]:
            kind, _, name = inner.partition(":")
            own = self._spec.kind == "module" and name.rpartition(".")[0] == self._spec.name
            if inner != label and not (kind in _INNER and own):
                raise FrameError(f"a question by {inner} in the worker of {label}")
        return tuple(chain)

    def _found(
        self, labels: tuple[str, ...], identity: tuple[str, ...], standing: Iterable[Standing]
    ) -> Standing | None:
        """Return the first pending call with the same identity and the same outer call chain."""
        outer = labels[: labels.index(self._spec.label)]
        for one in standing:
            if identity == one.caller[:3] and outer == one.ancestors:
                return one
        # An access without a user needs no call: a subject also asks during its import.
        return Standing(NOBODY, ()) if identity == _NO_ONE and not outer else None

    @cached_property
    def _rules(self) -> tuple[AccessRule, ...]:
        spec = self._spec
        read = (rule for rule in rules_for_paths(spec.own_read) if rule.operation == "read")
        return (*rules_from_json(spec.access), *rules_for_paths(spec.own_write), *read)

    @cached_property
    def _declared(self) -> str:
        return rules_to_json(self._rules)

    def _narrower(self, inner: Any) -> Iterable[tuple[str, str, str, int]]:
        """Return declarations of inner subjects, limited to those that the worker's own rules cover."""
        if type(inner) is not list or len(inner) > _MOST_LINKS:
            raise FrameError("malformed links")
        for link in inner:
            if type(link) is not list or [type(part) for part in link] != [str, str, str, int]:
                raise FrameError("malformed links")
        if sum(len(link[2]) for link in inner) > _LONGEST_RULES:
            raise FrameError("links with too many rules")
        for kind, name, declared, mode in inner:
            if mode == _EXACT:
                coverage = Coverage(self._rules)
                kept = tuple(rule for rule in rules_from_json(declared) if coverage.covers(rule))
                yield kind, name, rules_to_json(kept), _EXACT


def _identity(who: Any) -> tuple[str, ...]:
    if len(who) != len(_NO_ONE) or any(part is not None and type(part) is not str for part in who):
        raise FrameError("a malformed identity")
    return tuple(part or "" for part in who)
