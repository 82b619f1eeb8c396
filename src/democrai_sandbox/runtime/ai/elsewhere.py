"""In the host: tools, agents and pipelines of modules that run in worker processes, and models for their agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from democrai_sandbox.guard import plain
from democrai_sandbox.guard.contexts import make_guard
from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.runtime.promises import Promises

from .calling import as_run
from .errors import ModelFailed
from .interface import KINDS, Message, Model, Run, ToolCall, ToolOffer
from .naming import NamedModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from democrai_sandbox.access import Caller
    from democrai_sandbox.guard import Guard
    from democrai_sandbox.guard.views import RawView


class Surface(Protocol):
    """Something that the code in a worker declared."""

    @property
    def kind(self) -> str: ...  # noqa: D102 - the attributes of a tuple
    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def options(self) -> dict[str, Any]: ...  # noqa: D102


class Worker(Protocol):
    """The worker of a module, as far as it is needed here."""

    async def call(
        self,
        kind: str,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        caller: Caller = ...,
        timeout: float | None = None,  # noqa: ASYNC109 - the worker's own
    ) -> Any:
        """Call a function there for somebody, and return what it returns."""
        ...


class Far(NamedTuple):
    """An asset in a worker."""

    kind: str
    name: str
    """Without its module's."""
    model: str
    worker: Worker

    async def run(self, params: dict[str, Any], caller: Caller, seconds: float) -> Run:
        """Run it there, and return what it came to; a denial, and what it raised, is raised."""
        outcome = await self.worker.call(self.kind, self.name, params, caller=caller, timeout=seconds)
        return as_run(self.kind, plain(outcome))


class Elsewhere:
    """What is declared in workers, by label, and the service by which agents there are answered."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        """Take the models that agents name."""
        self._models = models
        self._found: dict[str, Far] = {}
        self.promises = Promises("ai.complete", patience=300.0)

    def declare(self, module: str, surfaces: Iterable[Surface], worker: Worker) -> None:
        """Take over what a module declared in its worker, which has checked it."""
        for surface in surfaces:
            if surface.kind in KINDS:
                model = surface.options.get("model", "") if surface.kind == "agent" else ""
                label = f"{surface.kind}:{module}.{surface.name}"
                self._found[label] = Far(surface.kind, surface.name, model, worker)

    def agents(self) -> Iterator[tuple[str, str]]:
        """Yield the full name of each agent, and the model that it names."""
        for label, far in tuple(self._found.items()):
            if far.kind == "agent":
                yield label.partition(":")[2], far.model

    def get(self, label: str) -> Far | None:
        """Return an asset by its label."""
        return self._found.get(label)

    def complete(self, view: RawView | None, name: str, messages: list[Any], tools: list[Any]) -> Any:
        """Ask a model for an agent in a worker: the service ``ai.complete``. Answers with a future."""
        agent = None if view is None else self._found.get(view.labels[-1])
        if view is None or agent is None or agent.kind != "agent" or agent.model != name:
            raise InvalidInputError.of("a model is asked by an agent that named it", pointer="/model")
        said = tuple(
            Message(role, text, tuple(ToolCall(*call) for call in calls), to) for role, text, calls, to in messages
        )
        offers = tuple(ToolOffer(*offer) for offer in tools)
        return self.promises.promise(_completed(_guard_of(view), NamedModel(name, self._models), said, offers))


async def _completed(guard: Guard, model: Model, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Any:
    """Return what a model said as plain data, or why it did not; a denial is raised as one."""
    try:
        steps: Any = guard.run(model.complete, messages, tools)
        reply: Message = await steps.isolated()
    except ModelFailed as error:
        return ["failed", str(error)]
    return ["said", reply.text, [list(call) for call in reply.tool_calls]]


def _guard_of(view: RawView) -> Guard:
    """Return a guard for what is in force for an agent in a worker, as the pool has checked what the worker says."""
    *outer, agent = view.chain
    return make_guard(
        subject=agent.name,
        subject_kind=agent.kind.value,
        access=tuple(rule for link in view.allow_chain for rule in link.rules),
        ancestors=tuple(outer),
        user_id=view.user_id,
        organization_id=view.organization_id,
        session_key=view.session_key,
        exact=True,
    )
