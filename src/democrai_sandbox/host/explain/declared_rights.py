"""Rights of the subjects of a call chain without decisions, and the effect of the kernel layer on an access."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox import policy
from democrai_sandbox.access.targets import RequestedTarget
from democrai_sandbox.errors import StoreUnavailable
from democrai_sandbox.guard.runtime_paths import STREAM, covers, runtime_entries
from democrai_sandbox.host.directories import READING, protected_paths
from democrai_sandbox.kernel.application import readable, writable
from democrai_sandbox.kernel.status import EGRESS, LANDLOCK, SECCOMP, ControlState
from democrai_sandbox.manifests import EngineManifest, ExtractorManifest, ModuleManifest
from democrai_sandbox.policy import ResourceType, TargetKind, is_at_or_below
from democrai_sandbox.policy.hosts import host_key
from democrai_sandbox.runtime.ai.runtime import own_places
from democrai_sandbox.runtime.installs.environments import EnvironmentFolder, config_rules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.host.sandbox import Sandbox
    from democrai_sandbox.kernel.application import Kernel
    from democrai_sandbox.kernel.egress.allowlist import Allowlist
    from democrai_sandbox.kernel.status import ControlStatus
    from democrai_sandbox.policy import AccessRule, NetworkTarget

_PARTS = frozenset({policy.SubjectKind.TOOL, policy.SubjectKind.AGENT, policy.SubjectKind.PIPELINE})
_SCRATCH = policy.FileAccess.READ | policy.FileAccess.CREATE | policy.FileAccess.MODIFY | policy.FileAccess.DELETE
_EVERY_BIT = int(_SCRATCH | policy.FileAccess.EXECUTE)
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
    extension = sandbox.runtime.registry.find(str(subject))
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
    asset = next((one for one in sandbox.runtime.ai.assets if one.label == str(subject)), None)
    if asset is None:
        return DeclaredRights(subject, str(subject), is_known=False, note=f"no {subject.kind} has this name")
    owner = None if asset.module is None else policy.Subject(policy.SubjectKind.MODULE, asset.module)
    module = None if owner is None else declared_rights(sandbox, owner)
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
    """Return the subjects of a call chain, innermost first, each with whether it counts.

    The runtime merges guards: a subject may use its declared access and that of the subjects around it. A tool, agent
    or pipeline with its own ``access`` list, an MCP server, an engine and an extractor inherit nothing. Decisions
    always concern the innermost subject only.
    """
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
    return any(one.label == str(subject) and one.declaration.access is not None for one in sandbox.runtime.ai.assets)


def _in_phase(grants: DeclaredRights, *, installing: bool) -> DeclaredRights:
    """Return the grants of the install phase instead of the runtime phase."""
    if not installing:
        return grants
    return replace(grants, rules=grants.install_rules, other_rules=grants.rules, install_rules=())


class KernelView(NamedTuple):
    """Result of one control for an access."""

    lets_through: bool | None
    """None if the control does not apply or is not in force."""
    text: str
    disagreement: str = ""
    """Set if the control and the guard give different results."""


def kernel_view(kernel: Kernel, wanted: RequestedTarget, *, allowed: bool) -> KernelView:
    """Return the kernel's result; ``allowed`` is the guard's result."""
    if wanted.resource_type is ResourceType.FILESYSTEM:
        return _landlock(kernel, wanted, allowed=allowed)
    if wanted.parsed is not None:
        return _egress(kernel, wanted.parsed, allowed=allowed)
    text = "the spawn server starts programs and confines them to the rules of their subject"
    if kernel.spawn is None:
        return KernelView(lets_through=None, text="programs are started directly, without confinement")
    ended = "; other programs that the application starts are killed with SIGSYS" if SECCOMP in kernel.wanted else ""
    return KernelView(lets_through=None, text=f"{text}{ended}")


def outside_lists(kernel: Kernel, rules: Iterable[AccessRule]) -> tuple[AccessRule, ...]:
    """Return the file rules that Landlock denies to the whole application."""
    if kernel.baseline is None:
        return ()
    absent = _missing(kernel)
    return tuple(rule for rule in rules if all(root in absent for root in _roots(kernel, rule)))


def _roots(kernel: Kernel, wanted: RequestedTarget | AccessRule) -> list[str]:
    target = wanted.target if isinstance(wanted, RequestedTarget) else wanted.normalized_target
    listed = readable(kernel.baseline) if wanted.operation in READING else writable(kernel.baseline)
    return [path for path in listed if is_at_or_below(target, path)]


def _missing(kernel: Kernel) -> tuple[str, ...]:
    """Return the listed paths that did not exist when Landlock was applied."""
    missing = kernel.status()[LANDLOCK].details.get("missing")
    return missing if isinstance(missing, tuple) else ()


def _landlock(kernel: Kernel, wanted: RequestedTarget, *, allowed: bool) -> KernelView:
    if kernel.baseline is None:
        text = _absent(kernel, LANDLOCK, "Landlock does not restrict this process")
        return KernelView(lets_through=None, text=text)
    reading = wanted.operation in READING
    absent = _missing(kernel)
    roots = _roots(kernel, wanted)
    root = next((path for path in roots if path not in absent), None)
    if root is not None:
        what = "read" if reading else "written"
        children = "; its children are also restricted by their own rules" if kernel.spawn else ""
        text = f"Landlock allows it for the whole application: {root} may be {what}{children}"
        return KernelView(lets_through=True, text=text)
    text = f"Landlock denies {wanted.target} to the whole application"
    if not allowed:
        return KernelView(lets_through=False, text=text)
    extra = "extra_read_paths" if reading else "extra_write_paths"
    fix = f"create it, add it to sandbox.os.landlock.{extra} and restart"
    if roots:
        fix = f"{roots[0]} did not exist when the application started: create it and restart"
    disagreement = f"the guard allows it, but the kernel does not: {fix}"
    return KernelView(lets_through=False, text=text, disagreement=disagreement)


def _egress(kernel: Kernel, target: NetworkTarget, *, allowed: bool) -> KernelView:
    if target.kind is TargetKind.UNIX:
        return KernelView(lets_through=None, text="the packet filter does not apply to unix sockets")
    if kernel.egress is None:
        return KernelView(lets_through=None, text=_absent(kernel, EGRESS, "no packet filter is in force"))
    sources = _wanting(kernel.egress.builder.build(), target)
    packets = f"packets to {target.host} port {target.port}" if target.port else f"packets to {target.host}"
    text = f"{packets} are allowed for {', '.join(sources)}" if sources else f"{packets} are blocked"
    if not allowed:
        other = "the kernel allows it for other subjects; only the guard denies it to this one" if sources else ""
        return KernelView(lets_through=bool(sources), text=text, disagreement=other)
    status = kernel.egress.status()
    if flaw := _flaw(status, target, wanted=bool(sources)):
        disagreement = f"the guard allows it, but the packet filter does not: {flaw}"
        return KernelView(lets_through=False, text=f"{packets} are blocked", disagreement=disagreement)
    doubt = _doubt(status)
    if sources:
        return KernelView(lets_through=True, text=text, disagreement=doubt)
    text += " until the guard permits the first connection"
    return KernelView(lets_through=None, text=text, disagreement=doubt)


def _flaw(status: ControlStatus, target: NetworkTarget, *, wanted: bool) -> str:
    """Return why packets to an allowed target are blocked; empty without a known reason."""
    if target.host in _listed(status, "withheld"):
        return (
            f"{target.host} resolves to a loopback or link-local address, which a DNS name may not open: "
            "declare the address instead of the name"
        )
    if target.host in _listed(status, "unresolved"):
        return f"{target.host} could not be resolved: correct the name, or the DNS configuration"
    failed = _listed(status, "failed_sources")
    if failed and not wanted:
        return f"sources of the allowlist could not be read: {'; '.join(map(str, failed))}"
    return ""


def _doubt(status: ControlStatus) -> str:
    """Return why the packet filter may be out of date; empty if it is current."""
    if status.state is ControlState.ACTIVE:
        return ""
    fix = f"; to fix it: {status.fix}" if status.fix else ""
    return f"the packet filter is {status.state} and may differ from this result: {status.reason}{fix}"


def _listed(status: ControlStatus, name: str) -> list[object]:
    found = status.details.get(name)
    return found if isinstance(found, list) else []


def _absent(kernel: Kernel, name: str, text: str) -> str:
    """Return that a control is not in force, and why if it is enabled."""
    told = f"{text}; only the guard decides"
    if name not in kernel.wanted:
        return told
    status = kernel.status()[name]
    return f"{told}. It is enabled, but: {status.reason}{f'; to fix it: {status.fix}' if status.fix else ''}"


def _wanting(allowlist: Allowlist, target: NetworkTarget) -> list[str]:
    names: set[str] = set()
    for one in allowlist.endpoints:
        is_host = host_key(one.host) == host_key(target.host) or target.host in one.addresses
        if is_host and target.port in (None, one.port):
            names.update(filter(None, one.source.split(",")))
    return sorted(names)
