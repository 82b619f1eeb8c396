"""Models of the database: their settings as plain data, and their sealed keys."""

from __future__ import annotations

from functools import partial

import pytest

from democrai_sandbox.access.values import AuditAction
from democrai_sandbox.errors import InvalidInputError
from democrai_sandbox.runtime.store import (
    Configured,
    EntryConfigured,
    EntryExists,
    EntryUnknown,
    RuntimeStore,
    StoredModel,
)
from tests.access.store.samples import NOW, at, sql

SETTINGS = {"endpoint": "https://models.example.com/v1", "model": "small", "options": {"temperature": 0.2}}
MODEL = StoredModel("default", SETTINGS, b"\x01sealed\x00")


def add(store, model=MODEL):
    return store.add_model(model.name, lambda: model, now=NOW, actor="ann")


def test_a_model_is_added_read_changed_and_removed(store, other, url):
    """Another node reads the stored model."""
    assert add(store) == MODEL
    add(store, StoredModel("bare", {"model": "x"}))
    assert other.models() == (StoredModel("bare", {"model": "x"}), MODEL)
    changed = other.change_model("default", lambda one: one._replace(sealed_key=b""), now=at(5), actor="ben")
    assert changed == MODEL._replace(sealed_key=b"")
    assert store.models()[1] == changed
    times = sql(url, "SELECT updated_at - created_at FROM runtime_models WHERE name = 'default'")
    assert times == [(5_000_000,)]
    assert store.remove_model("default", now=NOW) == changed
    for act in (store.remove_model, partial(store.change_model, changed=lambda one: one)):
        with pytest.raises(EntryUnknown):
            act("default", now=NOW)


def test_a_name_is_given_once(store):
    """The second one changes nothing."""
    add(store)
    with pytest.raises(EntryExists):
        add(store, StoredModel("default", {}))
    assert store.models() == (MODEL,)


def test_what_the_configuration_sets_stays(store):
    """It hides a stored model with its name, which cannot be changed either."""
    add(store)
    configured = RuntimeStore(store.database, Configured(models=frozenset({"default"})))
    assert configured.models() == ()
    for act in (
        lambda: add(configured),
        lambda: configured.change_model("default", lambda one: one, now=NOW),
        lambda: configured.remove_model("default", now=NOW),
    ):
        with pytest.raises(EntryConfigured):
            act()


def test_settings_that_json_cannot_hold_are_refused(store):
    """Nothing is stored."""
    with pytest.raises(InvalidInputError):
        add(store, StoredModel("default", {"options": {"x": float("nan")}}))
    assert store.models() == ()


def test_sealed_keys_are_exchanged(store):
    """Only keys with a replacement are changed; models without a key are skipped."""
    add(store)
    add(store, StoredModel("bare", {}))
    add(store, StoredModel("third", {}, b"old"))
    seen = []

    def reseal(model):
        seen.append(model.name)
        return b"new" if model.name == "third" else None

    assert store.replace_model_keys(reseal) == 1
    assert seen == ["default", "third"]
    assert [model.sealed_key for model in store.models()] == [b"", MODEL.sealed_key, b"new"]


def test_each_change_is_in_the_audit_without_values(store, url):
    """With the actor, and the names of changed settings."""
    add(store)
    other = {**SETTINGS, "model": "large"}
    store.change_model("default", lambda one: one._replace(settings=other, sealed_key=b"new"), now=NOW, actor="ben")
    store.remove_model("default", now=NOW, actor="cid")
    rows = sql(url, "SELECT actor, action, after FROM access_audit ORDER BY sequence DESC LIMIT 3")[::-1]
    assert [(actor, action) for actor, action, _ in rows] == [
        (actor, AuditAction.NOTED.value) for actor in ("ann", "ben", "cid")
    ]
    told = [str(after) for *_, after in rows]
    assert '"model_added"' in told[0] and '["api_key","endpoint","model","options"]' in told[0].replace(" ", "")
    assert '"model_changed"' in told[1] and '["api_key","model"]' in told[1].replace(" ", "")
    assert '"model_removed"' in told[2]
    assert not any(value in text for text in told for value in ("example.com", "large", "0.2", "sealed"))
