"""Calls of tools, agents and pipelines between processes: the host finds an asset for its caller, and calls it.

A worker can send anything, but its view was verified: the identity and the call chain are those of a pending call.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any

from democrai_sandbox import policy
from democrai_sandbox.errors import TamperDenied
from democrai_sandbox.errors.services import ModelFailed
from democrai_sandbox.guard import Guard, door, plain, serve
from democrai_sandbox.guard.contexts import make_guard
from democrai_sandbox.guard.interface import RawView
from democrai_sandbox.manifests import common_rules
from democrai_sandbox.runtime.access_environment import caller_of
from democrai_sandbox.runtime.sdk_services import SdkFutures
from democrai_sandbox.runtime.worker.host_requests import KnownCaller, SharedCall

from .asset_calls import ARGUMENTS, described
from .model import AssetKind, Message, Model, NamedModel, ToolCall, ToolOffer
from .runtime import DEEPEST_NESTING, AiRuntime, own_places, too_deep
from .schema import argument_check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from democrai_sandbox.access import Caller
    from democrai_sandbox.runtime.calls.invocation import GuardFactory
    from democrai_sandbox.runtime.worker.handle import WorkerHandle
    from democrai_sandbox.runtime.worker.process import WorkerSpec

    from .asset_calls import Body
    from .assets import Asset

_EXACT = 1
_MOST_NAMES = 100


class SharedCalls:
    """Calls of assets in workers, and the services with which workers use assets and models of the host."""

    def __init__(self, ai: AiRuntime, activation: Callable[[str], GuardFactory]) -> None:
        """Take the assets, and the function that returns the guards of a module."""
        self._ai = ai
        self._activation = activation
        self.promises = SdkFutures("the call of another process", patience=300.0)

    def services(self) -> dict[str, Callable[..., Any]]:
        """Return the services for code here and in workers."""
        return {"ai.run": self.run, "ai.offers": self.offers}

    # ---- services ----------------------------------------------------------------------------------------------------

    def run(self, view: RawView | None, kind: Any, name: Any, given: Any) -> Any:
        """Call an asset for a subject, with the rights that it would have in one process: the service ``ai.run``."""
        asking = _required(view)
        if len(asking.labels) >= DEEPEST_NESTING:
            raise too_deep(asking)
        return self.promises.promise(self._run(asking, caller_of(asking), (kind, name), given))

    def offers(self, view: RawView | None, names: Any) -> Any:
        """Describe assets that an agent or a pipeline uses: the service ``ai.offers``."""
        asking = _required(view)
        if type(names) is not list or len(names) > _MOST_NAMES or not all(map(_is_pair, names)):
            raise policy.InvalidInputError.of(f"expected at most {_MOST_NAMES} kinds and names", pointer="/names")
        return self.promises.promise(self._offers(self._ai.module_of(asking), names))

    def complete(self, view: RawView | None, name: str, messages: list[Any], tools: list[Any]) -> Any:
        """Ask a model for an agent in a worker: the service ``ai.complete``."""
        asking = _required(view)
        agent = self._ai.asset(asking.labels[-1])
        if agent is None or agent.worker is None or agent.kind is not AssetKind.AGENT or agent.model != name:
            raise policy.InvalidInputError.of("an agent can only use the model that it declared", pointer="/model")
        said = tuple(
            Message(role, text, tuple(ToolCall(*call) for call in calls), to) for role, text, calls, to in messages
        )
        offers = tuple(ToolOffer(*offer) for offer in tools)
        model = NamedModel(name, self._ai.models)
        return self.promises.promise(_completed(_guard_of(asking), model, said, offers))

    async def _offers(self, module: str | None, names: list[Any]) -> list[Any]:
        found = [await self._ai.found(kind, name, module) for kind, name in names]
        return [[asset.kind.value, asset.name, *described(asset)] for asset in found]

    async def _run(self, view: RawView, caller: Caller, named: tuple[Any, Any], given: Any) -> Any:
        module = self._ai.module_of(view)
        asset = await self._ai.found(*named, module)
        try:
            argument_check(asset.schema)(given)
        except policy.InvalidInputError as error:
            return [ARGUMENTS, [[item.pointer, item.message, item.suggestion] for item in error.problems]]
        if asset.worker is None:
            return await self._run_here(asset, view, caller, given)
        if asset.module == module:
            raise policy.InvalidInputError.of(f"{asset.label} runs in the worker of its module", pointer="/name")
        shared = self._shared(asset, asset.worker.spec, view)
        return await _called(asset.worker, asset, KnownCaller(caller, view.labels, shared), given)

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def _run_here(self, asset: Asset, view: RawView, caller: Caller, given: Any) -> Any:
        """Run an asset of this process inside a guard like that of its caller."""
        entrance = self._ai.entrance_of(asset)
        with serve(caller):
            steps: Any = self._guard(view, caller).run(entrance, given)
            return list(plain(await steps.isolated()))

    def _guard(self, view: RawView, caller: Caller) -> Guard:
        """Return a guard with the rights of a caller, also to its own folders."""
        module = self._ai.module_of(view)
        exact = any(mode == _EXACT for *_, mode in view.links)
        if exact or module is None or view.links[0][:2] != ("module", module):
            last = self._narrowing(view)
            return _guard_of(view, () if last is None else own_places(last), self._imports(view, last))
        return self._activation(module).below(view.chain[:-1], view.chain[-1]).guard(caller)

    def body(self, asset: Asset, worker: WorkerHandle) -> Body:
        """Return a body for the entrance of an asset in a worker. Called by the host, outside every guard."""

        def ask(view: tuple[Any, ...] | None, given: dict[str, Any]) -> Any:
            raw = None if view is None else RawView(*view)
            if raw is None or raw.labels[-1] != asset.label or raw.narrowed:
                raise TamperDenied(asset.label)
            shared = None if asset.worker is None else self._shared(asset, worker.spec, raw)
            call = KnownCaller(caller_of(raw), raw.labels[:-1], shared)
            return self.promises.promise(_called(worker, asset, call, given))

        knock = door(ask)

        async def run(given: Any) -> Any:
            return await knock(given)

        return run

    def _shared(self, asset: Asset, spec: WorkerSpec, view: RawView) -> SharedCall:
        """Return the rights that a caller lends to an asset without an ``access`` list, as far as the worker has them.

        Another process cannot have the rights of the caller: the kernel confines it to the rights of its module.
        """
        if asset.declaration.access is not None:
            return SharedCall(asset.label, "[]")
        imports = self._imports(view, self._narrowing(view))
        rules = _common(tuple(rule for link in view.allow_chain for rule in link.rules), spec.rules)
        return SharedCall(asset.label, rules, tuple(sorted(set(imports) & set(spec.allowed_imports))))

    @staticmethod
    def _imports(view: RawView, last: Asset | None) -> Iterable[str]:
        """Return the imports of a caller, whose innermost list is that of ``last``."""
        return view.allowed_imports if last is None else last.declaration.allowed_imports

    def _narrowing(self, view: RawView) -> Asset | None:
        """Return the innermost asset with an ``access`` list, below the innermost module."""
        for label in reversed(view.labels):
            asset = self._ai.asset(label)
            if label.startswith("module:") or (asset is not None and asset.declaration.access is not None):
                return asset
        return None


@lru_cache(maxsize=256)
def _common(asking: tuple[policy.AccessRule, ...], owner: tuple[policy.AccessRule, ...]) -> str:
    """Return the rules that both have, as JSON."""
    return policy.rules_to_json(common_rules(asking, owner))


async def _called(worker: WorkerHandle, asset: Asset, call: KnownCaller, given: dict[str, Any]) -> Any:
    """Call an asset in its worker. A shared one has no timeout: it ends with its caller."""
    caller, above, shared = call
    seconds = None if shared is None else inf
    return await worker.call(
        asset.kind, asset.short, given, caller=caller, ancestors=above, shared=shared, timeout=seconds
    )


def _is_pair(value: object) -> bool:
    return type(value) is list and len(value) == 2  # noqa: PLR2004 - a kind and a name


def _required(view: RawView | None) -> RawView:
    if view is None:
        raise policy.InvalidInputError.of("this code is not guarded: use the runtime of the host directly")
    return view


async def _completed(guard: Guard, model: Model, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Any:
    """Return the reply of a model as plain data, or its failure; raise a denial."""
    try:
        steps: Any = guard.run(model.complete, messages, tools)
        reply: Message = await steps.isolated()
    except ModelFailed as error:
        return ["failed", str(error)]
    return ["said", reply.text, [list(call) for call in reply.tool_calls]]


def _guard_of(view: RawView, own_read: tuple[str, ...] = (), imports: Iterable[str] = ()) -> Guard:
    """Return a guard with the rights of a subject in a worker. The view was verified by the host."""
    *outer, subject = view.chain
    return make_guard(
        subject=subject.name,
        subject_kind=subject.kind.value,
        access=tuple(rule for link in view.allow_chain for rule in link.rules),
        allowed_imports=tuple(imports),
        own_read=own_read,
        ancestors=tuple(outer),
        user_id=view.user_id,
        organization_id=view.organization_id,
        session_key=view.session_key,
        exact=True,
    )
