"""Registered tools, agents and pipelines, and those that run in this process.

Each name that an asset uses is resolved before anything runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from democrai_sandbox import policy
from democrai_sandbox.errors.services import AssetUnknown, NestingTooDeep
from democrai_sandbox.guard import Entrance, Guard, entrance, plain, serve
from democrai_sandbox.guard.contexts import make_guard
from democrai_sandbox.runtime.calls.invocation import bounded
from democrai_sandbox.runtime.extensions.importer import Surface

from . import asset_calls
from .assets import Asset, Assets, host_asset, module_assets, worker_assets
from .model import KINDS, AgentLimits, AssetKind, AssetRun, KnownModels, Model, NamedModel
from .schema import signature_shape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from types import FunctionType

    from democrai_sandbox.access import Caller
    from democrai_sandbox.guard.interface import RawView
    from democrai_sandbox.manifests import ModuleManifest
    from democrai_sandbox.policy import AccessRule
    from democrai_sandbox.runtime.calls.outcome import Outcome
    from democrai_sandbox.runtime.worker.handle import WorkerHandle
    from democrai_sandbox.runtime.worker.process import SurfaceInfo

    from .asset_calls import Body

    Activate = Callable[[str, Caller], Guard]
    Apart = Callable[[Asset], Body | None]
    Elsewhere = Callable[[str], bool]
    Step = asset_calls.PipelineStep | asset_calls.UsedAsset | asset_calls.AbsentAsset


async def run_in_worker(
    worker: WorkerHandle, kind: str, name: str, params: dict[str, Any], *, caller: Caller, seconds: float
) -> AssetRun:
    """Run an asset in its worker by its short name, and return its result; raise its denial or error."""
    return asset_calls.as_run(kind, plain(await worker.call(kind, name, params, caller=caller, timeout=seconds)))


class ResolvedAssets:
    """Assets with their entrances. An asset that uses an unknown name has problems instead."""

    def __init__(
        self, assets: Assets, models: Mapping[str, Model], limits: AgentLimits, apart: Apart, elsewhere: Elsewhere
    ) -> None:
        """Create an entrance for each asset. Called by the host, outside every guard.

        ``apart`` returns the replacement for the function of an asset that runs in a separate process, ``elsewhere``
        whether an asset with an unknown name may exist, so that it is looked up when it is used.
        """
        self._apart, self._elsewhere = apart, elsewhere
        self._assets, self._models, self._limits = assets, models, limits
        self._made: dict[str, Entrance | None] = {}
        self._open: list[str] = []
        self.problems: dict[str, list[policy.Problem]] = {}
        """By the label of the asset."""
        for asset in assets:
            self.entrance(asset)

    def entrance(self, asset: Asset) -> Entrance | None:
        """Return the entrance of an asset, which may be declared after the others; None if it has problems."""
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
        pointer = policy.pointer_to(f"/{asset.kind}/{asset.short}", option)
        self.problems.setdefault(asset.label, []).append(policy.Problem(pointer, message))

    def _body(self, asset: Asset) -> Body | None:
        if asset.kind is AssetKind.TOOL:
            return self._apart(asset) or asset_calls.caller(asset_calls.Called(asset.function))
        made = self._agent(asset) if asset.kind is AssetKind.AGENT else self._pipeline(asset)
        return made and (self._apart(asset) or made)

    def _agent(self, asset: Asset) -> Body | None:
        found = [self._used(asset, AssetKind.TOOL.value, name, "tools") for name in dict.fromkeys(asset.tools)]
        tools = {f"tool:{tool.name}": tool for tool in found if tool is not None}
        used = [self._ready(tool) for tool in tools.values()]
        known = [tool for tool in used if isinstance(tool, asset_calls.UsedAsset)]
        if len(asset_calls.offered(known).tools) < len(known):
            self._refuse(asset, "tools", "two tools have the same name for the model")
        if asset.label in self.problems:
            return None
        return asset_calls.agent_body(
            asset_calls.AgentPlan(
                asset.name,
                asset_calls.Called(asset.function),
                asset.instructions,
                NamedModel(asset.model, self._models),
                asset_calls.prepared([tool for tool in used if tool is not None], asset_calls.offered),
                asset.limits.lowered(self._limits),
            )
        )

    def _pipeline(self, asset: Asset) -> Body | None:
        steps = [self._step(asset, step) for step in asset.steps]
        ready = [step for step in steps if step is not None]
        if len(ready) < len(steps):
            return None
        prepared = asset_calls.prepared(ready, asset_calls.pipeline_steps)
        return asset_calls.pipeline_body(asset.name, asset_calls.Called(asset.function), prepared, asset.seconds)

    def _step(self, asset: Asset, step: str | Callable[..., Any]) -> Step | None:
        if not isinstance(step, str):
            run = asset_calls.caller(asset_calls.Called(step, typed=False))
            return asset_calls.PipelineStep(f"function:{asset_calls.name_of(step)}", run)
        kind, colon, name = step.partition(":")
        used = self._used(asset, *((kind, name) if colon and kind in KINDS else ("", step)), "steps")
        made = None if used is None else self._ready(used)
        if used is not None and made is None:
            self._refuse(asset, "steps", f"{used.kind}:{used.name} cannot be used because it is broken")
        return made

    def _used(self, asset: Asset, kind: str, name: str, option: str) -> Asset | asset_calls.AbsentAsset | None:
        try:
            return self._assets.named(kind, name, asset.module)
        except AssetUnknown as error:
            if self._elsewhere(name):
                return asset_calls.AbsentAsset(kind, name)
            self._refuse(asset, option, str(error))
            return None

    def _ready(self, used: Asset | asset_calls.AbsentAsset) -> asset_calls.UsedAsset | asset_calls.AbsentAsset | None:
        if isinstance(used, asset_calls.AbsentAsset):
            return used
        made = self.entrance(used)
        return None if made is None else asset_calls.UsedAsset(used.label, *asset_calls.described(used), made)


def _entrance(asset: Asset, body: Body) -> Entrance:
    """Return the entrance of an asset: with ``access`` it has exactly those rights, without it those of its caller."""
    return entrance(
        asset_calls.entry(asset.schema, body),
        exact=asset.declaration.access is not None,
        whose=asset.function if asset.worker is None else None,
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
        if rule.resource_type is policy.ResourceType.FILESYSTEM
        and rule.operation is policy.Operation.READ
        and any(place in asset.places for place in policy.prefixes_of(rule.normalized_target))
    )


DEEPEST_NESTING = 24
"""Maximum depth of nested subjects."""


def too_deep(view: RawView) -> NestingTooDeep:
    """Return the error for a call by a subject that is nested too deeply."""
    return NestingTooDeep(f"{' -> '.join(view.labels[-3:])} is nested more than {DEEPEST_NESTING} deep")


class AiRuntime:
    """Registers the assets of modules and of the host, and runs each as its own subject, inside its caller."""

    def __init__(
        self,
        models: Mapping[str, Model] | None = None,
        activate: Activate | None = None,
        limits: AgentLimits | None = None,
        apart: Apart = lambda _asset: None,
        *,
        started: Callable[[str], Awaitable[None]] | None = None,
        elsewhere: Elsewhere = lambda _name: False,
    ) -> None:
        """Take the models by name, the factory of module guards, and the maximum limits of agents.

        ``started`` waits until a module is loaded. Assets with unknown names for which ``elsewhere`` is true are called
        through the service ``ai.run``.
        """
        self._started, self._elsewhere = started, elsewhere
        self.models = KnownModels(models)
        self._activate = activate
        self._apart = apart
        self._limits = limits or AgentLimits()
        self._assets = Assets()
        self._linked = self._resolved()
        self._known: dict[tuple[str, str, str], Entrance] = {}

    def _resolved(self) -> ResolvedAssets:
        return ResolvedAssets(self._assets, self.models, self._limits, self._apart, self._elsewhere)

    # ---- declaring ---------------------------------------------------------------------------------------------------

    def declare(
        self,
        manifest: ModuleManifest,
        surfaces: Iterable[Surface],
        own: Iterable[AccessRule] = (),
        *,
        bound: bool = True,
    ) -> None:
        """Register the assets of a module, or raise all problems and register none. ``link`` makes them usable.

        Without ``bound``, declarations may exceed the manifest, for a module that is recorded for a proposal.
        """
        self._assets.add(module_assets(manifest, surfaces, own, bound=bound))

    def declare_in_worker(
        self, manifest: ModuleManifest, surfaces: Iterable[SurfaceInfo], own: Iterable[AccessRule], worker: WorkerHandle
    ) -> None:
        """Register the assets that a module declared in its worker; ``own`` are the rules for the module's folders."""
        self._assets.add(worker_assets(manifest, surfaces, own, worker))

    def register(self, kind: AssetKind | str, function: Callable[..., Any], *, name: str, **options: Any) -> None:
        """Register a tool, agent or pipeline of the host, with the options of the SDK's decorators."""
        given = {"schema": signature_shape(function).schema, **options}
        self._assets.add([host_asset(_checked_kind(kind), name, function, given)])

    def link(self) -> Mapping[str, tuple[policy.Problem, ...]]:
        """Resolve all names, and return the problems by module ("" stands for the host).

        Modules with a problem are removed, and so are modules that use their shared assets; everything else runs.
        Running calls keep the assets they started with.
        """
        found: dict[str, tuple[policy.Problem, ...]] = {}
        while True:
            self._linked, self._known = self._resolved(), {}
            broken: dict[str, tuple[policy.Problem, ...]] = {}
            for asset in self._assets:
                problems = self._linked.problems.get(asset.label, ())
                if problems:
                    broken[asset.module or ""] = (*broken.get(asset.module or "", ()), *problems)
            found.update(broken)
            # A module is broken as a whole; other modules may use its shared assets.
            for module in filter(None, broken):
                self._assets.forget(module)
            if not any(broken):
                return found

    @property
    def assets(self) -> tuple[Asset, ...]:
        """All assets, here and in workers."""
        return tuple(self._assets)

    def asset(self, label: str) -> Asset | None:
        """Return an asset by the subject that it runs as."""
        kind, _, name = label.partition(":")
        return self._assets.get(KINDS[kind], name) if kind in KINDS else None

    @property
    def agents_by_model(self) -> Mapping[str, tuple[str, ...]]:
        """Agents by the model that they name, here and in workers, including models that the host lacks."""
        found: dict[str, set[str]] = {}
        for asset in self._assets:
            if asset.kind == AssetKind.AGENT:
                found.setdefault(asset.model, set()).add(asset.declaration.name)
        return {model: tuple(sorted(agents)) for model, agents in sorted(found.items())}

    # ---- running -----------------------------------------------------------------------------------------------------

    def entrance(self, view: RawView | None, kind: str, name: str) -> Callable[[Any], Awaitable[Outcome]]:
        """Return the entrance of an asset for the calling code: the service behind the SDK's ``run_...``.

        The guard is entered when the entrance is called, on top of the guard of that caller.
        """
        if view is None:
            return self.entrance_of(self._any(kind, name))
        if max(len(view.links), len(view.labels)) >= DEEPEST_NESTING:
            raise too_deep(view)
        asking, asked = view.links[-1], f"{_checked_kind(kind).value}:{_checked_name(name)}"
        found = self._known.get((asking[0], asking[1], asked))
        if found is None:
            try:
                asset = self._assets.resolve(_checked_kind(kind), name, self.module_of(view))
            except AssetUnknown:
                if self._elsewhere(name):
                    return asset_calls.forwarded(kind, name)
                raise
            found = self._known[asking[0], asking[1], asked] = self.entrance_of(asset)
        return found

    async def found(self, kind: str, name: str, module: str | None) -> Asset:
        """Return the asset that a module names, as soon as the asset's module is loaded; the kind may be empty."""
        if self._started is not None:
            await self._started(_checked_name(name).rpartition(".")[0])
        return self._assets.named(kind and _checked_kind(kind).value, _checked_name(name), module)

    async def run(
        self,
        kind: AssetKind | str,
        name: str,
        params: Mapping[str, Any],
        caller: Caller,
        *,
        seconds: float | None = None,
    ) -> AssetRun:
        """Run an asset by its full name on behalf of ``caller``, inside the guard of its module.

        Without ``seconds`` the time limit of agents applies. Code that does not stop when canceled is abandoned.
        """
        limit = self._limits.seconds if seconds is None else seconds
        if self._started is not None:
            await self._started(_checked_name(name).rpartition(".")[0])
        asset = self._any(kind, name)
        if asset.worker is not None:
            given = plain(dict(params))
            return await run_in_worker(asset.worker, asset.kind, asset.short, given, caller=caller, seconds=limit)
        entrance, given = self.entrance_of(asset), plain(dict(params))
        surface = Surface(asset.kind, asset.name, {}, cast("FunctionType", asset.function))
        with serve(caller):
            work = self._guard(asset, caller).run(entrance, given).isolated()
            outcome = await bounded(work, limit, surface)
        return asset_calls.as_run(asset.kind, plain(outcome))

    def _any(self, kind: AssetKind | str, name: str) -> Asset:
        """Return an asset by its full name, for the host."""
        asset = self._assets.get(_checked_kind(kind), _checked_name(name))
        if asset is None:
            hint = policy.hint_for(name, [other.name for other in self._assets if other.kind == kind])
            raise AssetUnknown(f"unknown {kind} {name!r}{hint}")
        return asset

    def entrance_of(self, asset: Asset) -> Entrance:
        """Return the entrance of a registered asset."""
        found = self._linked.entrance(asset)
        if found is None:
            problems = self._linked.problems.get(asset.label, ())
            raise AssetUnknown(f"{asset.label} cannot run: {'; '.join(map(str, problems))}")
        return found

    def module_of(self, view: RawView) -> str | None:
        """Return the module that the innermost subject of a call chain belongs to."""
        kind, _, name = view.labels[-1].partition(":")
        if kind == "module":
            return name
        asset = self.asset(view.labels[-1])
        return None if asset is None else asset.module

    def _guard(self, asset: Asset, caller: Caller) -> Guard:
        if asset.module is not None:
            if self._activate is None:
                raise AssetUnknown(f"{asset.label} belongs to a module, and this runtime has no modules")
            return self._activate(asset.module, caller)
        # The same subject as behind its entrance, to set the identity; the call chain contains it once.
        return make_guard(
            subject=asset.name,
            subject_kind=asset.kind.value,
            access=asset.declaration.access or (),
            allowed_imports=asset.declaration.allowed_imports,
            user_id=caller.user_id or None,
            organization_id=caller.organization_id or None,
            session_key=caller.session_key or None,
        )


def _checked_kind(kind: object) -> AssetKind:
    if type(kind) is AssetKind:
        return kind
    if type(kind) is str and kind in KINDS:
        return KINDS[kind]
    close = policy.nearest(kind, AssetKind) if type(kind) is str else None
    raise policy.InvalidInputError.of(f"expected one of {', '.join(AssetKind)}", pointer="/kind", suggestion=close)


def _checked_name(name: object) -> str:
    if type(name) is str and name:
        return name
    raise policy.InvalidInputError.of("expected the name of a tool, an agent or a pipeline", pointer="/name")
