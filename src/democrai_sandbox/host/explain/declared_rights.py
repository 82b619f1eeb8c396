"""Rights of the subjects of a call chain without decisions: their declarations, and the paths from the runtime.

The runtime merges guards: a subject may use its declared access and that of the subjects around it. A tool, agent or
pipeline with its own ``access`` list, an MCP server, an engine and an extractor inherit nothing. Decisions always
concern the innermost subject only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from democrai_sandbox import policy
from democrai_sandbox.errors import StoreUnavailable
from democrai_sandbox.guard.runtime_paths import STREAM, covers, runtime_entries
from democrai_sandbox.host.directories import protected_paths
from democrai_sandbox.manifests import EngineManifest, ExtractorManifest, ModuleManifest
from democrai_sandbox.runtime.ai.runtime import own_places
from democrai_sandbox.runtime.installs.environments import EnvironmentFolder, config_rules

if TYPE_CHECKING:
    from democrai_sandbox.host.sandbox import Sandbox

_PARTS = frozenset({policy.SubjectKind.TOOL, policy.SubjectKind.AGENT, policy.SubjectKind.PIPELINE})
_EVERY_BIT = int(
    policy.FileAccess.READ
    | policy.FileAccess.CREATE
    | policy.FileAccess.MODIFY
    | policy.FileAccess.DELETE
    | policy.FileAccess.EXECUTE
)
_SCRATCH = policy.FileAccess.READ | policy.FileAccess.CREATE | policy.FileAccess.MODIFY | policy.FileAccess.DELETE
_CONTACT = frozenset({policy.Operation.SEND, policy.Operation.RECEIVE})


@dataclass(frozen=True, slots=True)
class DeclaredRights:
    """Declarations of a subject, and where they are."""

    subject: policy.Subject
    source: str
    """Place of the declarations: ``manifest.json of module reports``."""
    file: str = ""
    rules: tuple[policy.AccessRule, ...] = ()
    install_rules: tuple[policy.AccessRule, ...] = ()
    """Rules of the install phase only."""
    other_rules: tuple[policy.AccessRule, ...] = ()
    """Rules of the runtime phase only, if these are the grants of the install phase."""
    own_read: tuple[str, ...] = ()
    own_write: tuple[str, ...] = ()
    has_runtime_paths: bool = True
    is_known: bool = True
    note: str = ""

    def own_place(self, path: str, access: policy.FileAccess) -> str:
        """Return the subject's folder that allows this access to a path; empty without one."""
        for folders, mask in ((self.own_read, policy.FileAccess.READ), (self.own_write, _SCRATCH)):
            for folder in folders:
                if access & mask and policy.is_at_or_below(path, os.path.realpath(folder)):
                    return folder
        return ""


def declared_rights(sandbox: Sandbox, subject: policy.Subject) -> DeclaredRights:
    """Return a subject's grants. Reads the registries without changing them."""
    if subject.kind in _PARTS:
        return _of_part(sandbox, subject)
    if subject.kind is policy.SubjectKind.SKILL:
        note = "the host's code runs a skill and sets its access; decisions count as well"
        return DeclaredRights(subject, "the process_guard_context(...) of the host", note=note)
    if subject.kind is policy.SubjectKind.TASK:
        module = policy.Subject(policy.SubjectKind.MODULE, subject.name.rpartition(".")[0] or subject.name)
        note = f"a {subject.kind} has the rights of its caller: {module}"
        return replace(declared_rights(sandbox, module), subject=subject, note=note)
    if subject.kind is policy.SubjectKind.MCP:
        return _of_server(sandbox, subject)
    if subject.kind is policy.SubjectKind.CORE:
        note = "code of the host runs without a guard; its access checks are answered by decisions only"
        return DeclaredRights(subject, "the host", has_runtime_paths=False, note=note)
    return _of_extension(sandbox, subject)


