"""Explain an access from a manifest only, without a node and its decisions."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from democrai_sandbox.access.values import AccessTuple
from democrai_sandbox.host.sentences import rule_words
from democrai_sandbox.manifests import EngineManifest, ExtractorManifest, McpServer, ModuleManifest, load_manifest
from democrai_sandbox.policy import InvalidInputError, SubjectKind

from . import explanation

if TYPE_CHECKING:
    from collections.abc import Callable

    from democrai_sandbox.manifests import Manifest
    from democrai_sandbox.policy import AccessRule


_KINDS = (
    (frozenset({SubjectKind.MODULE, SubjectKind.TASK}), ModuleManifest),
    (frozenset({SubjectKind.ENGINE}), EngineManifest),
    (frozenset({SubjectKind.EXTRACTOR}), ExtractorManifest),
    (frozenset({SubjectKind.MCP}), McpServer),
)


def explain_by_manifest(file: str, question: explanation.AccessToExplain) -> explanation.Explanation:
    """Return whether a manifest declares an access. Paths from the runtime and decisions are unknown here."""
    rules = _rules(_loaded(file, question), installing=question.installing)
    refused = explanation.refusal_on_the_way(question, partial(_explain, file, rules, None))
    return refused or _explain(file, rules, os.path.realpath, question)


def _explain(
    file: str,
    rules: tuple[AccessRule, ...],
    place_of: Callable[[str], str] | None,
    question: explanation.AccessToExplain,
) -> explanation.Explanation:
    wanted = explanation.read_question(question, place_of)
    if isinstance(wanted, explanation.Explanation):
        return wanted
    access = AccessTuple(question.subject, wanted.resource_type, wanted.operation, wanted.target)
    rule, near = explanation.covering_rule(rules, wanted), None
    if rule is not None:
        words = rule_words(question.subject, rule.resource_type, rule.operation, rule.normalized_target)
        layer = explanation.LayerAnswer(
            "declared", explanation.LayerEffect.ALLOWS, f"{file} declares that {words}", decides=True
        )
    else:
        near = explanation.nearest_rule(rules, wanted)
        told = f"; the nearest rule is {near.rule.normalized_target}: {near.why}" if near else ""
        layer = explanation.LayerAnswer(
            "declared",
            explanation.LayerEffect.SILENT,
            f"{file} does not declare it{told}{explanation.pattern_note(question)}",
        )
    verdict = explanation.AccessVerdict.NEEDS_APPROVAL if rule is None else explanation.AccessVerdict.ALLOWED
    said = rule_words(access.subject, access.resource_type, access.operation, access.target, may=rule is not None)
    return explanation.Explanation(
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


def _loaded(file: str, question: explanation.AccessToExplain) -> Manifest:
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
