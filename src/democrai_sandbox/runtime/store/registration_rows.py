"""Entries that administrators add while the host runs: MCP servers, models, settings of extensions, and shadow runs.

Each change is recorded in the audit log, in the same transaction, with the actor and the changed keys, without values.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from democrai_sandbox.access.store.audit_log import SYSTEM, AuditEntry, Ledger
from democrai_sandbox.access.store.tables import from_row
from democrai_sandbox.access.values import AuditAction
from democrai_sandbox.errors.services import EntryConfigured, EntryExists, EntryUnknown
from democrai_sandbox.manifests import ManifestError, McpServer, make_manifest
from democrai_sandbox.policy import InvalidInputError, Subject, SubjectKind

from .values import (
    LONGEST_SETTINGS,
    checked_name,
    engine_settings,
    from_json,
    mcp_servers,
    models,
    shadow_findings,
    shadow_runs,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


_log = logging.getLogger("democrai_sandbox.runtime")
_FIELDS = ("name", "transport", "endpoint_url", "enabled", "timeout_ms")
_KINDS = ("engine", "extractor")
_KEY = "api_key"


class Configured(NamedTuple):
    """Entries of the host's configuration. They replace those of the database, and can only be changed in its file."""

    servers: Mapping[str, McpServer] = {}
    """By name."""
    settings: Mapping[str, Mapping[str, Any]] = {}
    """By subject, such as ``engine:whisper``."""
    models: frozenset[str] = frozenset()
    """By name, including those that the application provides itself."""

    def check_model(self, name: str) -> None:
        """Refuse to change a model that the configuration or the application sets."""
        if name in self.models:
            raise _configured(f"model {name} is", f"extensions.models.{name}")

    def check_server(self, name: str) -> None:
        """Refuse to change a server that the configuration sets."""
        if name in self.servers:
            raise _configured(f"MCP server {name} is", f"extensions.mcp.servers.{name}")

    def check_settings(self, kind: str, name: str) -> None:
        """Refuse to change settings that the configuration sets."""
        if f"{kind}:{name}" in self.settings:
            raise _configured(f"the settings of {kind} {name} are", f"extensions.{kind}s.{name}.settings")


def _configured(what: str, place: str) -> EntryConfigured:
    return EntryConfigured(f"{what} set in the configuration: change {place} there, and restart")


class StoredModel(NamedTuple):
    """A model in the database."""

    name: str
    settings: Mapping[str, Any]
    sealed_key: bytes = b""
    """Empty for a model without a key."""


def checked_server(entry: McpServer | Mapping[str, object]) -> McpServer:
    """Return a server validated like a manifest; all problems are reported together."""
    value = _written(entry) if isinstance(entry, McpServer) else entry
    return make_manifest(value, McpServer)


def add_server(connection: Connection, server: McpServer, *, now: datetime, actor: str) -> McpServer:
    """Add an entry; raises ``EntryExists``."""
    ledger = Ledger(connection)
    if connection.execute(select(mcp_servers.c.name).where(mcp_servers.c.name == server.name)).first() is not None:
        raise EntryExists(f"MCP server {server.name} already exists")
    connection.execute(insert(mcp_servers), {**_row(server), "created_at": now, "updated_at": now})
    _record(ledger, now, actor, f"mcp:{server.name}", "mcp_server_added", **_about(server))
    return server


def update_server(
    connection: Connection, name: str, changes: Mapping[str, object], *, now: datetime, actor: str = SYSTEM
) -> McpServer:
    """Change an entry, but not its name, because approvals refer to it. Raises ``EntryUnknown``."""
    if changes.get("name", name) != name:
        raise InvalidInputError.of("the name of an entry cannot change: add a new entry", pointer="/name")
    ledger = Ledger(connection)
    before = get_server(connection, name)
    server = make_manifest({**_written(before), **changes}, McpServer)
    connection.execute(update(mcp_servers).where(mcp_servers.c.name == name).values(**_row(server), updated_at=now))
    _record(ledger, now, actor, f"mcp:{name}", "mcp_server_changed", before=_about(before), **_about(server))
    return server


