"""Extensions: list, single extensions, installation, settings, MCP servers and models."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, Field

from democrai_sandbox.console.auth import require_fresh, sandbox_of
from democrai_sandbox.console.render import is_present, redirect, render, state_mark, url
from democrai_sandbox.console.untrusted_text import code, code_line
from democrai_sandbox.host import extension_admin
from democrai_sandbox.host.config.display import HIDDEN
from democrai_sandbox.host.extension_overview import ExtensionState, extension_profile, line_of, list_extensions
from democrai_sandbox.host.settings import MODEL_TIMEOUT
from democrai_sandbox.manifests.models import McpTransport
from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.runtime.access_environment import serving

from .parameters import Administrator, SignedInUser, why_not

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.console.auth import Visitor
    from democrai_sandbox.host.extension_admin import ConfiguredModel, ConfiguredServer
    from democrai_sandbox.host.extension_overview import ExtensionProfile, ExtensionSummary

router = APIRouter()

_HEADINGS = (("module", "Modules"), ("engine", "Engines"), ("extractor", "Extractors"))
_LONGEST_LINE = 2000
_SERVER_ACTS = MappingProxyType({"enable": "server_enabled", "disable": "server_disabled", "remove": "server_removed"})
_MODEL_ACTS = MappingProxyType(
    {"change": "model_changed", "remove_key": "model_key_removed", "remove": "model_removed"}
)

_MESSAGES = frozenset({"server_added", "model_added", *_SERVER_ACTS.values(), *_MODEL_ACTS.values()})


@router.get("/extensions")
def listed(request: Request, visitor: SignedInUser) -> HTMLResponse:
    """List all extensions by kind; users who may not decide see runnable modules only."""
    found = list_extensions(sandbox_of(request))
    if not visitor.may_decide:
        found = tuple(one for one in found if one.kind.value == "module" and one.state is ExtensionState.OK)
    kinds = [(title, [one for one in found if one.kind.value == kind]) for kind, title in _HEADINGS]
    sandbox = sandbox_of(request)
    return render(
        request,
        "extensions/list.html",
        visitor=visitor,
        kinds=[pair for pair in kinds if pair[1]],
        warnings=_warnings,
        models=extension_admin.models(sandbox, visitor.caller) if visitor.may_decide else (),
        servers=extension_admin.mcp_servers(sandbox, visitor.caller) if visitor.may_decide else (),
        holds=_holds(request, visitor),
        approval=sandbox.settings.extensions.mcp_approval,
        as_json=_as_json,
        usual_timeout=f"{MODEL_TIMEOUT:g}",
        transports=[(one.value, one.value) for one in McpTransport],
    )


@router.get("/extensions/{kind}/{name}")
def shown(request: Request, kind: str, name: str, visitor: SignedInUser) -> HTMLResponse:
    """Show one extension; its declarations and output need the right to decide."""
    sandbox = sandbox_of(request)
    found = extension_profile(sandbox, kind, name)
    has_settings = visitor.may_decide and kind != "module"
    settings = extension_admin.settings_of(sandbox, kind, name, visitor.caller) if has_settings else None
    return render(
        request,
        "extensions/show.html",
        visitor=visitor,
        found=found,
        about=found.overview,
        marks=_marks(found),
        line_of=line_of,
        longest=_LONGEST_LINE,
        code=code,
        code_line=code_line,
        why_not=why_not(visitor),
        holds={
            "install_started": found.overview.state is ExtensionState.INSTALLING,
            "settings_changed": is_present(request, settings),
        },
        settings=settings,
        as_json=_as_json,
    )


@router.post("/extensions/{kind}/{name}/install")
async def install(
    request: Request, kind: str, name: str, visitor: Administrator, *, again: bool = False
) -> RedirectResponse:
    """Start to install an engine or extractor in the background; the page of the extension shows the progress."""
    with serving(visitor.caller):
        await extension_admin.install(sandbox_of(request), kind, name, visitor.caller, again=again)
    return redirect(request, f"/extensions/{kind}/{quote(name)}", done="install_started")


@router.post("/extensions/{kind}/{name}/settings")
def change_settings(
    request: Request,
    kind: str,
    name: str,
    visitor: Administrator,
    *,
    key: Annotated[str, Form(max_length=200)],
    value: Annotated[str, Form(max_length=100_000)] = "",
    act: Annotated[str, Form(max_length=20)] = "set",
) -> RedirectResponse:
    """Set or remove one setting of an engine or extractor."""
    here = f"/extensions/{kind}/{quote(name)}"
    require_fresh(request, visitor, back=url(request, here))
    is_unset = act == "unset"
    with serving(visitor.caller):
        extension_admin.change_settings(
            sandbox_of(request),
            kind,
            name,
            visitor.caller,
            wanted={} if is_unset else {_key(key): _value(value)},
            unwanted=(key,) if is_unset else (),
        )
    present = extension_admin.settings_of(sandbox_of(request), kind, name, visitor.caller)
    return redirect(request, here, done="settings_changed", seen=state_mark(present))


@router.post("/mcp-servers")
def add_server(
    request: Request,
    visitor: Administrator,
    name: Annotated[str, Form(max_length=200)],
    endpoint_url: Annotated[str, Form(max_length=2000)],
    transport: Annotated[str, Form(max_length=50)],
) -> RedirectResponse:
    """Register an MCP server."""
    require_fresh(request, visitor, back=url(request, "/extensions"))
    entry = {"name": name.strip(), "endpoint_url": endpoint_url.strip(), "transport": transport}
    with serving(visitor.caller):
        added = extension_admin.add_mcp_server(sandbox_of(request), entry, visitor.caller)
    return _done(request, visitor, "server_added", added.name)


@router.post("/mcp-servers/{name}")
def change_server(
    request: Request, name: str, visitor: Administrator, act: Annotated[str, Form(max_length=20)]
) -> RedirectResponse:
    """Enable, disable or remove an MCP server."""
    sandbox = sandbox_of(request)
    if act not in _SERVER_ACTS:
        raise InvalidInputError.of(f"expected one of {', '.join(_SERVER_ACTS)}", pointer="/act")
    if act == "enable":
        require_fresh(request, visitor, back=url(request, "/extensions"))
    with serving(visitor.caller):
        if act == "remove":
            extension_admin.remove_mcp_server(sandbox, name, visitor.caller)
        else:
            extension_admin.change_mcp_server(sandbox, name, {"enabled": act == "enable"}, visitor.caller)
    return _done(request, visitor, _SERVER_ACTS[act], name)


class ModelForm(BaseModel):
    """Form of a model. An empty key field keeps the key."""

    endpoint: str = Field(default="", max_length=2000)
    model: str = Field(default="", max_length=500)
    api_key: str = Field(default="", max_length=4096)
    timeout_seconds: str = Field(default="", max_length=50)
    options: str = Field(default="", max_length=20_000)

    def facts(self, shown: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values to store, without options that equal ``shown``."""
        found: dict[str, Any] = {"endpoint": self.endpoint.strip(), "model": self.model.strip()}
        if self.api_key.strip():
            found["api_key"] = self.api_key.strip()
        found["timeout_seconds"] = _seconds(self.timeout_seconds)
        options = _options(self.options)
        if options == dict(shown):
            return found
        if HIDDEN in self.options and HIDDEN in _as_json(dict(shown)):
            message = f"a value that is shown as {HIDDEN} is secret: enter it again to change the options"
            raise InvalidInputError.of(message, pointer="/options")
        return {**found, "options": options}


