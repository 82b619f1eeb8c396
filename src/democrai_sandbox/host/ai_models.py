"""Models that agents can use: those of the configuration, and those of the database.

The keys of configured models are read once at start. Models of the database are updated while the host runs; their keys
are encrypted with the key ring, each bound to the name and endpoint of its model.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.access.encryption import DecryptionError, reseal_secret, seal_secret, unseal_secret
from democrai_sandbox.errors import HostRefused, InvalidInputError, StateUnusable
from democrai_sandbox.errors.services import ModelFailed
from democrai_sandbox.host.config.sections import api_key, stored_model
from democrai_sandbox.runtime.ai.openai import OpenAiModel
from democrai_sandbox.runtime.store import StoredModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from democrai_sandbox.access.keyring import KeyRing
    from democrai_sandbox.runtime.ai.model import KnownModels, Message, Model, ToolOffer
    from democrai_sandbox.runtime.store import RuntimeStore

    from .settings import HostSettings, ModelSettings

_log = logging.getLogger("democrai_sandbox.host")
STORED_FIELDS = ("endpoint", "model", "timeout_seconds", "options")
"""Stored fields of a model, except its key."""
_LONGEST = 4096
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def open_models(settings: HostSettings, given: Mapping[str, Model] | None = None) -> dict[str, Model]:
    """Return the models by name: those of the configuration and those from the application."""
    brought = dict(given or {})
    twice = sorted(brought.keys() & settings.extensions.models.keys())
    if twice:
        raise HostRefused(
            f"the application and the configuration both have a model {twice[0]!r}",
            fix=f"remove extensions.models.{twice[0]}, or do not pass it to the sandbox",
        )
    return brought | {name: _made(one, key_of(name, one)) for name, one in settings.extensions.models.items()}


def key_of(name: str, settings: ModelSettings) -> str:
    """Return the key of a model; empty without one. Errors never contain it."""
    if not settings.api_key_file:
        return settings.api_key
    file = settings.api_key_file
    setting = f"extensions.models.{name}.api_key_file"
    try:
        # Non-blocking: a pipe at this path would block the start.
        with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:  # noqa: PTH123 - a number
            mode = os.fstat(stream.fileno()).st_mode
            text = stream.read(_LONGEST) if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise StateUnusable(
            f"{setting}: {file} cannot be read: {error.strerror}",
            fix=f"make it readable for user {os.geteuid()}, or use another file",
        ) from None
    if not stat.S_ISREG(mode):
        raise StateUnusable(f"{setting}: {file} is not a file", fix="use a file whose first line is the key")
    if stat.S_IMODE(mode) & _OTHERS:
        raise StateUnusable(f"{setting}: other users can read {file}", fix=f"chmod 600 {file}, and replace the key")
    try:
        return api_key(text.partition(b"\n")[0].decode("ascii", "replace").strip())
    except ValueError as error:
        raise StateUnusable(f"{setting}: {file}: {error}", fix="write the key into its first line") from None


def _made(settings: ModelSettings, key: str) -> OpenAiModel:
    return OpenAiModel(
        settings.endpoint,
        model=settings.model,
        api_key=key,
        timeout=settings.timeout_seconds,
        options=settings.options,
    )


# ---- models of the database ------------------------------------------------------------------------------------------


class _UnusableModel:
    """Replacement for a stored model that cannot be used; a call raises the reason."""

    target = ""

    def __init__(self, why: str) -> None:
        self._why = why

    async def complete(self, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Message:
        del messages, tools
        raise ModelFailed(self._why)


class _LoadedModel(NamedTuple):
    stored: StoredModel
    model: Model
    is_usable: bool


class StoredModels:
    """Models of the database, which administrators change and every node follows."""

    def __init__(self, store: RuntimeStore, ring: Callable[[], KeyRing], known: KnownModels) -> None:
        """Store the database, the current keys, and the registry that agents use."""
        self._store = store
        self._ring = ring
        self._known = known
        self._lock = threading.Lock()
        self._followed: dict[str, _LoadedModel] = {}

    def refresh(self) -> None:
        """Read the stored models; agents use them from their next call. Any thread may call this."""
        with self._lock:
            before, stored = self._followed, self._store.models()
            found = {one.name: self._follow(one, before.get(one.name)) for one in stored}
            if found != before:
                self._followed = found
                self._known.exchange({name: one.model for name, one in found.items()})

    def all(self) -> dict[str, StoredModel]:
        """Return the stored models by name."""
        return {one.name: one for one in self._store.models()}

    def add(self, name: str, entry: Mapping[str, object], *, now: datetime, actor: str) -> StoredModel:
        """Add a model; raise ``InvalidInputError`` with every problem, ``EntryExists`` or ``EntryConfigured``."""
        settings = stored_model(name, dict(entry))
        return self._store.add_model(name, lambda: self._sealed(name, settings), now=now, actor=actor)

    def change(self, name: str, changes: Mapping[str, object], *, now: datetime, actor: str) -> StoredModel:
        """Change a model. Its key stays unless the changes contain another one, or an empty text for none.

        The key belongs to its endpoint: with another endpoint it must be entered again.
        """

        def changed(before: StoredModel) -> StoredModel:
            given = {key: value for key, value in changes.items() if (key, value) != ("api_key", "")}
            after = self._sealed(name, stored_model(name, {**before.settings, **given}))
            if "api_key" in changes or not before.sealed_key:
                return after
            if after.settings["endpoint"] != before.settings.get("endpoint"):
                message = "the key belongs to another endpoint: enter it again, or an empty text for no key"
                raise InvalidInputError.of(message, pointer="/api_key")
            return after._replace(sealed_key=before.sealed_key)

        return self._store.change_model(name, changed, now=now, actor=actor)

    def remove(self, name: str, *, now: datetime, actor: str) -> StoredModel:
        """Remove a model with its key and return it; raise ``EntryUnknown`` or ``EntryConfigured``."""
        return self._store.remove_model(name, now=now, actor=actor)

    def _sealed(self, name: str, settings: ModelSettings) -> StoredModel:
        facts: dict[str, Any] = {field: getattr(settings, field) for field in STORED_FIELDS}
        key = seal_secret(self._ring(), settings.api_key, *_owner(name, facts)) if settings.api_key else b""
        return StoredModel(name, facts, key)

    def _follow(self, stored: StoredModel, known: _LoadedModel | None) -> _LoadedModel:
        """Return the known object if it is usable and nothing has changed; reject a model that was tampered with."""
        if known is not None and known.is_usable and known.stored == stored:
            return known
        try:
            settings = stored_model(stored.name, dict(stored.settings))
            key = unseal_secret(self._ring(), stored.sealed_key, *_owner(*stored[:2])) if stored.sealed_key else ""
            return _LoadedModel(stored, _made(replace(settings, api_key=""), key), is_usable=True)
        except DecryptionError as error:
            why = f"the key of model {stored.name} cannot be decrypted: {error}; enter it again"
        except InvalidInputError as error:
            why = f"the stored model {stored.name} is invalid: {'; '.join(map(str, error.problems))}"
        if known is None or known.stored != stored:
            _log.error("%s", why)
        return _LoadedModel(stored, _UnusableModel(why), is_usable=False)


def reseal_model_keys(store: RuntimeStore, ring: KeyRing) -> tuple[int, tuple[str, ...]]:
    """Encrypt the keys of all stored models with the first key; return their number, and models that no key opens."""
    unreadable = []

    def attempt(stored: StoredModel) -> bytes | None:
        try:
            return reseal_secret(ring, stored.sealed_key, *_owner(*stored[:2]))
        except DecryptionError:
            unreadable.append(stored.name)
            return None

    return store.replace_model_keys(attempt), tuple(unreadable)


def _owner(name: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the context to which the key of a model is bound."""
    return "model", name, str(settings.get("endpoint", ""))
