"""The extensions of a configuration: whether they could run, and what reviewers would point out. None is imported."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from democrai_sandbox.host.lines import Area, Line, LineState
from democrai_sandbox.manifests import Severity, lint
from democrai_sandbox.runtime.extensions import discover
from democrai_sandbox.runtime.settings import RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.host.settings import HostSettings
    from democrai_sandbox.runtime.extensions import Extension

_MOST_NAMED = 5
_FOLDERS = ("modules_path", "engines_path", "extractors_path")
_EXTRA = ("extra_module_dirs", "extra_engine_dirs", "extra_extractor_dirs")


def extension_lines(settings: HostSettings) -> Iterator[Line]:
    """Read all manifests."""
    folders = {name: getattr(settings, name) for name in (*_FOLDERS, *_EXTRA)}
    found = tuple(discover(RuntimeSettings(data_dir=settings.data_dir, **folders)))
    yield _sound(found)
    yield _reviewed(found)


def _sound(found: tuple[Extension, ...]) -> Line:
    kinds = Counter(each.kind.value for each in found)
    counted = ", ".join(f"{number} {kind}{'' if number == 1 else 's'}" for kind, number in kinds.items()) or "none"
    broken = [str(each.subject) for each in found if each.is_broken]
    line = Line("extensions", "Extensions", Area.RUNTIME, LineState.OK, counted, details={**kinds, "broken": broken})
    if not broken:
        return line
    fix = "democrai-sandbox manifest check says what is wrong, with the line"
    return replace(line, state=LineState.DEGRADED, summary=f"{counted}; cannot run: {_named(broken)}", fix=fix)


def _reviewed(found: tuple[Extension, ...]) -> Line:
    """Count what gives more than is likely to be needed. It is advice: everything works as it is."""
    warned = [str(each.subject) for each in found if each.manifest is not None and _has_warning(each)]
    line = Line("lint", "Manifests", Area.RUNTIME, LineState.OK, "nothing to point out", details={"warned": warned})
    if warned:
        summary = f"democrai-sandbox manifest lint points something out about {_named(warned)}"
        return replace(line, summary=summary)
    return line


def _has_warning(extension: Extension) -> bool:
    return extension.manifest is not None and any(
        finding.severity is Severity.WARNING for finding in lint(extension.manifest)
    )


def _named(subjects: list[str]) -> str:
    return ", ".join(subjects[:_MOST_NAMED]) + (
        f" and {len(subjects) - _MOST_NAMED} more" if subjects[_MOST_NAMED:] else ""
    )