def remove_server(connection: Connection, name: str, *, now: datetime | None = None, actor: str = SYSTEM) -> None:
    """Remove an entry; raises ``EntryUnknown``."""
    ledger = Ledger(connection)
    if connection.execute(delete(mcp_servers).where(mcp_servers.c.name == name)).rowcount != 1:
        raise _unknown(name)
    _record(ledger, now or datetime.now(UTC), actor, f"mcp:{name}", "mcp_server_removed")


def get_server(connection: Connection, name: str) -> McpServer:
    """Return one entry; raises ``EntryUnknown``."""
    row = connection.execute(select(mcp_servers).where(mcp_servers.c.name == name)).one_or_none()
    if row is None:
        raise _unknown(name)
    return _server(row)


def list_servers(connection: Connection) -> tuple[McpServer, ...]:
    """Return all entries by name. An invalid row is logged and omitted."""
    found = []
    for row in connection.execute(select(mcp_servers).order_by(mcp_servers.c.name)):
        try:
            found.append(_server(row))
        except ManifestError as error:
            _log.error("the registry entry of MCP server %r is not valid: %s", row.name, error)
    return tuple(found)


# ---- models


def add_model(
    connection: Connection, name: str, made: Callable[[], StoredModel], *, now: datetime, actor: str = SYSTEM
) -> StoredModel:
    """Add the model that ``made`` returns, which may seal a key; raises ``EntryExists``."""
    ledger = Ledger(connection)
    model = made()
    if _model_row(connection, name) is not None:
        raise EntryExists(f"model {name} already exists")
    connection.execute(
        insert(models),
        {"name": checked_name(name, "/name"), **_model_columns(model), "created_at": now, "updated_at": now},
    )
    _record(ledger, now, actor, f"model:{name}", "model_added", keys=_named(model))
    return model


def change_model(
    connection: Connection,
    name: str,
    changed: Callable[[StoredModel], StoredModel],
    *,
    now: datetime,
    actor: str = SYSTEM,
) -> StoredModel:
    """Store the model that ``changed`` returns, under the same name; raises ``EntryUnknown``."""
    ledger = Ledger(connection)
    before = get_model(connection, name)
    after = changed(before)._replace(name=name)
    connection.execute(update(models).where(models.c.name == name).values(**_model_columns(after), updated_at=now))
    _record(ledger, now, actor, f"model:{name}", "model_changed", keys=_differing(before, after))
    return after


def remove_model(connection: Connection, name: str, *, now: datetime, actor: str = SYSTEM) -> StoredModel:
    """Remove and return a model with its key; raises ``EntryUnknown``."""
    ledger = Ledger(connection)
    before = get_model(connection, name)
    connection.execute(delete(models).where(models.c.name == name))
    _record(ledger, now, actor, f"model:{name}", "model_removed")
    return before


def get_model(connection: Connection, name: str) -> StoredModel:
    """Return one model; raises ``EntryUnknown``."""
    row = _model_row(connection, name)
    if row is None:
        raise EntryUnknown(f"model {name} is not in the database")
    return _model(row)


def list_models(connection: Connection) -> tuple[StoredModel, ...]:
    """Return all models by name."""
    return tuple(_model(row) for row in connection.execute(select(models).order_by(models.c.name)))


def replace_model_keys(connection: Connection, reseal: Callable[[StoredModel], bytes | None]) -> int:
    """Replace the sealed keys for which ``reseal`` returns another; return their number."""
    found = [(model, reseal(model)) for model in list_models(connection) if model.sealed_key]
    changed = [
        {"its_name": model.name, "old": model.sealed_key, "new": new}
        for model, new in found
        if new is not None and new != model.sealed_key
    ]
    if changed:
        connection.execute(_REPLACE_KEY, changed)
    return len(changed)


_REPLACE_KEY = (
    update(models)
    .where(models.c.name == bindparam("its_name"), models.c.api_key == bindparam("old"))
    .values(api_key=bindparam("new"))
)


def _model_row(connection: Connection, name: str) -> Row[Any] | None:
    return connection.execute(select(models).where(models.c.name == name)).one_or_none()


