"""Models that administrators add while the host runs: their settings, and their sealed keys.

The host validates the settings; here they are plain data. Each change is recorded in the audit log, in the same
transaction, with the actor and the changed keys, without values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from democrai_sandbox.access.store.audit_log import SYSTEM, Ledger
from democrai_sandbox.errors.services import EntryExists, EntryUnknown

from .registration_rows import close_with, note
from .tables import models
from .values import LONGEST_SETTINGS, checked_name, from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from sqlalchemy import Row

_KEY = "api_key"


class StoredModel(NamedTuple):
    """A model in the database."""

    name: str
    settings: Mapping[str, Any]
    sealed_key: bytes = b""
    """Empty for a model without a key."""


def add(connection: Connection, made: Callable[[], StoredModel], now: datetime, actor: str = SYSTEM) -> StoredModel:
    """Add the model that ``made`` returns, which may seal a key; raises ``EntryExists``."""
    ledger = Ledger(connection)
    model = made()
    if _row(connection, model.name) is not None:
        raise EntryExists(f"model {model.name} already exists")
    name = checked_name(model.name, "/name")
    connection.execute(insert(models), {"name": name, **_columns(model), "created_at": now, "updated_at": now})
    close_with(ledger, note(actor, f"model:{name}", "model_added", keys=_named(model)), now)
    return model


def change(
    connection: Connection,
    name: str,
    changed: Callable[[StoredModel], StoredModel],
    now: datetime,
    actor: str = SYSTEM,
) -> StoredModel:
    """Store the model that ``changed`` returns, under the same name; raises ``EntryUnknown``."""
    ledger = Ledger(connection)
    before = get(connection, name)
    after = changed(before)._replace(name=name)
    connection.execute(update(models).where(models.c.name == name).values(**_columns(after), updated_at=now))
    close_with(ledger, note(actor, f"model:{name}", "model_changed", keys=_differing(before, after)), now)
    return after


def remove(connection: Connection, name: str, now: datetime, actor: str = SYSTEM) -> StoredModel:
    """Remove and return a model with its key; raises ``EntryUnknown``."""
    ledger = Ledger(connection)
    before = get(connection, name)
    connection.execute(delete(models).where(models.c.name == name))
    close_with(ledger, note(actor, f"model:{name}", "model_removed"), now)
    return before


def get(connection: Connection, name: str) -> StoredModel:
    """Return one model; raises ``EntryUnknown``."""
    row = _row(connection, name)
    if row is None:
        raise EntryUnknown(f"model {name} is not in the database")
    return _model(row)


def listed(connection: Connection) -> tuple[StoredModel, ...]:
    """Return all models by name."""
    return tuple(_model(row) for row in connection.execute(select(models).order_by(models.c.name)))


def replace_keys(connection: Connection, reseal: Callable[[StoredModel], bytes | None]) -> int:
    """Replace the sealed keys for which ``reseal`` returns another; return their number."""
    found = [(model, reseal(model)) for model in listed(connection) if model.sealed_key]
    changed = [
        {"its_name": model.name, "old": model.sealed_key, "new": new}
        for model, new in found
        if new is not None and new != model.sealed_key
    ]
    if changed:
        connection.execute(_EXCHANGE, changed)
    return len(changed)


_EXCHANGE = (
    update(models)
    .where(models.c.name == bindparam("its_name"), models.c.api_key == bindparam("old"))
    .values(api_key=bindparam("new"))
)


def _row(connection: Connection, name: str) -> Row[Any] | None:
    return connection.execute(select(models).where(models.c.name == name)).one_or_none()


def _model(row: Row[Any]) -> StoredModel:
    settings = from_json(row.settings)
    return StoredModel(row.name, settings if isinstance(settings, dict) else {}, bytes(row.api_key or b""))


def _columns(model: StoredModel) -> dict[str, Any]:
    text = to_json(dict(model.settings), longest=LONGEST_SETTINGS, pointer="/options")
    return {"settings": text, _KEY: model.sealed_key or None}


def _named(model: StoredModel) -> list[str]:
    return sorted({*model.settings, *([_KEY] if model.sealed_key else [])})


def _differing(before: StoredModel, after: StoredModel) -> list[str]:
    names = {*before.settings, *after.settings}
    found = {name for name in names if before.settings.get(name) != after.settings.get(name)}
    return sorted(found | ({_KEY} if before.sealed_key != after.sealed_key else set()))
