"""Sources of the egress allowlist: configuration, manifests, the MCP registry, approvals and installations.

Other connections that the guard permits, such as hosts of a pattern, are observed by the kernel layer itself.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, Any

from democrai_sandbox import policy
from democrai_sandbox.errors import ExternalAccessCheckFailed
from democrai_sandbox.kernel.egress.allowlist import EndpointSource, SourceEntry
from democrai_sandbox.manifests import EngineManifest, ManifestKind
from democrai_sandbox.policy.hosts import LOOPBACK, LOOPBACK_ADDRESSES, host_key, is_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from democrai_sandbox.access import Access
    from democrai_sandbox.access.node import AccessNode
    from democrai_sandbox.access.values import DecisionRow
    from democrai_sandbox.guard.interface import RawView
    from democrai_sandbox.kernel.egress.control import EgressControl
    from democrai_sandbox.runtime.extensions.registry import Registry
    from democrai_sandbox.runtime.store import RuntimeStore

    Configuration = Callable[[str, str], Mapping[str, Any]]
    """Reads the stored configuration of an engine or extractor, by kind and name."""

_WRITING = (policy.Operation.CREATE, policy.Operation.MODIFY, policy.Operation.DELETE)
_RESOURCES = (policy.ResourceType.FILESYSTEM, policy.ResourceType.NETWORK)
_PARTS = frozenset({"task", "tool", "agent", "pipeline", "skill"})


class Approvals:
    """Approvals in force on this node, without denied ones."""

    def __init__(self, node: AccessNode) -> None:
        """Read from the node's snapshot, which never blocks."""
        self._node = node

    def rows(self, resource_type: policy.ResourceType, subject: tuple[str, str] | None = None) -> Iterator[DecisionRow]:
        """Yield the approvals of one subject (kind and name) or of all."""
        return self._node.snapshot.approved(resource_type.value, time_ns() // 1000, subject)

    @property
    def are_known(self) -> bool:
        """Whether the node can answer; otherwise it reports no approvals."""
        try:
            return self._node.snapshot is not None
        except ExternalAccessCheckFailed:
            return False

    def of_caller(self, view: RawView) -> tuple[policy.AccessRule, ...]:
        """Return the approvals for the subject of a view: permanent ones and those of its session."""
        return self._rules_of_caller(view, _RESOURCES)

    def programs_of(self, view: RawView) -> tuple[str, ...]:
        """Return the programs that are approved for the subject of a view."""
        rules = self._rules_of_caller(view, (policy.ResourceType.SYSTEM_DEPENDENCY,))
        return tuple(rule.normalized_target for rule in rules)

    def of_worker(self, kind: str, name: str) -> tuple[policy.AccessRule, ...]:
        """Return all approvals for a subject and its parts in any session, because its process serves all of them."""

        def is_inside(who: tuple[str, str]) -> bool:
            part = kind == "module" and who[0] in _PARTS and who[1].startswith(f"{name}.")
            return part or who == (kind, name)

        return self._rules(is_inside, _RESOURCES, None)

    def written_by(self, subject: policy.Subject) -> Iterator[str]:
        """Yield the paths that a subject or its parts may write by approval, in any session."""
        for rule in self.of_worker(subject.kind.value, subject.name):
            if rule.resource_type is policy.ResourceType.FILESYSTEM and any(rule.operation is act for act in _WRITING):
                yield rule.normalized_target

    def _rules_of_caller(self, view: RawView, kinds: tuple[policy.ResourceType, ...]) -> tuple[policy.AccessRule, ...]:
        actor = view.actor
        return self._rules(lambda who: who == actor, kinds, str(view.session_key or ""))

    def _rules(
        self, wanted: Callable[[tuple[str, str]], bool], kinds: tuple[policy.ResourceType, ...], session_key: str | None
    ) -> tuple[policy.AccessRule, ...]:
        try:
            subjects = [who for who in self._node.snapshot.subjects if wanted(who)]
            found = [row for who in subjects for kind in kinds for row in self.rows(kind, who)]
        except ExternalAccessCheckFailed:
            return ()  # a node that cannot answer has no known approvals
        mine = (row for row in found if session_key is None or row.session_key in ("", session_key))
        return tuple(dict.fromkeys(map(rule_of, mine)))


def rule_of(row: DecisionRow) -> policy.AccessRule:
    """Return an approval as a rule; its target is already canonical."""
    return policy.AccessRule(
        policy.ResourceType(row.resource_type), policy.Operation(row.operation), row.target, row.target
    )


PERMANENT = "access_policy_approvals"
SESSION = "access_policy_session_approvals"


def config_source(endpoints: Mapping[str, str] | Callable[[], Mapping[str, str]]) -> EndpointSource:
    """Return the remote services of the host's own configuration, such as its database: ``config.<name>``.

    A URL without a host, such as a database file, is ignored later.
    """

    def entries() -> Iterator[SourceEntry]:
        given = endpoints() if callable(endpoints) else endpoints
        return (SourceEntry(url, f"config.{name}") for name, url in given.items())

    return EndpointSource("config", entries)


def _manifest_entries(kind: ManifestKind, registry: Registry, configuration: Configuration) -> Iterator[SourceEntry]:
    """Yield the network rules of sound manifests, including the install phase, and configured URLs."""
    for extension in registry:
        manifest = extension.manifest
        if extension.kind is not kind or extension.is_broken or manifest is None:
            continue
        label = str(extension.subject)
        for section in filter(None, manifest.sections.values()):
            rules = (rule for rule in section.access if rule.resource_type is policy.ResourceType.NETWORK)
            yield from (SourceEntry(rule, label) for rule in rules)
        if isinstance(manifest, EngineManifest):
            keys = manifest.runtime.allowed_config_urls
            stored = configuration(kind.value, extension.name) if keys else {}
            yield from (SourceEntry(text, label) for key in keys for text in _texts(stored.get(key)))


def _mcp_entries(store: RuntimeStore) -> Iterator[SourceEntry]:
    """Yield the endpoints of the registered and enabled MCP servers."""
    return (SourceEntry(server.target, f"mcp:{server.name}") for server in store.mcp_servers() if server.enabled)


def _approval_entries(approvals: Approvals, name: str) -> Iterator[SourceEntry]:
    """Yield the targets of permanent approvals, or those of sessions.

    Only the guard can tell sessions apart, because packets have none.
    """
    for row in approvals.rows(policy.ResourceType.NETWORK):
        if bool(row.session_key) is (name == SESSION):
            yield SourceEntry(row.target, name)


class InstallSource:
    """Needs of running installations: the package hosts of pip's configuration."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: Counter[tuple[policy.AccessRule, str]] = Counter()

    @contextmanager
    def needing(self, rules: Iterable[policy.AccessRule], label: str) -> Iterator[None]:
        """Add the network rules of an installation while it runs."""
        wanted = Counter((rule, label) for rule in rules if rule.resource_type is policy.ResourceType.NETWORK)
        with self._lock:
            self._wanted += wanted
        try:
            yield
        finally:
            with self._lock:
                self._wanted -= wanted

    def endpoints(self) -> Iterator[SourceEntry]:
        """Yield the current rules."""
        with self._lock:
            wanted = list(self._wanted)
        return (SourceEntry(rule, label) for rule, label in wanted)


class PermittedSource:
    """Checks whether an observed endpoint is still permitted by a rule or approval.

    Packets have no subject, so the rules of all subjects count. A subject that is not registered got its guard from the
    host's own code: only that guard knows its rights, and its endpoints expire.
    """

    def __init__(self, registry: Registry, sources: Iterable[EndpointSource]) -> None:
        """Take the sources. They are read once, until ``forget``."""
        self._sources = tuple(sources)
        self._known = frozenset(str(extension.subject) for extension in registry)
        self._version = 0
        self._known_hosts: _KnownHosts | None = None

    def forget(self) -> None:
        """Read the sources again after a change."""
        self._version += 1
        self._known_hosts = None

    def __call__(self, kind: str, subject: str, host: str, port: int) -> bool:
        """Return whether a host and a port are still permitted, as the guard observed them."""
        return not self._is_known(kind, subject) or self._read().covers(host_key(host), port)

    def _is_known(self, kind: str, subject: str) -> bool:
        """Return whether a subject is an extension, or a part of a module such as ``tool:reports.collect``."""
        module = f"module:{subject.rpartition('.')[0]}"
        return kind == "mcp" or f"{kind}:{subject}" in self._known or module in self._known

    def _read(self) -> _KnownHosts:
        places, version = self._known_hosts, self._version
        if places is None:
            places = _KnownHosts(entry.target for source in self._sources for entry in source.endpoints())
            if version == self._version:  # otherwise it may be outdated
                self._known_hosts = places
        return places


class _KnownHosts:
    """Hosts and ports of targets."""

    def __init__(self, targets: Iterable[Any]) -> None:
        self._hosts: set[tuple[str, int | None]] = set()
        self._patterns: list[policy.NetworkTarget] = []
        for target in targets:
            text = getattr(target, "normalized_target", target)
            try:
                parsed = policy.parse_declaration(text)
            except policy.InvalidInputError:
                continue  # reported by the allowlist, which omits it too
            if parsed.kind in (policy.TargetKind.WILDCARD, policy.TargetKind.NETWORK):
                self._patterns.append(parsed)
            elif parsed.kind is not policy.TargetKind.UNIX:
                self._hosts.add((host_key(parsed.host), parsed.port))

    def covers(self, host: str, port: int) -> bool:
        """Return whether one of the targets covers a connection."""
        if (host, port) in self._hosts or (host, None) in self._hosts:
            return True
        return any(target.port in (None, port) and _is_of(target, host) for target in self._patterns)


def _is_of(target: policy.NetworkTarget, host: str) -> bool:
    if target.kind is policy.TargetKind.WILDCARD:
        return host.endswith(f".{target.host}")
    addresses = LOOPBACK_ADDRESSES if host == LOOPBACK else (ipaddress.ip_address(host),) if is_address(host) else ()
    return any(address in ipaddress.ip_network(target.host) for address in addresses)


def _texts(value: Any) -> Iterator[str]:
    """Yield the strings of a configured value or list; other types are reported when the engine starts."""
    for text in value if isinstance(value, list) else [value]:
        if type(text) is str and text:
            yield text


_MANIFESTS = (ManifestKind.MODULE, ManifestKind.ENGINE, ManifestKind.EXTRACTOR)


@dataclass(eq=False, repr=False)
class AllowlistSources:
    """Sources of one allowlist. Decisions send notifications; the registry and stored configurations are polled."""

    _egress: EgressControl
    _access: Access
    _registry: Registry
    _store: RuntimeStore
    _endpoints: Mapping[str, str] | Callable[[], Mapping[str, str]]
    installs: InstallSource = field(default_factory=InstallSource, init=False)
    _seen: object = field(default=None, init=False)

    def __post_init__(self) -> None:
        approvals, stored = Approvals(self._access.node), self._store.settings
        self.sources: tuple[EndpointSource, ...] = (
            config_source(_own_endpoints(self._access)),
            config_source(self._endpoints),
            *(
                EndpointSource(f"{kind.value} manifests", partial(_manifest_entries, kind, self._registry, stored))
                for kind in _MANIFESTS
            ),
            EndpointSource("mcp registry", partial(_mcp_entries, self._store)),
            *(EndpointSource(name, partial(_approval_entries, approvals, name)) for name in (PERMANENT, SESSION)),
            EndpointSource("installations", self.installs.endpoints),
        )
        self.permitted = PermittedSource(self._registry, self.sources)

    def begin(self) -> None:
        """Give the allowlist its sources, and follow them."""
        for source in self.sources:
            self._egress.builder.add(source)
        self._egress.observed.still_permitted = self.permitted
        self._access.node.on_change(self.changed)
        self._access.node.add_chore(self._look)
        self.changed()

    def changed(self) -> None:
        """Schedule a rebuild of the allowlist. Thread-safe."""
        self.permitted.forget()
        self._egress.changed()

    def refresh(self, reason: str) -> None:
        """Rebuild the allowlist, and wait until it is in force."""
        self.permitted.forget()
        self._egress.refresh(reason, wait=True)

    def _look(self) -> None:
        """Poll for new entries of any node: neither registry nor configurations send notifications."""
        configured = [
            self._store.settings(extension.kind.value, extension.name)
            for extension in self._registry.engines.values()
            if isinstance(extension.manifest, EngineManifest) and extension.manifest.runtime.allowed_config_urls
        ]
        found = (self._store.mcp_servers(), configured)
        if found != self._seen:
            self._seen = found
            self.changed()


def _own_endpoints(access: Access) -> dict[str, str]:
    """Return the endpoints of the access-policy service itself, without which no decision would be possible."""
    stream = access.settings.stream.get("url")
    found = {"access_policy.database": access.settings.database}
    return {**found, "network.stream": stream} if isinstance(stream, str) else found
