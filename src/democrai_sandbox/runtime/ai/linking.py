"""Resolution of assets: each name that an agent or a pipeline uses is looked up once, before anything runs."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors.ai import AssetUnknown
from democrai_sandbox.guard import Entrance, entrance
from democrai_sandbox.policy import Operation, Problem, ResourceType, pointer_to, prefixes_of

from .agents import AgentPlan, ToolLink, agent_body
from .calling import Called, caller, entry, flags_of, name_of
from .interface import AssetKind, Limits, Model, ToolOffer
from .naming import NamedModel
from .pipelines import PipelinePlan, Step, pipeline_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .assets import Asset, Assets
    from .calling import Body

    Apart = Callable[[Asset], Body | None]

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_OFFER = 64


class Linked:
    """Assets with their entrances. An asset that uses an unknown name has problems instead."""

    def __init__(
        self, assets: Assets, models: Mapping[str, Model], limits: Limits, apart: Apart = lambda _asset: None
    ) -> None:
        """Create an entrance for each asset. Called by the host, outside every guard.

        ``apart`` returns the replacement for the function of a tool that runs in a separate process.
        """
        self._apart = apart
        self._assets, self._models, self._limits = assets, models, limits
        self._made: dict[str, Entrance | None] = {}
        self._open: list[str] = []
        self.problems: dict[str, list[Problem]] = {}
        """By the label of the asset."""
        for asset in assets:
            self._link(asset)
        self.entrances: Mapping[str, Entrance] = MappingProxyType(
            {label: made for label, made in self._made.items() if made is not None}
        )
        """By the label of the asset."""

    def _link(self, asset: Asset) -> Entrance | None:
        if asset.label in self._made:
            return self._made[asset.label]
        if asset.label in self._open:
            self._refuse(asset, "steps", f"{asset.label} contains itself: {' -> '.join((*self._open, asset.label))}")
            return None
        self._open.append(asset.label)
        body = self._body(asset)
        self._open.remove(asset.label)
        made = None if body is None or asset.label in self.problems else _entrance(asset, body)
        self._made[asset.label] = made
        return made

    def _refuse(self, asset: Asset, option: str, message: str) -> None:
        pointer = pointer_to(f"/{asset.kind}/{asset.short}", option)
        self.problems.setdefault(asset.label, []).append(Problem(pointer, message))

    def _body(self, asset: Asset) -> Body | None:
        if asset.kind is AssetKind.TOOL:
            return self._apart(asset) or caller(called(asset.function))
        return self._agent(asset) if asset.kind is AssetKind.AGENT else self._pipeline(asset)

    def _agent(self, asset: Asset) -> Body | None:
        tools, made = self._tools(asset)
        names = offer_names(tools)
        if len(set(names.values())) < len(names):
            self._refuse(asset, "tools", "two tools have the same name for the model")
        if asset.label in self.problems:
            return None
        return agent_body(
            AgentPlan(
                asset.name,
                called(asset.function),
                asset.instructions,
                NamedModel(asset.model, self._models),
                tuple(ToolOffer(names[tool.label], _about(tool), tool.schema) for tool in tools),
                MappingProxyType({names[label]: ToolLink(label, way) for label, way in made.items()}),
                asset.limits.lowered(self._limits),
            )
        )

    def _tools(self, asset: Asset) -> tuple[list[Asset], dict[str, Entrance]]:
        """Return the tools that an agent names, and their entrances by label."""
        found = [self._used(asset, AssetKind.TOOL, name, "tools") for name in asset.tools]
        tools = {tool.label: tool for tool in found if tool is not None}
        made = {label: self._link(tool) for label, tool in tools.items()}
        return list(tools.values()), {label: way for label, way in made.items() if way is not None}

    def _pipeline(self, asset: Asset) -> Body | None:
        steps = [self._step(asset, step) for step in asset.steps]
        ready = tuple(step for step in steps if step is not None)
        if len(ready) < len(steps):
            return None
        return pipeline_body(PipelinePlan(asset.name, called(asset.function), ready, asset.seconds))

    def _step(self, asset: Asset, step: str | Callable[..., Any]) -> Step | None:
        if not isinstance(step, str):
            return Step(f"function:{name_of(step)}", None, called(step, typed=False))
        kind, colon, name = step.partition(":")
        if colon and kind in tuple(AssetKind):
            used = self._used(asset, AssetKind(kind), name, "steps")
        else:
            used = self._any(asset, step)
        made = None if used is None else self._link(used)
        if used is None or made is None:
            if used is not None:
                self._refuse(asset, "steps", f"{used.label} cannot be used because it is broken")
            return None
        return Step(used.label, made, None, used.kind is not AssetKind.TOOL, _only(used.schema))

    def _used(self, asset: Asset, kind: AssetKind, name: str, option: str) -> Asset | None:
        try:
            return self._assets.resolve(kind, name, asset.module)
        except AssetUnknown as error:
            self._refuse(asset, option, str(error))
            return None

    def _any(self, asset: Asset, name: str) -> Asset | None:
        """Return the only asset with a name that was given without its kind."""
        found = []
        for kind in AssetKind:
            try:
                found.append(self._assets.resolve(kind, name, asset.module))
            except AssetUnknown:
                continue
        if len(found) == 1:
            return found[0]
        several = ", ".join(one.label for one in found)
        message = f"{name!r} is ambiguous: use one of {several}" if found else f"unknown step {name!r}"
        self._refuse(asset, "steps", message)
        return None


def called(function: Callable[..., Any], *, typed: bool = True) -> Called:
    """Return the call information of a function."""
    return Called(function, bool(flags_of(function) & inspect.CO_COROUTINE), typed)


def offer_names(tools: Iterable[Asset]) -> dict[str, str]:
    """Return the names of tools for models, by label: without dots, and without the module if they stay unique."""
    listed = list(tools)
    short = Counter(_offered(tool.short) for tool in listed)
    return {
        tool.label: _offered(tool.short) if short[_offered(tool.short)] == 1 else _offered(tool.name) for tool in listed
    }


def _offered(name: str) -> str:
    return _NOT_IN_A_NAME.sub("_", name)[-_LONGEST_OFFER:]


def _about(tool: Asset) -> str:
    return str(tool.declaration.description or tool.schema.get("description", ""))


def _only(schema: Mapping[str, Any]) -> str:
    """Return the parameter for a value that is not an object: the only one, or the only required one."""
    names, required = list(schema.get("properties", ())), schema.get("required", [])
    only = names if len(names) == 1 else required
    return str(only[0]) if len(only) == 1 else ""


def _entrance(asset: Asset, body: Body) -> Entrance:
    """Return the entrance of an asset: with ``access`` it has exactly those rights, without it those of its caller."""
    return entrance(
        entry(asset.schema, body),
        exact=asset.declaration.access is not None,
        whose=asset.function,
        subject=asset.name,
        subject_kind=asset.kind.value,
        access=asset.declaration.access or (),
        allowed_imports=asset.declaration.allowed_imports,
        own_read=own_places(asset),
    )


def own_places(asset: Asset) -> tuple[str, ...]:
    """Return the folders of the module that the declaration of an asset lets it read.

    These folders are protected, so they have to be named as the asset's own.
    """
    return tuple(
        rule.normalized_target
        for rule in asset.declaration.access or ()
        if rule.resource_type is ResourceType.FILESYSTEM
        and rule.operation is Operation.READ
        and any(place in asset.places for place in prefixes_of(rule.normalized_target))
    )
