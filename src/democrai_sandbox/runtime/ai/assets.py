"""Registry of tools, agents and pipelines, by kind and name."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors.ai import AssetUnknown
from democrai_sandbox.policy import InvalidInputError, Problem, nearest

from .interface import AssetKind, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from democrai_sandbox.manifests import AgentDeclaration, PipelineDeclaration, ToolDeclaration

    Declared = ToolDeclaration | AgentDeclaration | PipelineDeclaration


class Asset(NamedTuple):
    """A declared tool, agent or pipeline."""

    kind: AssetKind
    name: str
    """``<module>.<name>`` if a module declares it; the given name if the host does."""
    module: str | None
    function: Callable[..., Any]
    """Function of the module; called only inside the asset's guard."""
    schema: Mapping[str, Any]
    declaration: Declared
    shared: bool = False
    """Whether other modules may use it as well. Assets of the host are available to all."""
    tools: tuple[str, ...] = ()
    model: str = ""
    instructions: str = ""
    limits: Limits = Limits()
    steps: tuple[str | Callable[..., Any], ...] = ()
    seconds: float | None = None
    """Timeout of a pipeline."""
    places: tuple[str, ...] = ()
    """Folders that the runtime gave to the module; no declaration of another subject opens them."""

    @property
    def label(self) -> str:
        """Subject that it runs as: ``tool:demo.collect``."""
        return f"{self.kind.value}:{self.name}"

    @property
    def short(self) -> str:
        """Name without the module's name."""
        return self.name if self.module is None else self.name.removeprefix(f"{self.module}.")

    def is_open_to(self, module: str | None) -> bool:
        """Return whether a module may use it."""
        return self.shared or self.module is None or self.module == module


class Assets:
    """Registered assets. Names are unique within a kind."""

    def __init__(self) -> None:
        self._found: Mapping[str, Asset] = MappingProxyType({})

    def __iter__(self) -> Iterator[Asset]:
        """Yield all assets in the order of their registration."""
        return iter(self._found.values())

    def add(self, assets: Iterable[Asset]) -> None:
        """Add all assets, or none if a name is taken."""
        added = dict(self._found)
        problems = []
        for asset in assets:
            other = added.setdefault(asset.label, asset)
            if other is not asset:
                by = "the host" if other.module is None else f"module {other.module}"
                message = f"the name {asset.name!r} is taken: {by} has a {asset.kind} of that name"
                problems.append(Problem(f"/{asset.kind}/{asset.short}", message))
        if problems:
            raise InvalidInputError(problems)
        self._found = MappingProxyType(added)

    def forget(self, module: str) -> None:
        """Remove the assets of a module."""
        kept = {key: asset for key, asset in self._found.items() if asset.module != module}
        self._found = MappingProxyType(kept)

    def get(self, kind: AssetKind, name: str) -> Asset | None:
        """Return the asset with exactly this name."""
        return self._found.get(f"{kind.value}:{name}")

    def resolve(self, kind: AssetKind, name: str, module: str | None) -> Asset:
        """Return the asset that a module names: its own assets take precedence over shared ones.

        An asset that the module may not use gives the same error as an unknown one.
        """
        own = None if module is None else self.get(kind, f"{module}.{name}")
        found = own or self.get(kind, name)
        if found is not None and found.is_open_to(module):
            return found
        names = {asset.name for asset in self if asset.kind is kind and asset.is_open_to(module)}
        names |= {asset.short for asset in self if asset.kind is kind and asset.module == module}
        close = nearest(name, sorted(names))
        raise AssetUnknown(f"unknown {kind} {name!r}" + (f"; did you mean {close!r}?" if close else ""))
