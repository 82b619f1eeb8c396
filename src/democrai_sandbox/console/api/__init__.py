"""The HTTP API, ``/api/v1``. Every router stands in one of the two lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.console.health import health
from democrai_sandbox.console.metrics import metrics

from .accounts import accounts
from .audit import audit
from .deciding import deciding
from .decisions import decisions
from .documenting import document
from .explaining import explaining
from .extensions import extensions
from .modules import modules
from .requests import requests
from .status import status
from .subjects import subjects
from .tasks import tasks

if TYPE_CHECKING:
    from fastapi import APIRouter

__all__ = ["document", "routers", "unversioned"]

routers: list[APIRouter] = [
    requests,
    deciding,
    decisions,
    subjects,
    extensions,
    explaining,
    modules,
    tasks,
    audit,
    status,
    accounts,
]
"""Below ``/api/v1``, in the OpenAPI document."""
unversioned: list[APIRouter] = [health, metrics]
"""At the top: health and metrics."""