def is_protected(sandbox: Sandbox, path: str) -> bool:
    """Return whether the host protects a path from all subjects except the owner of that folder."""
    return any(policy.is_at_or_below(path, root) for root in _protected(sandbox))


def is_around_protected(sandbox: Sandbox, path: str) -> bool:
    """Return whether a path contains a protected path, so that no rule allows creating or deleting it."""
    return any(root != path and policy.is_at_or_below(root, path) for root in _protected(sandbox))


def _protected(sandbox: Sandbox) -> tuple[str, ...]:
    runtime = sandbox.runtime
    shut = (*runtime.settings.protected, *protected_paths(sandbox.settings), *runtime.confinement.protected)
    return tuple(map(os.path.realpath, shut))


def runtime_path(path: str, operation: policy.Operation) -> str:
    """Return the runtime path that allows this to every subject; empty without one."""
    wanted = int(policy.file_access(operation))
    for entry, mask in runtime_entries():
        root = os.path.realpath(os.fsdecode(entry))
        if wanted & mask & _EVERY_BIT and covers(root, mask, path):
            return root
        if operation is policy.Operation.MODIFY and mask & STREAM and path == root:
            return root
    return ""


def _of_extension(sandbox: Sandbox, subject: policy.Subject) -> DeclaredRights:
    registry = sandbox.runtime.registry
    kinds = {
        policy.SubjectKind.MODULE: registry.modules,
        policy.SubjectKind.ENGINE: registry.engines,
        policy.SubjectKind.EXTRACTOR: registry.extractors,
    }
    extension = kinds[subject.kind].get(subject.name)
    if extension is None:
        return DeclaredRights(subject, str(subject), is_known=False, note=f"no {subject.kind} has this name")
    manifest, data = extension.manifest, sandbox.runtime.settings.data_of(subject)
    source = f"manifest.json of {subject.kind} {subject.name}"
    note = f"it is broken and cannot run: {'; '.join(map(str, extension.problems))}" if extension.is_broken else ""
    known = DeclaredRights(subject, source, own_read=(extension.folder,), own_write=(data,), note=note)
    if manifest is None:
        return known
    known = replace(known, file=manifest.source.path)
    if isinstance(manifest, ModuleManifest):
        return replace(known, rules=manifest.access)
    if not isinstance(manifest, EngineManifest | ExtractorManifest):
        return known
    installed = EnvironmentFolder(sandbox.runtime.settings.data_dir, subject).installed()
    own = (extension.folder, *((installed.folder,) if installed else ()))
    rules = manifest.runtime.access
    if isinstance(manifest, EngineManifest) and manifest.runtime.allowed_config_urls:
        configured, note = _configured(sandbox, manifest, note)
        rules = (*rules, *configured)
    return replace(known, rules=rules, install_rules=manifest.install.access, own_read=own, note=note)


def _configured(sandbox: Sandbox, manifest: EngineManifest, note: str) -> tuple[tuple[policy.AccessRule, ...], str]:
    """Return the rules for the URLs in an engine's stored settings."""
    try:
        stored = sandbox.runtime.store.settings(manifest.kind.value, manifest.name)
        return config_rules(manifest.runtime.allowed_config_urls, stored), note
    except (policy.InvalidInputError, StoreUnavailable) as error:
        return (), f"{note} its configured URLs could not be read: {error}".strip()


def _of_part(sandbox: Sandbox, subject: policy.Subject) -> DeclaredRights:
    asset = next((one for one in sandbox.runtime.ai.declared if one.label == str(subject)), None)
    if asset is None:
        return DeclaredRights(subject, str(subject), is_known=False, note=f"no {subject.kind} has this name")
    module = (
        None
        if asset.module is None
        else declared_rights(sandbox, policy.Subject(policy.SubjectKind.MODULE, asset.module))
    )
    source = f"the declaration of {subject.kind} {subject.name}"
    if asset.declaration.access is not None:
        file, rules = "" if module is None else module.file, asset.declaration.access
        return DeclaredRights(subject, source, file, rules, own_read=own_places(asset))
    if module is None:
        return DeclaredRights(subject, source, note="it declares nothing and has the rights of its caller")
    return replace(module, subject=subject, note=f"it declares nothing and has the rights of {module.subject}")


