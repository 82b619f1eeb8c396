"""Sources of the egress allowlist, and notification of their changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.manifests import EngineManifest, ManifestKind

from .approvals import Approvals
from .sources import (
    PERMANENT,
    SESSION,
    ApprovalSource,
    ConfigSource,
    InstallSource,
    ManifestSource,
    McpSource,
    Permitted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from democrai_sandbox.access import Access
    from democrai_sandbox.kernel.egress.interface import Source
    from democrai_sandbox.runtime.extensions import Registry
    from democrai_sandbox.runtime.store import RuntimeStore

    from .interface import Egress

_MANIFESTS = (ManifestKind.MODULE, ManifestKind.ENGINE, ManifestKind.EXTRACTOR)


class Following:
    """Sources of one allowlist. Decisions send notifications; the registry and stored configurations are polled."""

    def __init__(
        self,
        egress: Egress,
        access: Access,
        registry: Registry,
        store: RuntimeStore,
        endpoints: Mapping[str, str] | Callable[[], Mapping[str, str]],
    ) -> None:
        """Create the sources; nothing is followed yet."""
        self._egress = egress
        self._access = access
        self._registry = registry
        self._store = store
        self.installs = InstallSource()
        approvals = Approvals(access.node)
        self.sources: tuple[Source, ...] = (
            ConfigSource(_own_endpoints(access)),
            ConfigSource(endpoints),
            *(ManifestSource(kind, registry, store.settings) for kind in _MANIFESTS),
            McpSource(store.mcp_servers),
            ApprovalSource(approvals, PERMANENT),
            ApprovalSource(approvals, SESSION),
            self.installs,
        )
        self.permitted = Permitted(registry, self.sources)
        self._seen: object = None

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
        found = (self._store.mcp_servers(), self._configured())
        if found != self._seen:
            self._seen = found
            self.changed()

    def _configured(self) -> list[object]:
        return [
            self._store.settings(extension.kind.value, extension.name)
            for extension in self._registry.engines.values()
            if isinstance(extension.manifest, EngineManifest) and extension.manifest.runtime.allowed_config_urls
        ]


def _own_endpoints(access: Access) -> dict[str, str]:
    """Return the endpoints of the access-policy service itself, without which no decision would be possible."""
    stream = access.settings.stream.get("url")
    found = {"access_policy.database": access.settings.database}
    return {**found, "network.stream": stream} if isinstance(stream, str) else found
