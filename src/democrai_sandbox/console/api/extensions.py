"""Extensions: what each offers, its manifest as it is written, and what is wrong or questionable about it."""

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
    """Something of a module that can be run."""

    kind: Text
    name: Text
    parameters: list[Text]
    hint: Text
    every: float | None
    """Seconds between the runs of a task that goes by the clock."""


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
    """Something that keeps an extension from running."""

    pointer: Text
    message: Text
    suggestion: Text
    line: int


class Finding(Answer):
    """Advice about a manifest; it works as it is."""

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
    """Whether an engine or extractor has the environment that its manifest asks for."""

    state: InstallState
    environment: Text | None
    packages: list[Text]
    progress: InstallProgress | None
    problem: Text


class NewInstall(Order):
    """How to install."""

    again: bool = Field(default=False, description="Build the environment anew, also if it is there.")


_AS_USUAL = NewInstall()


class Settings(Answer):
    """What an engine or extractor is set up with."""

    settings: Members
    source: Text
    """`configuration` or `database`; what the configuration sets is changed in its file."""
    url_keys: list[Text]
    """The settings whose values are URLs that the extension may then use."""


class SettingChanges(Order):
    """What is to be different; the rest stays."""

    set: dict[str, Any] = Field(default={}, description="Values by name: any JSON.")
    unset: list[str] = Field(default=[], description="Names to remove.")


_NO_CHANGES = SettingChanges()


class Limit(Answer):
    """A limit, and where it is set."""

    section: Text
    name: Text
    number: int


class Printed(Answer):
    """What it printed last, and how many characters before that are not kept."""

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
    """List all extensions, with what can be run of them; where they lie and what is wrong is for administrators."""
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
    """Begin to install an engine or extractor, in the background; `/extensions/{kind}/{name}` tells how far it is."""
    with serving(visitor.caller):
        status = await configuring.install(sandbox_of(request), kind, name, visitor.caller, again=order.again)
    return Install.model_validate(status)


@extensions.get("/extensions/{kind}/{name}/settings", **told(Scope.SUBJECTS_READ, 404))
def show_settings(request: Request, kind: Kind, name: Name, visitor: Reader) -> Settings:
    """Show what an engine or extractor is set up with; values whose names say that they are secret are `***`."""
    return Settings.model_validate(configuring.settings_of(sandbox_of(request), kind, name, visitor.caller))


@extensions.patch("/extensions/{kind}/{name}/settings", **told(Scope.EXTENSIONS_MANAGE, 404, 409, body=True))
def change_settings(
    request: Request, kind: Kind, name: Name, visitor: Manager, changes: SettingChanges = _NO_CHANGES
) -> Settings:
    """Set and remove settings of an engine or extractor; others stay. A process with the new ones starts by itself."""
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
