"""Explain why an access or an error line is allowed or denied, layer by layer: on a node now, or by a manifest."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from democrai_sandbox import policy
from democrai_sandbox.access.snapshot import answering, covers
from democrai_sandbox.access.values import AccessTuple, DecisionEffect, DecisionFilter, DecisionScope, PageRequest
from democrai_sandbox.errors.error_line import read_line
from democrai_sandbox.guard.runtime_paths import is_host_code, is_inside_host_code
from democrai_sandbox.host.decisions import rule_words
from democrai_sandbox.host.overview import known_subjects
from democrai_sandbox.manifests import EngineManifest, ExtractorManifest, McpServer, ModuleManifest, load_manifest
from democrai_sandbox.policy import InvalidInputError, SubjectKind
from democrai_sandbox.policy.rules import written_target

from . import explanation
from .declared_rights import chain_subjects, is_around_protected, is_protected, kernel_view, rule_owner, runtime_path
from .explanation import AccessToExplain, AccessVerdict, Explanation, LayerAnswer, LayerEffect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from democrai_sandbox.access.targets import RequestedTarget
    from democrai_sandbox.access.values import Decision
    from democrai_sandbox.errors.error_line import ErrorLine
    from democrai_sandbox.host.sandbox import Sandbox
    from democrai_sandbox.manifests import Manifest
    from democrai_sandbox.policy import AccessRule

    from .declared_rights import DeclaredRights

_MOVING = frozenset({policy.Operation.CREATE, policy.Operation.DELETE})
_AT_ONCE = 500
_MOST_DECISIONS = 20_000


def explain(sandbox: Sandbox, question: AccessToExplain) -> Explanation:
    """Return the result of this access now. The caller must check who may know it.

    Read-only: it files no request, records and counts nothing, and uses no guard. Without a node, decisions are
    unknown.
    """
    return explanation.explained(question, lambda asked, wanted: _Explainer(sandbox, asked, wanted).explained())


@dataclass(frozen=True, slots=True)
class _DeclarationResult:
    answer: LayerEffect
    text: str
    rule: policy.AccessRule | None = None
    nearest: explanation.Nearest | None = None
    is_final: bool = False
    """Whether approval is impossible."""


class _Explainer:
    def __init__(self, sandbox: Sandbox, question: AccessToExplain, wanted: RequestedTarget) -> None:
        self._sandbox = sandbox
        self._question = question
        self._wanted = wanted
        self._subject = question.subject
        self._access = AccessTuple(question.subject, wanted.resource_type, wanted.operation, wanted.target)
        self._links = chain_subjects(sandbox, question.chain, installing=question.installing)
        self._counting = tuple(link.grants for link in self._links if link.counts)
        self._grants = self._links[0].grants

    def explained(self) -> Explanation:
        declared = self._declared()
        layers = [self._target_layer()]
        if len(self._links) > 1:
            members = "; ".join(f"{link.subject}: {link.text}" for link in reversed(self._links))
            layers.append(LayerAnswer("chain", LayerEffect.SILENT, f"call chain, outermost first: {members}"))
        layers += [LayerAnswer("declared", declared.answer, declared.text), *self._recorded()]
        verdict, decisive = self._verdict(declared, {layer.layer: layer for layer in layers})
        kernel = kernel_view(self._sandbox.kernel, self._wanted, allowed=verdict is AccessVerdict.ALLOWED)
        effect = {True: LayerEffect.ALLOWS, False: LayerEffect.DENIES, None: LayerEffect.SILENT}[kernel.lets_through]
        layers.append(LayerAnswer("kernel", effect, kernel.text))
        pending = next((layer.request for layer in layers if layer.request is not None), None)
        told = verdict is not AccessVerdict.ALLOWED and not declared.is_final
        waiting = pending if verdict is AccessVerdict.PENDING else None
        hint = explanation.hint_for(self._access, waiting, installing=self._question.installing) if told else ""
        found = Explanation(
            self._question,
            verdict,
            self._words(verdict),
            tuple(replace(layer, decides=True) if layer.layer == decisive else layer for layer in layers),
            access=self._access,
            rule=declared.rule,
            nearest=declared.nearest,
            hint=hint,
            entry=_entry(self._access) if told else None,
            file=self._grants.file,
            kernel=kernel.disagreement,
            links=self._links,
        )
        return replace(found, advice=explanation.advice_for(found, is_final=declared.is_final))

    # ---- layers ------------------------------------------------------------------------------------------------------

    def _target_layer(self) -> LayerAnswer:
        wanted, given = self._wanted, self._question.target
        text = f"the target is {wanted.target}" if wanted.target == given else f"{given} is read as {wanted.target}"
        if explanation.has_parent_steps(self._question):
            text = f"{given} leads to {wanted.target}, which decides; each folder before .. must be readable as well"
        text += explanation.pattern_note(self._question)
        if wanted.is_ambiguous:
            text += "; servers read its path differently, so only a rule without a path covers it"
        return LayerAnswer("target", LayerEffect.SILENT, text)

    def _declared(self) -> _DeclarationResult:
        if self._wanted.resource_type is policy.ResourceType.FILESYSTEM and (found := self._place()) is not None:
            return found
        rules = [rule for grants in self._counting for rule in grants.rules]
        rule = next(
            filter(None, (explanation.covering_rule(grants.rules, self._wanted) for grants in self._counting)), None
        )
        if rule is not None:
            grants = rule_owner(self._links, rule)
            words = rule_words(grants.subject, rule.resource_type, rule.operation, rule.normalized_target)
            text = f"{grants.source} declares that {words}{_noted(grants)}"
            return _DeclarationResult(LayerEffect.ALLOWS, text, rule)
        near, grants = explanation.nearest_rule(rules, self._wanted), self._grants
        if explanation.covering_rule(grants.install_rules, self._wanted) is not None:
            text = f"{grants.source} declares it for the install phase only, not for the runtime phase"
        elif explanation.covering_rule(grants.other_rules, self._wanted) is not None:
            text = f"{grants.source} declares it for the runtime phase only, not for the install phase"
        elif near is not None:
            grants = rule_owner(self._links, near.rule)
            text = f"{grants.source} does not declare it; the nearest rule is {near.rule.normalized_target}: {near.why}"
        else:
            text = f"{grants.source} declares nothing similar"
        return _DeclarationResult(LayerEffect.SILENT, f"{text}{_noted(grants)}", nearest=near)

    def _place(self) -> _DeclarationResult | None:
        """Return the result for paths with a special role, which take precedence over the rules."""
        path, operation = self._wanted.target, self._wanted.operation
        for grants in self._counting:
            if own := grants.own_place(path, policy.file_access(operation)):
                return _DeclarationResult(LayerEffect.ALLOWS, f"the runtime gives {own} to {grants.subject}")
        if is_protected(self._sandbox, path):
            text = "it is a protected path: no rule can allow it, and it cannot be approved"
            return _DeclarationResult(LayerEffect.DENIES, text, is_final=True)
        if operation in _MOVING and is_around_protected(self._sandbox, path):
            what = "it contains a protected path: no rule can allow a subject to"
            text = f"{what} {operation} it, and it cannot be approved"
            return _DeclarationResult(LayerEffect.DENIES, text, is_final=True)
        if is_host_code(path, operation) and not self._is_declared_inside():
            text = "it is or contains code of the host, which subjects cannot change: it cannot be approved"
            return _DeclarationResult(LayerEffect.DENIES, text, is_final=True)
        has_runtime_paths = any(grants.has_runtime_paths for grants in self._counting)
        if has_runtime_paths and (root := runtime_path(path, operation)):
            text = f"{root} is a runtime path, which every subject may {operation}"
            return _DeclarationResult(LayerEffect.ALLOWS, text)
        return None

    def _is_declared_inside(self) -> bool:
        """Whether a rule names a path inside the code of the host, and not only an ancestor folder."""
        rules = filter(None, (explanation.covering_rule(grants.rules, self._wanted) for grants in self._counting))
        return any(is_inside_host_code(os.path.realpath(rule.normalized_target)) for rule in rules)

    def _recorded(self) -> Iterable[LayerAnswer]:
        decisions = self._decisions()
        denials = [one for one in decisions if one.effect is DecisionEffect.DENIAL]
        sessions = [one for one in decisions if one.scope is DecisionScope.SESSION]
        approvals = [one for one in decisions if one.effect is DecisionEffect.APPROVAL]
        permanent = [one for one in approvals if one.scope is DecisionScope.PERMANENT]
        yield self._decided("denial", denials, "no denial is recorded")
        yield self._decided("session_approval", sessions, self._no_session(sessions))
        yield self._decided("permanent_approval", permanent, "no permanent approval is recorded")
        yield self._waiting()

    def _decisions(self) -> list[Decision]:
        """Return the decisions in force about this subject and operation."""
        found: list[Decision] = []
        about = DecisionFilter(
            subject=self._subject, resource_type=self._wanted.resource_type, operation=self._wanted.operation
        )
        page = PageRequest(limit=_AT_ONCE)
        while len(found) < _MOST_DECISIONS:
            listing = self._sandbox.access.store.decisions(about, page)
            found += listing.items
            if not listing.next:
                break
            page = PageRequest(limit=_AT_ONCE, after=listing.next)
        return found

    def _decided(self, layer: str, decisions: list[Decision], otherwise: str) -> LayerAnswer:
        now = self._sandbox.access.node.clock()
        found = answering(decisions, self._wanted, self._question.session_key, now)
        if found is None:
            return LayerAnswer(layer, LayerEffect.SILENT, otherwise)
        allows = found.effect is DecisionEffect.APPROVAL
        access = found.access
        words = rule_words(access.subject, access.resource_type, access.operation, access.target, may=allows)
        why = f", because: {found.reason}" if found.reason else ""
        text = f"{found.created_by} decided that {words}{why}"
        return LayerAnswer(layer, LayerEffect.ALLOWS if allows else LayerEffect.DENIES, text, decision=found)

    def _no_session(self, sessions: list[Decision]) -> str:
        """Return that it is not approved in this session, and the number of sessions in which it is."""
        others = {one.session_key for one in sessions if covers(one.access, self._access)}
        what = "not approved in this session" if self._question.session_key else "no session was given"
        return f"{what}; {explanation.OTHER_SESSIONS} {len(others)}" if others else what

    def _waiting(self) -> LayerAnswer:
        waiting = self._sandbox.access.store.waiting_for(self._access)
        if not waiting:
            return LayerAnswer("request", LayerEffect.SILENT, "no pending request")
        mine = [one for one in waiting if one.origin.user_id == self._question.user_id]
        whose = "this user" if mine and self._question.user_id else waiting[0].origin.user_id or "no user"
        many = "1 pending request" if len(waiting) == 1 else f"{len(waiting)} pending requests"
        text = f"{many}, one of them by {whose}" if len(waiting) > 1 else f"{many} by {whose}"
        return LayerAnswer("request", LayerEffect.SILENT, text, request=(mine or waiting)[0])

    # ---- verdict -----------------------------------------------------------------------------------------------------

    def _verdict(self, declared: _DeclarationResult, layers: Mapping[str, LayerAnswer]) -> tuple[AccessVerdict, str]:
        """Return the verdict and the deciding layer, in the order of a check."""
        if declared.is_final:
            return AccessVerdict.DENIED, "declared"
        order = ["declared", "denial", "session_approval", "permanent_approval"]
        if self._subject.kind is policy.SubjectKind.MCP:
            order[:2] = ["denial", "declared"]  # a check precedes each contact with the server's endpoint
        for name in order:
            if layers[name].answer is not LayerEffect.SILENT:
                allows = layers[name].answer is LayerEffect.ALLOWS
                return AccessVerdict.ALLOWED if allows else AccessVerdict.DENIED, name
        if self._wanted.is_ambiguous:
            return AccessVerdict.DENIED, "target"
        return (AccessVerdict.PENDING, "request") if layers["request"].request else (AccessVerdict.NEEDS_APPROVAL, "")

    def _words(self, verdict: AccessVerdict) -> str:
        access = self._access
        may = verdict is AccessVerdict.ALLOWED
        words = rule_words(access.subject, access.resource_type, access.operation, access.target, may=may)
        why = {
            AccessVerdict.PENDING: "; a request is pending",
            AccessVerdict.NEEDS_APPROVAL: "; it is neither declared nor approved",
        }
        return f"{words[0].upper()}{words[1:]}{why.get(verdict, '')}."


def _noted(grants: DeclaredRights) -> str:
    return f" ({grants.note})" if grants.note else ""


def _entry(access: AccessTuple) -> dict[str, str]:
    return {
        "resource_type": access.resource_type.value,
        "operation": access.operation.value,
        "target": written_target(access.resource_type, access.target),
    }


_MOST = 6
_INSTALL = "install"
_PHASED = frozenset({policy.SubjectKind.ENGINE, policy.SubjectKind.EXTRACTOR})
_REQUESTS = (policy.Operation.RECEIVE, policy.Operation.SEND)


@dataclass(frozen=True, slots=True)
class LineExplanation:
    """Meaning of a line, and the current state of its access."""

    reading: ErrorLine
    explanations: tuple[Explanation, ...] = ()
    """Only those that are not allowed, if any; the line may not say which one it is about."""
    note: str = ""


def explain_line(sandbox: Sandbox, line: str, *, user_id: str = "", session_key: str = "") -> LineExplanation:
    """Return the meaning of a line; reject unknown lines. The caller must check who may know it."""
    reading = read_line(line)
    if not reading.resource_type or not reading.target or reading.word is not None:
        return LineExplanation(reading)
    chains = tuple(_chains(sandbox, reading))[:_MOST]
    if not chains:
        return LineExplanation(reading, note=f"unknown subject {reading.subject}: the line may come from another host")
    who, kind, installing = (user_id, session_key), reading.resource_type, reading.phase == _INSTALL
    asked = [
        explain(sandbox, AccessToExplain(chain[-1], kind, operation, reading.target, *who, chain[:-1], installing))
        for chain in chains
        for operation in _operations(reading)
    ]
    standing = [one for one in asked if one.verdict is not AccessVerdict.ALLOWED]
    if not standing:
        note = "it would be allowed now: it was declared or approved after the line was written"
        return LineExplanation(reading, tuple(asked[:_MOST]), note)
    return LineExplanation(reading, tuple(standing[:_MOST]), _note(reading, chains, standing))


def _note(reading: ErrorLine, chains: tuple[policy.SubjectChain, ...], standing: list[Explanation]) -> str:
    open_ends = []
    if not reading.operation and len(standing) > 1:
        open_ends.append("for which operation it was")
    if len(chains) > 1:
        open_ends.append("which of several subjects with that name it was")
    if not reading.phase and any(chain[-1].kind in _PHASED for chain in chains):
        open_ends.append("whether it was in the install phase; this answer is for the runtime phase")
    return f"the line does not say {' and '.join(open_ends)}" if open_ends else ""


def _operations(reading: ErrorLine) -> Iterable[policy.Operation]:
    valid = policy.VALID_OPERATIONS[policy.ResourceType(reading.resource_type)]
    if named := tuple(policy.Operation(one) for one in reading.operations if one in valid):
        return named
    if reading.operation in valid:
        return (policy.Operation(reading.operation),)
    if reading.resource_type == policy.ResourceType.NETWORK:
        return _REQUESTS if "://" in reading.target else (policy.Operation.CONNECT,)
    return tuple(one for one in policy.Operation if one in valid)


def _chains(sandbox: Sandbox, reading: ErrorLine) -> Iterator[policy.SubjectChain]:
    """Yield the possible call chains: the one in the line, or every subject with that name."""
    try:
        if reading.chain:
            yield policy.chain_from_list(reading.chain)
            return
        if ":" in reading.subject:
            yield (policy.Subject.parse(reading.subject),)
            return
    except policy.InvalidInputError:
        pass  # a name with a colon
    for one in known_subjects(sandbox):
        if one.subject.name == reading.subject:
            yield (one.subject,)


_KINDS = (
    (frozenset({SubjectKind.MODULE, SubjectKind.TASK}), ModuleManifest),
    (frozenset({SubjectKind.ENGINE}), EngineManifest),
    (frozenset({SubjectKind.EXTRACTOR}), ExtractorManifest),
    (frozenset({SubjectKind.MCP}), McpServer),
)


def explain_by_manifest(file: str, question: AccessToExplain) -> Explanation:
    """Return whether a manifest declares an access. Paths from the runtime and decisions are unknown here."""
    rules = _rules(_loaded(file, question), installing=question.installing)
    return explanation.explained(question, partial(_explain_by_rules, file, rules))


def _explain_by_rules(
    file: str, rules: tuple[AccessRule, ...], question: AccessToExplain, wanted: RequestedTarget
) -> Explanation:
    access = AccessTuple(question.subject, wanted.resource_type, wanted.operation, wanted.target)
    rule, near = explanation.covering_rule(rules, wanted), None
    if rule is not None:
        words = rule_words(question.subject, rule.resource_type, rule.operation, rule.normalized_target)
        layer = LayerAnswer("declared", LayerEffect.ALLOWS, f"{file} declares that {words}", decides=True)
    else:
        near = explanation.nearest_rule(rules, wanted)
        told = f"; the nearest rule is {near.rule.normalized_target}: {near.why}" if near else ""
        layer = LayerAnswer(
            "declared", LayerEffect.SILENT, f"{file} does not declare it{told}{explanation.pattern_note(question)}"
        )
    verdict = AccessVerdict.NEEDS_APPROVAL if rule is None else AccessVerdict.ALLOWED
    said = rule_words(access.subject, access.resource_type, access.operation, access.target, may=rule is not None)
    return Explanation(
        question,
        verdict,
        f"According to the manifest alone, {said}.",
        (layer,),
        access=access,
        rule=rule,
        nearest=near,
        hint="" if rule else explanation.hint_for(access, installing=question.installing),
        file=file,
    )


def _loaded(file: str, question: AccessToExplain) -> Manifest:
    kind = next((model for kinds, model in _KINDS if question.subject.kind in kinds), None)
    if kind is None:
        what = f"a {question.subject.kind} has no manifest: use its module, or an engine, extractor or MCP server"
        raise InvalidInputError.of(what, pointer="/subject")
    name = question.subject.name
    if question.subject.kind is SubjectKind.TASK:
        name = name.rpartition(".")[0] or name
    manifest = load_manifest(file, kind, name=name)
    if manifest.name != name:
        raise InvalidInputError.of(f"{file} is the manifest of {manifest.name}, not of {name}", pointer="/subject")
    return manifest


def _rules(manifest: Manifest, *, installing: bool) -> tuple[AccessRule, ...]:
    if isinstance(manifest, EngineManifest | ExtractorManifest):
        return manifest.install.access if installing else manifest.runtime.access
    return manifest.access if isinstance(manifest, ModuleManifest | McpServer) else ()
