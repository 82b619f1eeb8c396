"""The pages of the console. Every router stands in the list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.console import live

from . import (
    account,
    audit,
    bulk,
    deciding,
    decisions,
    explain,
    extensions,
    login,
    people,
    requests,
    running,
    status,
    subjects,
    tasks,
)

if TYPE_CHECKING:
    from fastapi import APIRouter

routers: list[APIRouter] = [
    live.router,
    bulk.router,
    requests.router,
    deciding.router,
    decisions.router,
    login.router,
    account.router,
    people.router,
    subjects.router,
    extensions.router,
    running.router,
    tasks.router,
    audit.router,
    status.router,
    explain.router,
]
