"""The models of the host, ready to be asked by agents: those of its configuration, and those of the database.

The keys of configured models are read once, when the host starts. Models of the database are followed while it runs;
their keys are sealed with the key ring, each bound to the name and the endpoint of its model.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.access.encryption import Unreadable
from democrai_sandbox.access.entered_secrets import reseal_secret, seal_secret, unseal_secret
from democrai_sandbox.errors import HostRefused, InvalidInputError, StateUnusable
from democrai_sandbox.runtime.ai.errors import ModelFailed
from democrai_sandbox.runtime.ai.openai import OpenAiModel
from democrai_sandbox.runtime.store import StoredModel

from .config.extensions import api_key, stored_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from democrai_sandbox.access.keyring import KeyRing
    from democrai_sandbox.runtime.ai.interface import Message, Model, ToolOffer
    from democrai_sandbox.runtime.ai.naming import KnownModels
    from democrai_sandbox.runtime.store import RuntimeStore

    from .settings import HostSettings, ModelSettings

_log = logging.getLogger("democrai_sandbox.host")
STORED_FIELDS = ("endpoint", "model", "timeout_seconds", "options")
"""What is stored of a model besides its key."""
_LONGEST = 4096
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def open_models(settings: HostSettings, given: Mapping[str, Model] | None = None) -> dict[str, Model]:
    """Return the models by name: those of the configuration, and those that the application brings itself."""
    brought = dict(given or {})
    twice = sorted(brought.keys() & settings.extensions.models.keys())
    if twice:
        raise HostRefused(
            f"the application and the configuration both have a model {twice[0]!r}",
            fix=f"remove extensions.models.{twice[0]}, or do not pass it to the sandbox",
        )
    return brought | {name: _model(name, one) for name, one in settings.extensions.models.items()}


def key_of(name: str, settings: ModelSettings) -> str:
    """Return the key of a model; empty for one without. Nothing of it is in any error."""
    if not settings.api_key_file:
        return settings.api_key
    file = settings.api_key_file
    setting = f"extensions.models.{name}.api_key_file"
    try:
        # Without waiting: a pipe of this name would keep the host from starting.
        with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:  # noqa: PTH123 - a number
            mode = os.fstat(stream.fileno()).st_mode
            text = stream.read(_LONGEST) if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise StateUnusable(
            f"{setting}: {file} cannot be read: {error.strerror}",
            fix=f"let user {os.geteuid()} read it, or name another file",
        ) from None
    if not stat.S_ISREG(mode):
        raise StateUnusable(f"{setting}: {file} is not a file", fix="name a file whose first line is the key")
    if stat.S_IMODE(mode) & _OTHERS:
        raise StateUnusable(f"{setting}: others may read {file}", fix=f"chmod 600 {file}, and replace the key")
    try:
        return api_key(text.partition(b"\n")[0].decode("ascii", "replace").strip())
    except ValueError as error:
        raise StateUnusable(f"{setting}: {file}: {error}", fix="write the key into its first line") from None


def _model(name: str, settings: ModelSettings) -> Model:
    return _made(settings, key_of(name, settings))


def _made(settings: ModelSettings, key: str) -> OpenAiModel:
    return OpenAiModel(
        settings.endpoint,
        model=settings.model,
        api_key=key,
        timeout=settings.timeout_seconds,
        options=settings.options,
    )


# ---- models of the database ------------------------------------------------------------------------------------------


class _Unusable:
    """Takes the place of a stored model that cannot be asked; asking it says why."""

    target = ""

    def __init__(self, why: str) -> None:
        self._why = why

    async def complete(self, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Message:
        del messages, tools
        raise ModelFailed(self._why)


class _Followed(NamedTuple):
    """A stored model, and what was made of it."""

    stored: StoredModel
    model: Model
    is_usable: bool


class StoredModels:
    """The models of the database: changed by administrators, and followed on every node."""

    def __init__(self, store: RuntimeStore, ring: Callable[[], KeyRing], known: KnownModels) -> None:
        """Take where they are stored, the keys that are present at each call, and where agents look them up."""
        self._store = store
        self._ring = ring
        self._known = known
        self._lock = threading.Lock()
        self._followed: dict[str, _Followed] = {}

    def refresh(self) -> None:
        """Read what is stored, and have agents use that from their next question on. From any thread."""
        with self._lock:
            before, stored = self._followed, self._store.models()
            found = {one.name: _kept(before.get(one.name), one) or self._follow(one) for one in stored}
            if found != before:
                self._followed = found
                self._known.exchange({name: one.model for name, one in found.items()})

    def all(self) -> dict[str, StoredModel]:
        """Return those that are stored, by name."""
        return {one.name: one for one in self._store.models()}

    def add(self, name: str, entry: Mapping[str, object], *, now: datetime, actor: str) -> StoredModel:
        """Add a model; raises ``InvalidInputError`` with every problem, ``EntryExists`` or ``EntryConfigured``."""
        settings = stored_model(name, dict(entry))
        return self._store.add_model(name, lambda: self._sealed(name, settings), now=now, actor=actor)

    def change(self, name: str, changes: Mapping[str, object], *, now: datetime, actor: str) -> StoredModel:
        """Change a model; its key stays unless there is another one in the changes, or an empty text for none.

        The key stays with its endpoint: with another endpoint it has to be given again.
        """

        def changed(before: StoredModel) -> StoredModel:
            given = {key: value for key, value in changes.items() if (key, value) != ("api_key", "")}
            after = self._sealed(name, stored_model(name, {**before.settings, **given}))
            if "api_key" in changes or not before.sealed_key:
                return after
            if after.settings["endpoint"] != before.settings.get("endpoint"):
                message = "the key was given for another endpoint: give it again, or an empty text for no key"
                raise InvalidInputError.of(message, pointer="/api_key")
            return after._replace(sealed_key=before.sealed_key)

        return self._store.change_model(name, changed, now=now, actor=actor)

    def remove(self, name: str, *, now: datetime, actor: str) -> StoredModel:
        """Remove a model with its key, and return what it was; raises ``EntryUnknown`` or ``EntryConfigured``."""
        return self._store.remove_model(name, now=now, actor=actor)

    def _sealed(self, name: str, settings: ModelSettings) -> StoredModel:
        facts: dict[str, Any] = {field: getattr(settings, field) for field in STORED_FIELDS}
        key = seal_secret(self._ring(), settings.api_key, *_owner(name, facts)) if settings.api_key else b""
        return StoredModel(name, facts, key)

    def _follow(self, stored: StoredModel) -> _Followed:
        """Make a model of what is stored; one that another hand has changed is not used."""
        try:
            settings = stored_model(stored.name, dict(stored.settings))
            key = unseal_secret(self._ring(), stored.sealed_key, *_owner(*stored[:2])) if stored.sealed_key else ""
            return _Followed(stored, _made(replace(settings, api_key=""), key), is_usable=True)
        except Unreadable as error:
            why = f"the key of model {stored.name} cannot be read: {error}; give it again"
        except InvalidInputError as error:
            why = f"the stored model {stored.name} is not valid: {'; '.join(map(str, error.problems))}"
        known = self._followed.get(stored.name)
        if known is None or known.stored != stored:
            _log.error("%s", why)
        return _Followed(stored, _Unusable(why), is_usable=False)


def reseal_model_keys(store: RuntimeStore, ring: KeyRing) -> tuple[int, tuple[str, ...]]:
    """Put the keys of all stored models under the first key; return how many, and the models that no key opens."""
    unreadable = []

    def attempt(stored: StoredModel) -> bytes | None:
        try:
            return reseal_secret(ring, stored.sealed_key, *_owner(*stored[:2]))
        except Unreadable:
            unreadable.append(stored.name)
            return None

    return store.replace_model_keys(attempt), tuple(unreadable)


def _kept(before: _Followed | None, stored: StoredModel) -> _Followed | None:
    """Return what was made before, if it can be used and nothing has changed."""
    return before if before is not None and before.is_usable and before.stored == stored else None


def _owner(name: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the key of a model is bound to."""
    return "model", name, str(settings.get("endpoint", ""))
