"""Status: the measured state of every layer, with fixes."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from democrai_sandbox.console.auth import sandbox_of
from democrai_sandbox.console.render import redirect, render
from democrai_sandbox.host.status import report
from democrai_sandbox.host.status_report import ReportArea
from democrai_sandbox.kernel.status import plain

from .parameters import Administrator

if TYPE_CHECKING:
    from democrai_sandbox.host.status_report import ReportLine

router = APIRouter()

_AREAS = (
    (ReportArea.GUARD, "Guard", "Restricts extensions in this interpreter to their declared access."),
    (ReportArea.DECISIONS, "Decisions", "Stores approvals and denials, and sends changes to all nodes."),
    (
        ReportArea.KERNEL,
        "Kernel layer",
        "Restricts this process and its children in the kernel, if the machine supports it.",
    ),
    (ReportArea.RUNTIME, "Runtime", "Loaded extensions and running work."),
)


_ELSEWHERE = MappingProxyType({"extensions": "extensions", "tasks": "tasks"})
"""Pages with more about a line."""


@router.get("/status")
def show(request: Request, visitor: Administrator) -> HTMLResponse:
    """Show the current state."""
    found = report(sandbox_of(request))
    areas = [(title, words, found.of(area)) for area, title, words in _AREAS]
    troubled = [line for line in found.lines if not line.is_well]
    return render(
        request,
        "status/show.html",
        visitor=visitor,
        report=found,
        areas=areas,
        troubled=troubled,
        details_of=details_of,
        elsewhere=_ELSEWHERE,
        holds={"self_test_done": True},
    )


@router.post("/status/self-test")
def test_again(request: Request, visitor: Administrator) -> RedirectResponse:
    """Run the self-test again."""
    del visitor
    sandbox_of(request).kernel.selftest()
    return redirect(request, "/status", done="self_test_done")


def details_of(line: ReportLine) -> list[tuple[str, str]]:
    """Return the non-empty facts of a line, flattened and in words."""
    found: list[tuple[str, str]] = []
    for name, value in plain(line.details).items():
        found += _flat(name.replace("_", " "), value)
    return found


def _flat(name: str, value: object) -> list[tuple[str, str]]:
    if value is None or value in ("", [], {}):
        return []
    if isinstance(value, bool):
        return [(name, "yes" if value else "no")]
    if isinstance(value, dict):
        return [pair for inner, held in value.items() for pair in _flat(f"{name}: {inner}", held)]
    if isinstance(value, list):
        return [(name, "\n".join(map(_in_words, value)))]
    return [(name, str(value))]


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {held}" for name, held in value.items() if held not in (None, ""))
    return str(value)