def _model(row: Row[Any]) -> StoredModel:
    settings = from_json(row.settings)
    return StoredModel(row.name, settings if isinstance(settings, dict) else {}, bytes(row.api_key or b""))


def _model_columns(model: StoredModel) -> dict[str, Any]:
    text = to_json(dict(model.settings), longest=LONGEST_SETTINGS, pointer="/options")
    return {"settings": text, _KEY: model.sealed_key or None}


def _named(model: StoredModel) -> list[str]:
    return sorted({*model.settings, *([_KEY] if model.sealed_key else [])})


def _differing(before: StoredModel, after: StoredModel) -> list[str]:
    names = {*before.settings, *after.settings}
    found = {name for name in names if before.settings.get(name) != after.settings.get(name)}
    return sorted(found | ({_KEY} if before.sealed_key != after.sealed_key else set()))


# ---- settings of engines and extractors


def get_settings(connection: Connection, kind: str, name: str) -> dict[str, Any]:
    """Return the stored configuration; empty if none is stored."""
    text = connection.execute(select(engine_settings.c.settings).where(*_same(kind, name))).scalar()
    value = from_json(text or "")
    return value if isinstance(value, dict) else {}


def change_settings(
    connection: Connection,
    kind: str,
    name: str,
    changed: Callable[[dict[str, Any]], object],
    *,
    now: datetime,
    actor: str,
) -> dict[str, Any]:
    """Store and return the configuration that ``changed`` makes of the current one, atomically."""
    ledger = Ledger(connection)
    before = get_settings(connection, kind, name)
    after: Any = changed(dict(before))
    if type(after) is not dict or not all(type(key) is str for key in after):
        raise InvalidInputError.of("expected an object whose keys are texts", pointer="/settings")
    values = {"settings": to_json(after, longest=LONGEST_SETTINGS, pointer="/settings"), "updated_at": now}
    if connection.execute(update(engine_settings).where(*_same(kind, name)).values(**values)).rowcount == 0:
        row = {"kind": kind, "name": checked_name(name, "/name"), **values}
        connection.execute(insert(engine_settings), row)
    keys = sorted({key for key in (*before, *after) if before.get(key) != after.get(key)})
    _record(ledger, now, actor, f"{kind}:{name}", "settings_changed", keys=keys)
    return after


def note_install(connection: Connection, kind: str, name: str, *, now: datetime, actor: str) -> None:
    """Record in the audit log who started the installation of an engine or extractor."""
    _record(Ledger(connection), now, actor, f"{kind}:{name}", "install_started")


def note(connection: Connection, about: Mapping[str, Any], *, before: Mapping[str, Any] | None, now: datetime) -> None:
    """Record an observation of this node in the audit log."""
    Ledger(connection).close([AuditEntry(AuditAction.NOTED, SYSTEM, before=before, after=about)], now=now)


def remove_settings(connection: Connection, kind: str, name: str) -> bool:
    """Remove a stored configuration."""
    return connection.execute(delete(engine_settings).where(*_same(kind, name))).rowcount == 1


def _record(
    ledger: Ledger, now: datetime, actor: str, subject: str, change: str, *, before: Any = None, **after: Any
) -> None:
    """Close the transaction with its audit record, and increase the generation, so that every node reads the change."""
    text = f"{subject}: {change.replace('_', ' ')}"
    about = {"text": text, "subject": subject, "change": change, **after}
    ledger.next_generation()
    ledger.close([AuditEntry(AuditAction.NOTED, actor, before=before, after=about)], now=now)


def _about(server: McpServer) -> dict[str, Any]:
    """Return an entry for the audit log. A URL query may contain a secret, so only the checked target is stored."""
    facts = {name: getattr(server, name) for name in ("enabled", "timeout_ms")}
    return {"transport": str(server.transport), "target": server.target, **facts}


def _same(kind: str, name: str) -> tuple[Any, ...]:
    if kind not in _KINDS:
        raise InvalidInputError.of(f"expected one of {', '.join(_KINDS)}, got {kind!r}", pointer="/kind")
    return (engine_settings.c.kind == kind, engine_settings.c.name == name)