def _of_server(sandbox: Sandbox, subject: policy.Subject) -> DeclaredRights:
    source = f"the registry entry of MCP server {subject.name}"
    try:
        server = sandbox.runtime.store.mcp_server(subject.name)
    except LookupError:
        note = "no MCP server with this name is registered"
        return DeclaredRights(subject, source, has_runtime_paths=False, is_known=False, note=note)
    rules = tuple(rule for rule in server.access if rule.operation in _CONTACT)
    note = "" if server.enabled else "the server is disabled"
    return DeclaredRights(subject, source, rules=rules, has_runtime_paths=False, note=note)


_ALONE = frozenset(
    {policy.SubjectKind.MCP, policy.SubjectKind.ENGINE, policy.SubjectKind.EXTRACTOR, policy.SubjectKind.CORE}
)
_PLACES = frozenset({policy.SubjectKind.TASK, policy.SubjectKind.SKILL})
"""Kinds that only name where code runs, and declare nothing."""


@dataclass(frozen=True, slots=True)
class ChainSubject:
    """Subject of a call chain, and whether its declarations count."""

    grants: DeclaredRights
    counts: bool
    text: str

    @property
    def subject(self) -> policy.Subject:
        """Owner of the declarations."""
        return self.grants.subject


def chain_subjects(
    sandbox: Sandbox, chain: policy.SubjectChain, *, installing: bool = False
) -> tuple[ChainSubject, ...]:
    """Return the subjects of a call chain, innermost first, each with whether it counts."""
    if len(chain) == 1:
        grants = _in_phase(declared_rights(sandbox, chain[0]), installing=installing)
        return (ChainSubject(grants, counts=True, text="it acts itself"),)
    found: list[ChainSubject] = []
    apart = ""
    for subject in reversed(chain):
        grants = _in_phase(_declared_by(sandbox, subject), installing=installing and not found)
        if apart:
            text = f"it does not count: {apart} inherits nothing from its callers"
        elif not grants.is_known:
            text = grants.note
        elif subject.kind in _PLACES:
            text = "it declares nothing"
        else:
            text = "its declarations count" if grants.rules else "it has no declarations that count"
        found.append(ChainSubject(grants, counts=not apart, text=text))
        if not apart and _stands_alone(sandbox, subject):
            apart = str(subject)
    return tuple(found)


def rule_owner(links: tuple[ChainSubject, ...], rule: policy.AccessRule) -> DeclaredRights:
    """Return the owner of a rule."""
    return next(link.grants for link in links if rule in link.grants.rules)


def _declared_by(sandbox: Sandbox, subject: policy.Subject) -> DeclaredRights:
    """Return a subject's declarations; without any, it has the rights of its callers in this chain."""
    known = declared_rights(sandbox, subject)
    if subject.kind in _PLACES or (subject.kind in _PARTS and not _stands_alone(sandbox, subject)):
        note = "it declares nothing and has the rights of its caller" if known.is_known else known.note
        source = f"the declaration of {subject.kind} {subject.name}"
        return DeclaredRights(subject, source, note=note, is_known=known.is_known)
    return known


def _stands_alone(sandbox: Sandbox, subject: policy.Subject) -> bool:
    if subject.kind not in _PARTS:
        return subject.kind in _ALONE
    return any(one.label == str(subject) and one.declaration.access is not None for one in sandbox.runtime.ai.declared)


def _in_phase(grants: DeclaredRights, *, installing: bool) -> DeclaredRights:
    """Return the grants of the install phase instead of the runtime phase."""
    if not installing:
        return grants
    return replace(grants, rules=grants.install_rules, other_rules=grants.rules, install_rules=())
