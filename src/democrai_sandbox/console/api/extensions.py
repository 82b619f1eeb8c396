"""Extensions: functions, manifests, problems, installation and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Path, Request
from pydantic import Field

from democrai_sandbox.console.admitting import require_administrator
from democrai_sandbox.console.visitors import Visitor, holder, require_fresh, sandbox_of
from democrai_sandbox.host import configuring, inventory
from democrai_sandbox.host.inventory import ExtensionState  # noqa: TC001 - FastAPI reads the annotations
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.manifests.lint import FindingCode, Severity  # noqa: TC001 - the same
from democrai_sandbox.runtime.installs.interface import InstallState  # noqa: TC001 - the same
from democrai_sandbox.runtime.surroundings import serving

from .documenting import router, told
from .schemas import Answer, Members, Named, Order, Text

if TYPE_CHECKING:
    from democrai_sandbox.host.inventory import Overview
    from democrai_sandbox.host.sandbox import Sandbox

extensions = router("extensions")
Reader = Annotated[Visitor, Depends(holder(Scope.SUBJECTS_READ))]
Manager = Annotated[Visitor, Depends(holder(Scope.EXTENSIONS_MANAGE))]
Kind = Annotated[str, Path(max_length=100)]
Name = Annotated[str, Path(min_length=1, max_length=300)]


class Offered(Answer):
    """A function of a module."""

    kind: Text
    name: Text
    parameters: list[Text]
    hint: Text
    every: float | None
    """Seconds between the runs of a scheduled task."""


class ExtensionEntry(Answer):
    """An extension in the list of all."""

    kind: Named
    name: Text
    state: ExtensionState
    version: Text
    description: Text
    isolation: Text
    problem_count: int
    finding_count: int
    offers: list[Offered]


class ExtensionList(Answer):
    """All extensions, by kind and name."""

    items: list[ExtensionEntry]


class ManifestProblem(Answer):
    """A problem that keeps an extension from running."""

    pointer: Text
    message: Text
    suggestion: Text
    line: int


class Finding(Answer):
    """Advice about a valid manifest."""

    code: FindingCode
    severity: Severity
    pointer: Text
    message: Text
    advice: Text
    line: int


class InstallProgress(Answer):
    """The last step of an installation."""

    stage: Text
    text: Text
    fraction: float | None


class Install(Answer):
    """State of the environment of an engine or extractor."""

    state: InstallState
    environment: Text | None
    packages: list[Text]
    progress: InstallProgress | None
    problem: Text


class NewInstall(Order):
    """Options of an installation."""

    again: bool = Field(default=False, description="Rebuild the environment even if it is ready.")


_AS_USUAL = NewInstall()


class Settings(Answer):
    """Settings of an engine or extractor."""

    settings: Members
    source: Text
    """`configuration` or `database`. Values of the configuration are changed in its file."""
    url_keys: list[Text]
    """Settings whose values are URLs that the extension may use."""


class SettingChanges(Order):
    """Changes; other values stay."""

    set: dict[str, Any] = Field(default={}, description="Values by name: any JSON.")
    unset: list[str] = Field(default=[], description="Names to remove.")


_NO_CHANGES = SettingChanges()


class Limit(Answer):
    """A limit and its origin."""

    section: Text
    name: Text
    number: int


class Printed(Answer):
    """The last output, and the number of dropped characters before it."""

    text: Text
    dropped: int


class ExtensionDetail(ExtensionEntry):
    """An extension in full."""

    folder: Text
    manifest_file: Text
    manifest: Text
    problems: list[ManifestProblem]
    findings: list[Finding]
    install: Install | None
    limits: list[Limit]
    printed: Printed


@extensions.get("/extensions", **told(Scope.SUBJECTS_READ))
def list_extensions(request: Request, visitor: Reader) -> ExtensionList:
    """List all extensions with their functions; administrators also see their folders and problems."""
    del visitor
    sandbox = sandbox_of(request)
    items = [ExtensionEntry.model_validate(_entry(sandbox, one)) for one in inventory.overview(sandbox)]
    return ExtensionList(items=items)


@extensions.get("/extensions/{kind}/{name}", **told(Scope.SUBJECTS_READ, 404))
def show_extension(request: Request, kind: Kind, name: Name, visitor: Reader) -> ExtensionDetail:
    """Show an extension with its manifest, problems, lint findings, installation, limits and latest output."""
    require_administrator(visitor)
    sandbox = sandbox_of(request)
    found = inventory.detail(sandbox, kind, name)
    whole = found.overview
    facts = {
        "folder": whole.folder,
        "manifest_file": found.manifest_file,
        "manifest": "\n".join(found.lines),
        "problems": [_problem(problem) for problem in whole.problems],
        "findings": whole.findings,
        "install": whole.install,
        "limits": [dict(zip(("section", "name", "number"), limit, strict=True)) for limit in found.limits],
        "printed": found.printed,
    }
    return ExtensionDetail.model_validate({**_entry(sandbox, whole), **facts})


@extensions.post(
    "/extensions/{kind}/{name}/install", status_code=202, **told(Scope.EXTENSIONS_MANAGE, 404, 409, body=True)
)
async def install_extension(
    request: Request, kind: Kind, name: Name, visitor: Manager, order: NewInstall = _AS_USUAL
) -> Install:
    """Start to install an engine or extractor in the background; `/extensions/{kind}/{name}` shows the progress."""
    with serving(visitor.caller):
        status = await configuring.install(sandbox_of(request), kind, name, visitor.caller, again=order.again)
    return Install.model_validate(status)


@extensions.get("/extensions/{kind}/{name}/settings", **told(Scope.SUBJECTS_READ, 404))
def show_settings(request: Request, kind: Kind, name: Name, visitor: Reader) -> Settings:
    """Show the settings of an engine or extractor; values with secret names are `***`."""
    return Settings.model_validate(configuring.settings_of(sandbox_of(request), kind, name, visitor.caller))


@extensions.patch("/extensions/{kind}/{name}/settings", **told(Scope.EXTENSIONS_MANAGE, 404, 409, body=True))
def change_settings(
    request: Request, kind: Kind, name: Name, visitor: Manager, changes: SettingChanges = _NO_CHANGES
) -> Settings:
    """Set or remove settings of an engine or extractor; others stay. The next call starts a worker with them."""
    require_fresh(request, visitor)
    with serving(visitor.caller):
        changed = configuring.change_settings(
            sandbox_of(request), kind, name, visitor.caller, wanted=changes.set, unwanted=changes.unset
        )
    return Settings.model_validate(changed)


def _entry(sandbox: Sandbox, one: Overview) -> dict[str, Any]:
    names = ("kind", "name", "state", "version", "description", "isolation")
    facts: dict[str, Any] = {name: getattr(one, name) for name in names}
    counts = {"problem_count": len(one.problems), "finding_count": len(one.findings)}
    return {**facts, **counts, "offers": inventory.offers(sandbox, inventory.find(sandbox, one.kind, one.name))}


def _problem(problem: Any) -> dict[str, Any]:
    place = {"pointer": problem.pointer, "message": problem.message, "suggestion": problem.suggestion or ""}
    return {**place, "line": inventory.line_of(problem)}