def _written(server: McpServer) -> dict[str, object]:
    written = {name: getattr(server, name) for name in _FIELDS}
    return {**written, "transport": str(server.transport)}


def _row(server: McpServer) -> dict[str, Any]:
    return {**_written(server), "enabled": int(server.enabled)}


def _server(row: Row[Any]) -> McpServer:
    value = {name: getattr(row, name) for name in _FIELDS}
    return make_manifest({**value, "enabled": bool(row.enabled)}, McpServer)


def _unknown(name: str) -> EntryUnknown:
    return EntryUnknown(f"unknown MCP server {name}")


MOST_FINDINGS = 1000
"""Maximum findings of one run; a subject controls its accesses, so the rest is only counted."""
_MOST_RUNS = 100
_MOST_ENDED = 20
"""Ended runs that are kept per subject."""


class ShadowEffect(StrEnum):
    """Change for an access if the candidate were in force."""

    DENIED = "denied"
    """It is allowed now, and would be denied."""
    ALLOWED = "allowed"
    """It is denied now, and would be allowed."""


@dataclass(frozen=True, slots=True)
class ShadowRun:
    """A trial of a candidate manifest of a subject, with the differences found."""

    id: str
    subject: Subject
    candidate: str
    """Text of the manifest."""
    started_at: datetime
    started_by: str
    ended_at: datetime | None = None
    ended_by: str = ""
    other_denied: int = 0
    """Accesses beyond the stored findings."""
    other_allowed: int = 0

    @property
    def is_running(self) -> bool:
        """Whether it is running."""
        return self.ended_at is None


@dataclass(frozen=True, slots=True)
class ShadowDifference:
    """An access of a subject that the candidate decides differently."""

    effect: ShadowEffect
    resource_type: str
    """Resource type of a rule, or ``import``."""
    operation: str
    target: str
    count: int
    first_seen: datetime
    last_seen: datetime
    user_id: str = ""
    """User of the latest access."""
    chain: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Hash of effect, resource type, operation and target."""
        about = [self.effect, self.resource_type, self.operation, self.target]
        return hashlib.sha256(json.dumps(about, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()


def start(connection: Connection, run: ShadowRun) -> None:
    """Store a run, and increase the generation, so that every node reads it."""
    ledger = Ledger(connection)
    same = (shadow_runs.c.kind == run.subject.kind.value, shadow_runs.c.name == run.subject.name)
    if connection.execute(select(shadow_runs.c.id).where(*same, shadow_runs.c.ended_at.is_(None))).first():
        raise EntryExists(f"{run.subject} already has a shadow run: end it first")
    _forget_old(connection, same)
    connection.execute(insert(shadow_runs), _columns(run))
    ledger.next_generation()
    ledger.close([_entry(run, AuditAction.SHADOW_STARTED, run.started_by)], now=run.started_at)


def end(connection: Connection, run_id: str, *, actor: str, now: datetime) -> bool:
    """End a run; False if it has already ended."""
    ledger = Ledger(connection)
    run = find(connection, run_id)
    if not run.is_running:
        return False
    connection.execute(update(shadow_runs).where(shadow_runs.c.id == run_id).values(ended_at=now, ended_by=actor))
    ledger.next_generation()
    ledger.close([_entry(run, AuditAction.SHADOW_ENDED, actor)], now=now)
    return True


def add(connection: Connection, run_id: str, findings: Collection[ShadowDifference]) -> None:
    """Add findings to a run; beyond the limit they are only counted. An ended run accepts reports of other nodes."""
    if connection.execute(select(shadow_runs.c.id).where(shadow_runs.c.id == run_id)).first() is None:
        return  # removed meanwhile
    query = select(func.count()).select_from(shadow_findings).where(shadow_findings.c.run_id == run_id)
    room = MOST_FINDINGS - connection.execute(query).scalar_one()
    others = dict.fromkeys(ShadowEffect, 0)
    for finding in findings:
        if not finding.target:  # counted without details before it was reported
            others[finding.effect] += finding.count
            continue
        if _counted(connection, run_id, finding):
            continue
        if room <= 0:
            others[finding.effect] += finding.count
            continue
        connection.execute(insert(shadow_findings), _finding_columns(run_id, finding))
        room -= 1
    if any(others.values()):
        more = {
            "other_denied": shadow_runs.c.other_denied + others[ShadowEffect.DENIED],
            "other_allowed": shadow_runs.c.other_allowed + others[ShadowEffect.ALLOWED],
        }
        connection.execute(update(shadow_runs).where(shadow_runs.c.id == run_id).values(**more))


def find(connection: Connection, run_id: str) -> ShadowRun:
    """Return one run; raises ``EntryUnknown``."""
    row = connection.execute(select(shadow_runs).where(shadow_runs.c.id == run_id)).one_or_none()
    if row is None:
        raise EntryUnknown(f"unknown shadow run {run_id}")
    return _run(row)


def listed(connection: Connection, *, running: bool = False) -> tuple[ShadowRun, ...]:
    """Return runs, the newest first."""
    query = select(shadow_runs).order_by(shadow_runs.c.ended_at.is_(None).desc(), shadow_runs.c.id.desc())
    query = query.where(shadow_runs.c.ended_at.is_(None)) if running else query.limit(_MOST_RUNS)
    return tuple(map(_run, connection.execute(query)))


def findings(connection: Connection, run_id: str) -> tuple[ShadowDifference, ...]:
    """Return the findings of a run, the most frequent first."""
    found = shadow_findings.c
    query = select(shadow_findings).where(found.run_id == run_id)
    query = query.order_by(found["count"].desc(), found.resource_type, found.operation, found.target)
    return tuple(map(_finding, connection.execute(query)))


def counts(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return the number of findings of each effect, by run."""
    found: dict[str, tuple[int, int]] = {}
    about = (shadow_findings.c.run_id, shadow_findings.c.effect)
    for run_id, effect, number in connection.execute(select(*about, func.count()).group_by(*about)):
        denied, allowed = found.get(run_id, (0, 0))
        found[run_id] = (number, allowed) if effect == ShadowEffect.DENIED else (denied, number)
    return found


