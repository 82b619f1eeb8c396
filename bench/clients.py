"""Access checks of each product. Everything here runs in a worker."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from bench.decisions import APPROVED_URL, DENIED_URL, SUBJECT, other_url

if TYPE_CHECKING:
    from bench.workspace import Workspace


class Ask(Protocol):
    """Function that checks a resource type, an operation and a target; ``register`` files a request."""

    def __call__(self, resource_type: str, operation: str, target: str, *, register: bool = False) -> Any: ...


def take_apart(resource_type: str, operation: str, target: str, *, register: bool = False) -> object:
    """Stand-in without a service: only read the arguments."""
    del operation, register
    return urlsplit(target) if resource_type == "network" else os.path.normpath(target)


def open_service(url: str, surroundings: Any = None) -> Any:
    """Return our service for a database, without background work."""
    access = {name: import_module(f"democrai_sandbox.access.{name}") for name in ("checks", "events", "node")}
    service = import_module("democrai_sandbox.access.checks")
    store = import_module("democrai_sandbox.access.store").open_store(url)
    node = access["node"].AccessNode(store, access["events"].open_bus("memory"))
    node.refresh()
    # Unlimited, to measure the database instead of the rate limit of one subject.
    limits = access["checks"].PendingLimits(new_requests=10**9)
    return service.AccessService(node, surroundings, limits=limits)


def ask_service(service: Any, *, guarded: bool) -> Ask:
    """Check with our service: guarded code for itself, the host for a subject."""
    subject = None if guarded else import_module("democrai_sandbox.policy").Subject("module", SUBJECT)

    def ask(resource_type: str, operation: str, target: str, *, register: bool = False) -> Any:
        return service.check_external_access(
            resource_type=resource_type,
            operation=operation,
            target=target,
            register_request=register,
            subject=subject,
        )

    return ask


def ask_reference(ground: Workspace, decisions: int) -> Ask:
    """Check with the reference product's service, with its database in the home directory of the worker."""
    database = import_module("democrai.core.infrastructure.database")
    models = import_module("democrai.core.infrastructure.database.models")
    check = import_module("democrai.core.application.services.external_access").check_external_access
    with database.session_scope() as session:
        if _is_empty(session, models):
            _fill(session, models, _decided(ground, decisions))

    def ask(resource_type: str, operation: str, target: str, *, register: bool = False) -> Any:
        return check(
            subject_type="module",
            subject_name=SUBJECT,
            resource_type=resource_type,
            operation=operation,
            target=target,
            register_request=register,
        )

    return ask


def _decided(ground: Workspace, decisions: int) -> list[dict[str, Any]]:
    now = datetime.now(UTC)
    urls = [APPROVED_URL, *map(other_url, range(2, decisions))]
    places = [("network", "receive", url) for url in urls] + [("filesystem", "read", str(ground.approved))]
    return [
        {
            "subject_type": "module",
            "subject_name": SUBJECT,
            "resource_type": resource_type,
            "operation": operation,
            "target": target,
            "normalized_target": target,
            "scope": "permanent",
            "approved_by": 1,
            "created_at": now,
            "updated_at": now,
        }
        for resource_type, operation, target in places
    ]


def _is_empty(session: Any, models: Any) -> bool:
    """Create its tables if they are missing."""
    models.ExternalAccessApproval.metadata.create_all(session.get_bind())
    return not session.query(models.ExternalAccessApproval).count()


def _fill(session: Any, models: Any, approvals: list[dict[str, Any]]) -> None:
    """Write approvals, and a denial, which the reference product stores as a denied request."""
    session.execute(models.ExternalAccessApproval.__table__.insert(), approvals)
    denied = {name: value for name, value in approvals[0].items() if name != "approved_by"}
    denied |= {"target": DENIED_URL, "normalized_target": DENIED_URL, "scope": "pending", "status": "denied"}
    denied["last_requested_at"] = denied["created_at"]
    session.execute(models.ExternalAccessRequest.__table__.insert(), [denied])
    session.commit()
