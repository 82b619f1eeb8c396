"""Models: those of the configuration, and those that agents name."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from democrai_sandbox.console.visitors import Visitor, holder, sandbox_of
from democrai_sandbox.host import configuring
from democrai_sandbox.host.scopes import Scope

from .documenting import router, told
from .schemas import Answer, Text

models = router("models")
Reader = Annotated[Visitor, Depends(holder(Scope.SUBJECTS_READ))]


class ModelEntry(Answer):
    """A model that agents can use, or that one names and the host lacks."""

    name: Text
    target: Text
    """What an agent has to be allowed to send to; empty where it is not known."""
    is_configured: bool
    agents: list[Text]
    """Those that name it."""


class ModelList(Answer):
    """All models, by name."""

    items: list[ModelEntry]


@models.get("/models", **told(Scope.SUBJECTS_READ))
def list_models(request: Request, visitor: Reader) -> ModelList:
    """List models with the agents that name them; their keys are never shown. For administrators."""
    found = configuring.models(sandbox_of(request), visitor.caller)
    return ModelList(items=[ModelEntry.model_validate(one) for one in found])