class NewModelForm(ModelForm):
    """Form of a new model."""

    name: str = Field(max_length=200)


class ChangedModelForm(ModelForm):
    """Form of a changed model."""

    act: str = Field(max_length=20)


@router.post("/models")
def add_model(request: Request, visitor: Administrator, sent: Annotated[NewModelForm, Form()]) -> RedirectResponse:
    """Add a model."""
    require_fresh(request, visitor, back=url(request, "/extensions"))
    entry = sent.facts({})
    with serving(visitor.caller):
        added = extension_admin.add_model(sandbox_of(request), sent.name.strip(), entry, visitor.caller)
    return _done(request, visitor, "model_added", added.name)


@router.post("/models/{name}")
def change_model(
    request: Request, name: str, visitor: Administrator, sent: Annotated[ChangedModelForm, Form()]
) -> RedirectResponse:
    """Change a model, remove its key, or remove it."""
    sandbox, act = sandbox_of(request), sent.act
    if act not in _MODEL_ACTS:
        raise InvalidInputError.of(f"expected one of {', '.join(_MODEL_ACTS)}", pointer="/act")
    if act != "remove":
        require_fresh(request, visitor, back=url(request, "/extensions"))
    with serving(visitor.caller):
        if act == "remove":
            extension_admin.remove_model(sandbox, name, visitor.caller)
        else:
            present = _entry(request, visitor, "model_changed", name)
            shown = present.options if isinstance(present, extension_admin.ConfiguredModel) else {}
            changes = {"api_key": ""} if act == "remove_key" else sent.facts(shown)
            extension_admin.change_model(sandbox, name, changes, visitor.caller)
    return _done(request, visitor, _MODEL_ACTS[act], name)


def _done(request: Request, visitor: Visitor, done: str, name: str) -> RedirectResponse:
    """Redirect to the list, which shows the message until the model or server changes again."""
    entry = _entry(request, visitor, done, name)
    return redirect(request, "/extensions", done=done, about=name, seen=state_mark(entry))


def _holds(request: Request, visitor: Visitor) -> dict[str, bool]:
    """Return whether the message of the address is still true."""
    done, about = request.query_params.get("done", ""), request.query_params.get("about", "")
    known = visitor.may_decide and done in _MESSAGES
    return {done: known and is_present(request, _entry(request, visitor, done, about))}


def _entry(request: Request, visitor: Visitor, done: str, name: str) -> ConfiguredModel | ConfiguredServer | None:
    """Return the model or server of a message, or None if it was removed."""
    listed = extension_admin.models if done.startswith("model_") else extension_admin.mcp_servers
    return next((one for one in listed(sandbox_of(request), visitor.caller) if one.name == name), None)


def _seconds(text: str) -> float:
    """Return the typed timeout, or the default."""
    if not text.strip():
        return MODEL_TIMEOUT
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError.of("expected a number of seconds", pointer="/timeout_seconds") from None


def _options(text: str) -> dict[str, Any]:
    """Return the typed options, a JSON object; empty for an empty text."""
    found = _value(text) if text.strip() else {}
    if not isinstance(found, dict):
        raise InvalidInputError.of('expected a JSON object, such as {"temperature": 0.2}', pointer="/options")
    return found


def _key(text: str) -> str:
    if not text.strip():
        raise InvalidInputError.of("expected the name of a setting", pointer="/key")
    return text.strip()


def _value(text: str) -> Any:
    """Return the typed value: JSON, or otherwise the text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found


def _as_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _warnings(one: ExtensionSummary) -> int:
    return sum(finding.severity == "warning" for finding in one.findings)


def _marks(found: ExtensionProfile) -> dict[int, str]:
    """Return the marks of manifest lines: ``wrong`` for a problem, ``found`` for a finding."""
    marks = {finding.line: "found" for finding in found.overview.findings if finding.line}
    return marks | {line_of(problem): "wrong" for problem in found.overview.problems if line_of(problem)}
