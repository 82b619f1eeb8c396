"""Section ``extensions``: models, MCP servers, and settings of engines and extractors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from democrai_sandbox.host.settings import ExtensionSettings, InstalledSettings, ModelSettings
from democrai_sandbox.manifests import McpServer, McpTransport, make_manifest
from democrai_sandbox.policy import InvalidInputError, Problem, Subject, SubjectKind, nearest, parse_request_url
from democrai_sandbox.policy.sections import Section, described, number, switch
from democrai_sandbox.policy.text import exact_str
from democrai_sandbox.runtime.settings import McpApproval

from . import values as read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LONGEST_TIMEOUT = 3600
_timeout = number(0.1, _LONGEST_TIMEOUT, "seconds")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_RULE = "the name of a model must have up to 64 letters, digits, '.', '_' and '-'"
_DEFAULT = ModelSettings(endpoint="", model="")
_SERVER_KEYS = ("transport", "endpoint_url", "enabled", "timeout_ms")
_RESERVED = ("messages", "model", "tools")
"""Fields of a model request that the runtime sets."""


def extension_settings(section: Section) -> ExtensionSettings:
    """Read the section and record all its problems."""
    mcp = section.inner("mcp")
    settings = ExtensionSettings(
        models=dict(_entries(section.inner("models"), _model_name, _model)),
        mcp_approval=mcp.take("approval", _approval, default=McpApproval.REGISTERED),
        mcp_servers=dict(_entries(mcp.inner("servers"), _named(SubjectKind.MCP), _server)),
        engines=dict(_entries(section.inner("engines"), _named(SubjectKind.ENGINE), _installed)),
        extractors=dict(_entries(section.inner("extractors"), _named(SubjectKind.EXTRACTOR), _installed)),
    )
    mcp.refuse_others()
    section.refuse_others()
    return settings


def stored_model(name: object, entry: object) -> ModelSettings:
    """Validate a model from outside the configuration; raise ``InvalidInputError`` with all problems.

    It cannot name a file: only the configuration decides which files the host reads.
    """
    problems: list[Problem] = []
    text = exact_str(name)
    if text is None or not _MODEL_NAME.fullmatch(text):
        problems.append(Problem("/name", _NAME_RULE))
    if isinstance(entry, dict) and "api_key_file" in entry:
        problems.append(Problem("/api_key_file", "a key file is possible in the configuration only: use api_key"))
        entry = {key: value for key, value in entry.items() if key != "api_key_file"}
    settings = _model(text or "", Section(entry, "", problems))
    if problems:
        raise InvalidInputError(problems)
    return settings


def _entries(
    section: Section, check: Callable[[str], None], make: Callable[[str, Section], Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the value of each key of a section with free names."""
    for name in section.names:
        inner = section.inner(name)
        try:
            check(name)
        except InvalidInputError as error:
            section.problems += [Problem(inner.pointer, item.message, item.suggestion) for item in error.problems]
            continue
        before = len(section.problems)
        made = make(name, inner)
        if len(section.problems) == before:
            yield name, made


def _named(kind: SubjectKind) -> Callable[[str], None]:
    def check(name: str) -> None:
        Subject(kind, name)

    return check


def _model_name(name: str) -> None:
    if not _MODEL_NAME.fullmatch(name):
        raise InvalidInputError.of(_NAME_RULE)


def _model(_: str, section: Section) -> ModelSettings:
    given = set(section.names)
    settings = ModelSettings(
        endpoint=section.take("endpoint", _endpoint, default=""),
        model=section.take("model", _text("the name of the model at the endpoint"), default=""),
        api_key=section.take("api_key", api_key, default=""),
        api_key_file=section.take("api_key_file", read.path, default=""),
        timeout_seconds=section.take("timeout_seconds", _timeout, default=_DEFAULT.timeout_seconds),
        options=section.take("options", _options, default={}),
    )
    section.refuse_others()
    for name in ("endpoint", "model"):
        if name not in given:
            section.problems.append(Problem(section.pointer, f"a model needs the key {name!r}"))
    if {"api_key", "api_key_file"} <= given:
        message = "set either api_key or api_key_file, not both"
        section.problems.append(Problem(f"{section.pointer}/api_key_file", message))
    return settings


def _endpoint(value: object) -> str:
    """Validate the URL of a model before ``/chat/completions``. Errors never quote it: it may contain a secret."""
    text = exact_str(value)
    if text is None or not text.startswith(("http://", "https://")):
        raise ValueError("expected an http or https URL, such as https://models.example.com/v1")
    if "?" in text or "#" in text or "@" in text:
        raise ValueError("expected a URL without a user, a query or a fragment: put a key into api_key_file")
    try:
        parse_request_url(text)
    except InvalidInputError as error:
        raise ValueError("; ".join(item.message for item in error.problems)) from None
    return text


def api_key(value: object) -> str:
    """Validate a key that can be sent in a header. Errors never quote it."""
    text = exact_str(value)
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("expected the key of the model: ASCII text without spaces")
    return text


def _text(what: str) -> Callable[[object], str]:
    def take(value: object) -> str:
        text = exact_str(value)
        if not text or not text.isprintable():
            raise ValueError(f"expected {what} as a text, got {described(value)}")
        return text

    return take


def _options(value: object) -> dict[str, Any]:
    found = _object(value)
    for name in _RESERVED:
        if name in found:
            raise ValueError(f"{name!r} is set by the runtime: remove it from the options")
    return found


def _object(value: object) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError(f"expected an object, got {described(value)}")
    return value


def _approval(value: object) -> McpApproval:
    text = exact_str(value)
    if text not in tuple(McpApproval):
        message = f"expected one of {', '.join(McpApproval)}, got {described(value)}"
        raise InvalidInputError.of(message, suggestion=nearest(text or "", McpApproval))
    return McpApproval(text)


def _server(name: str, section: Section) -> McpServer | None:
    """Validate an entry of the registry by the rules for manifests."""
    given = {key: section.raw(key) for key in _SERVER_KEYS if key in section.names}
    section.refuse_others()
    try:
        return make_manifest({"name": name, "transport": McpTransport.STREAMABLE_HTTP.value, **given}, McpServer)
    except InvalidInputError as error:
        section.problems += [problem.moved(section.pointer) for problem in error.problems]
        return None


def _installed(_: str, section: Section) -> InstalledSettings:
    settings = InstalledSettings(
        install=section.take("install", switch, default=False),
        settings=section.take("settings", _object, default=None),
    )
    section.refuse_others()
    return settings
