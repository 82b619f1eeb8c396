"""Models: those of the configuration and of the database, and those that agents name."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Request
from pydantic import Field

from democrai_sandbox.console.visitors import Visitor, holder, require_fresh, sandbox_of
from democrai_sandbox.host import configuring
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.runtime.surroundings import serving

from .documenting import router, told
from .schemas import Answer, Members, Order, Text

models = router("models")
Reader = Annotated[Visitor, Depends(holder(Scope.SUBJECTS_READ))]
Manager = Annotated[Visitor, Depends(holder(Scope.EXTENSIONS_MANAGE))]
Name = Annotated[str, Path(min_length=1, max_length=200)]
_Url = Annotated[
    str,
    Field(
        max_length=2000,
        description="The URL up to `/chat/completions`.",
        examples=["https://models.example.com/v1"],
    ),
]
_Known = Annotated[str, Field(max_length=500, description="The name by which the endpoint knows the model.")]
_Key = Annotated[str, Field(max_length=4096, description="Stored encrypted, and never returned.")]


class ModelEntry(Answer):
    """A model that agents can use, or that one names and the host lacks."""

    name: Text
    target: Text
    """What an agent has to be allowed to send to; empty where it is not known."""
    is_configured: bool
    """Whether the host has it."""
    agents: list[Text]
    """Those that name it."""
    source: Text
    """`configuration`, `database` or `application`; empty for one that the host lacks. Those of the database can be
    changed here."""
    endpoint: Text
    model: Text
    """The name by which the endpoint knows it."""
    has_key: bool
    """Whether it has a key, which is never returned."""
    timeout_seconds: float | None
    options: Members
    """What goes into each request, without what is called secret in it."""


class ModelList(Answer):
    """All models, by name."""

    items: list[ModelEntry]


class NewModel(Order):
    """A model to add."""

    name: str = Field(max_length=200)
    endpoint: _Url
    model: _Known
    api_key: _Key | None = None
    timeout_seconds: float | None = None
    options: dict[str, Any] | None = None


class ModelChanges(Order):
    """What is to be different; the rest stays. With another endpoint, the key has to be given again."""

    endpoint: _Url | None = None
    model: _Known | None = None
    api_key: _Key | None = Field(default=None, description="Another key, or an empty text for none.")
    timeout_seconds: float | None = None
    options: dict[str, Any] | None = None


_NO_CHANGES = ModelChanges()


@models.get("/models", **told(Scope.SUBJECTS_READ))
def list_models(request: Request, visitor: Reader) -> ModelList:
    """List models with the agents that name them; their keys are never shown. For administrators."""
    found = configuring.models(sandbox_of(request), visitor.caller)
    return ModelList(items=[ModelEntry.model_validate(one) for one in found])


@models.post("/models", status_code=201, **told(Scope.EXTENSIONS_MANAGE, 409, body=True))
def add_model(request: Request, new: NewModel, visitor: Manager) -> ModelEntry:
    """Add a model, on all nodes. Agents can use it at once, if they may send to its endpoint."""
    require_fresh(request, visitor)
    entry = _given(new)
    name = str(entry.pop("name"))
    with serving(visitor.caller):
        added = configuring.add_model(sandbox_of(request), name, entry, visitor.caller)
    return ModelEntry.model_validate(added)


@models.patch("/models/{name}", **told(Scope.EXTENSIONS_MANAGE, 404, 409, body=True))
def change_model(request: Request, name: Name, visitor: Manager, changes: ModelChanges = _NO_CHANGES) -> ModelEntry:
    """Change a model, on all nodes; its name stays. Agents use it as it is then from their next question on."""
    require_fresh(request, visitor)
    with serving(visitor.caller):
        changed = configuring.change_model(sandbox_of(request), name, _given(changes), visitor.caller)
    return ModelEntry.model_validate(changed)


@models.delete("/models/{name}", **told(Scope.EXTENSIONS_MANAGE, 404, 409))
def remove_model(request: Request, name: Name, visitor: Manager) -> ModelEntry:
    """Remove a model with its key, and return what it was. Agents that name it fail from then on."""
    with serving(visitor.caller):
        removed = configuring.remove_model(sandbox_of(request), name, visitor.caller)
    return ModelEntry.model_validate(removed)


def _given(order: NewModel | ModelChanges) -> dict[str, Any]:
    """Return what was sent."""
    return {name: value for name, value in order.model_dump().items() if value is not None}
