"""Models of the configuration and the database, and models that agents use."""

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
        description="The URL before `/chat/completions`.",
        examples=["https://models.example.com/v1"],
    ),
]
_Known = Annotated[str, Field(max_length=500, description="The name of the model at the endpoint.")]
_Key = Annotated[str, Field(max_length=4096, description="Stored encrypted and never returned.")]


class ModelEntry(Answer):
    """A model, or a missing model that an agent uses."""

    name: Text
    target: Text
    """The target that an agent must be allowed to send to; empty if unknown."""
    is_configured: bool
    """Whether the model exists."""
    agents: list[Text]
    """Agents that use it."""
    source: Text
    """`configuration`, `database` or `application`; empty for a missing model. Models of the database can be changed
    here."""
    endpoint: Text
    model: Text
    """The name of the model at the endpoint."""
    has_key: bool
    """Whether it has a key, which is never returned."""
    timeout_seconds: float | None
    options: Members
    """Options sent with each HTTP request, without secret values."""


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
    """Changes; other values stay. A new endpoint needs the key again."""

    endpoint: _Url | None = None
    model: _Known | None = None
    api_key: _Key | None = Field(default=None, description="A new key, or an empty text to remove it.")
    timeout_seconds: float | None = None
    options: dict[str, Any] | None = None


_NO_CHANGES = ModelChanges()


@models.get("/models", **told(Scope.SUBJECTS_READ))
def list_models(request: Request, visitor: Reader) -> ModelList:
    """List models and the agents that use them; keys are never shown. For administrators."""
    found = configuring.models(sandbox_of(request), visitor.caller)
    return ModelList(items=[ModelEntry.model_validate(one) for one in found])


@models.post("/models", status_code=201, **told(Scope.EXTENSIONS_MANAGE, 409, body=True))
def add_model(request: Request, new: NewModel, visitor: Manager) -> ModelEntry:
    """Add a model on all nodes. Agents can use it at once if they may send to its endpoint."""
    require_fresh(request, visitor)
    entry = _given(new)
    name = str(entry.pop("name"))
    with serving(visitor.caller):
        added = configuring.add_model(sandbox_of(request), name, entry, visitor.caller)
    return ModelEntry.model_validate(added)


@models.patch("/models/{name}", **told(Scope.EXTENSIONS_MANAGE, 404, 409, body=True))
def change_model(request: Request, name: Name, visitor: Manager, changes: ModelChanges = _NO_CHANGES) -> ModelEntry:
    """Change a model on all nodes. The name cannot be changed. Agents use the change from their next call."""
    require_fresh(request, visitor)
    with serving(visitor.caller):
        changed = configuring.change_model(sandbox_of(request), name, _given(changes), visitor.caller)
    return ModelEntry.model_validate(changed)


@models.delete("/models/{name}", **told(Scope.EXTENSIONS_MANAGE, 404, 409))
def remove_model(request: Request, name: Name, visitor: Manager) -> ModelEntry:
    """Remove a model and its key, and return it. Agents that use it fail afterwards."""
    with serving(visitor.caller):
        removed = configuring.remove_model(sandbox_of(request), name, visitor.caller)
    return ModelEntry.model_validate(removed)


def _given(order: NewModel | ModelChanges) -> dict[str, Any]:
    """Return the given values."""
    return {name: value for name, value in order.model_dump().items() if value is not None}
