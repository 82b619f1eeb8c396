"""Extensions of a configuration: whether they can run, and lint findings. No extension is imported."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from democrai_sandbox.errors import ConfigInvalid, StateUnusable
from democrai_sandbox.host.installing import check_configured
from democrai_sandbox.host.lines import Area, Line, LineState
from democrai_sandbox.host.models import key_of
from democrai_sandbox.host.settings import ExtensionSettings
from democrai_sandbox.manifests import FindingCode, Severity, lint
from democrai_sandbox.runtime.extensions import discover
from democrai_sandbox.runtime.settings import Isolation, RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.host.settings import HostSettings
    from democrai_sandbox.manifests import Finding
    from democrai_sandbox.runtime.extensions import Extension, Registry

_MOST_NAMED = 5
_FOLDERS = ("modules_path", "engines_path", "extractors_path")
_EXTRA = ("extra_module_dirs", "extra_engine_dirs", "extra_extractor_dirs")


def extension_lines(settings: HostSettings) -> Iterator[Line]:
    """Read all manifests."""
    folders = {name: getattr(settings, name) for name in (*_FOLDERS, *_EXTRA)}
    runtime = RuntimeSettings(data_dir=settings.data_dir, isolation=dict(settings.isolation), **folders)
    registry = discover(runtime)
    found = tuple(registry)
    findings = {str(each.subject): tuple(_findings(each, runtime)) for each in found}
    yield _sound(found)
    yield _reviewed(findings)
    yield _native(findings)
    if settings.extensions != ExtensionSettings():
        yield _configured(settings.extensions, registry)


def _configured(settings: ExtensionSettings, registry: Registry) -> Line:
    """Check the settings of extensions that a start needs: names, URLs and key files."""
    counts = {
        "models": len(settings.models),
        "mcp_servers": len(settings.mcp_servers),
        "engines": len(settings.engines),
        "extractors": len(settings.extractors),
    }
    summary = ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in counts.items() if number)
    line = Line(
        "configured", "Extension settings", Area.RUNTIME, LineState.OK, summary or "approval mode", details=counts
    )
    try:
        check_configured(settings, registry)
        for name, model in settings.models.items():
            key_of(name, model)
    except ConfigInvalid as error:
        told = "; ".join(map(str, error.problems))
        return replace(
            line, state=LineState.OFF, summary=told, fix="correct the section extensions of the configuration"
        )
    except StateUnusable as error:
        return replace(line, state=LineState.OFF, summary=error.what, fix=error.fix)
    return line


def _sound(found: tuple[Extension, ...]) -> Line:
    kinds = Counter(each.kind.value for each in found)
    counted = ", ".join(f"{number} {kind}{'' if number == 1 else 's'}" for kind, number in kinds.items()) or "none"
    broken = [str(each.subject) for each in found if each.is_broken]
    line = Line("extensions", "Extensions", Area.RUNTIME, LineState.OK, counted, details={**kinds, "broken": broken})
    if not broken:
        return line
    fix = "run democrai-sandbox manifest check, which shows each problem with its line"
    return replace(line, state=LineState.DEGRADED, summary=f"{counted}; cannot run: {_named(broken)}", fix=fix)


def _findings(extension: Extension, settings: RuntimeSettings) -> Iterator[Finding]:
    if extension.manifest is not None:
        in_process = settings.isolation_of(extension.subject) is Isolation.IN_PROCESS
        yield from lint(extension.manifest, in_process=in_process)


def _reviewed(findings: dict[str, tuple[Finding, ...]]) -> Line:
    """Count declarations that are broader than usual. They are advice, not errors."""
    warned = [subject for subject, found in findings.items() if any(map(_is_warning, found))]
    line = Line("lint", "Manifests", Area.RUNTIME, LineState.OK, "no findings", details={"warned": warned})
    if warned:
        summary = f"run democrai-sandbox manifest lint: it has findings for {_named(warned)}"
        return replace(line, summary=summary)
    return line


def _native(findings: dict[str, tuple[Finding, ...]]) -> Line:
    """Warn of native packages, which the guard cannot check, in extensions that only the guard restricts."""
    found = {
        subject: [one for one in each if one.code is FindingCode.NATIVE_ACCESS] for subject, each in findings.items()
    }
    affected = {subject: [one.message for one in each] for subject, each in found.items() if each}
    line = Line("native", "Native packages", Area.RUNTIME, LineState.OK, "none used in process", details=affected)
    if not affected:
        return line
    summary = (
        "warning: native packages in this process open files or connections that the guard cannot check; "
        f"run these in a worker (sandbox.isolation): {_named(list(affected))}"
    )
    return replace(line, summary=summary)


def _is_warning(finding: Finding) -> bool:
    return finding.severity is Severity.WARNING


def _named(subjects: list[str]) -> str:
    return ", ".join(subjects[:_MOST_NAMED]) + (
        f" and {len(subjects) - _MOST_NAMED} more" if subjects[_MOST_NAMED:] else ""
    )
