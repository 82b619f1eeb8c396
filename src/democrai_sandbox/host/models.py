"""The models of the configuration, ready to be asked by agents. Their keys are read once, when the host starts."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from democrai_sandbox.errors import HostRefused, StateUnusable
from democrai_sandbox.runtime.ai.openai import OpenAiModel

from .config.extensions import api_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.runtime.ai.interface import Model

    from .settings import HostSettings, ModelSettings

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
    return OpenAiModel(
        settings.endpoint,
        model=settings.model,
        api_key=key_of(name, settings),
        timeout=settings.timeout_seconds,
        options=settings.options,
    )