def _counted(connection: Connection, run_id: str, finding: ShadowDifference) -> bool:
    """Update an existing finding; False if it does not exist."""
    changed = {
        "count": shadow_findings.c["count"] + finding.count,
        "last_seen": finding.last_seen,
        "user_id": finding.user_id,
        "chain": json.dumps(finding.chain),
    }
    same = (shadow_findings.c.run_id == run_id, shadow_findings.c.digest == finding.digest)
    return connection.execute(update(shadow_findings).where(*same).values(**changed)).rowcount == 1


def _forget_old(connection: Connection, same: tuple[Any, ...]) -> None:
    """Remove the oldest runs of a subject, to limit their number."""
    query = select(shadow_runs.c.id).where(*same).order_by(shadow_runs.c.id.desc()).offset(_MOST_ENDED)
    old = connection.execute(query.limit(_MOST_RUNS)).scalars().all()
    if old:
        connection.execute(delete(shadow_findings).where(shadow_findings.c.run_id.in_(old)))
        connection.execute(delete(shadow_runs).where(shadow_runs.c.id.in_(old)))


def _entry(run: ShadowRun, action: AuditAction, actor: str) -> AuditEntry:
    after = {"shadow_run": run.id, "subject": str(run.subject)}
    return AuditEntry(action, actor, after=after)


def _columns(run: ShadowRun) -> dict[str, Any]:
    columns = _members(run)
    subject = columns.pop("subject")
    return {**columns, "kind": subject.kind.value, "name": subject.name}


def _run(row: Row[Any]) -> ShadowRun:
    return from_row(ShadowRun, row, subject=Subject(SubjectKind(row.kind), row.name))


def _finding_columns(run_id: str, finding: ShadowDifference) -> dict[str, Any]:
    changed = {"effect": finding.effect.value, "chain": json.dumps(finding.chain)}
    return {**_members(finding), **changed, "run_id": run_id, "digest": finding.digest}


def _finding(row: Row[Any]) -> ShadowDifference:
    return from_row(ShadowDifference, row, effect=ShadowEffect(row.effect), chain=tuple(json.loads(row.chain)))


def _members(value: ShadowRun | ShadowDifference) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}
