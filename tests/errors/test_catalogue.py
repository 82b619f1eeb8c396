"""Catalogue of error codes: complete, consistent with the code, and the source of the pages."""

from __future__ import annotations

import ast
import pickle
import re
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from democrai_sandbox import errors
from democrai_sandbox.console import application, problems
from democrai_sandbox.errors import denials
from democrai_sandbox.errors.__main__ import main
from democrai_sandbox.errors.catalogue import ENTRIES, FAMILIES
from democrai_sandbox.errors.catalogue.pages import pages, plain
from democrai_sandbox.errors.kernel import HELPER_REASONS
from democrai_sandbox.kernel.helper.protocol import Reason
from democrai_sandbox.policy import DecisionCode
from tests.docs.pages import anchors

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src" / "democrai_sandbox"
DOCS = REPOSITORY / "docs"
WORDS = {"unknown_tool", "invalid_arguments", "invalid_result", "tool_failed", "tool_timeout", "skipped"}
"""Codes in answers, without an exception."""
FRAMEWORK = {"bad_request", "request_timeout", "not_found", "method_not_allowed", "service_unavailable"}
EMPTY_PHRASES = re.compile(r"as the (text|cause) says|see the ones|see above|as above|as for `|^none\b", re.IGNORECASE)
SHORTEST = {"title": 2, "meaning": 4, "cause": 5, "fix": 3, "example": 4}
"""The least number of words in each part of an entry."""


@cache
def class_bodies():
    """Name and assigned names of every class that sets a code, by code."""
    # Parsed instead of imported: other tests decide which modules this process has imported.
    found: dict[str, list[tuple[str, set[str]]]] = {}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if not re.search(r"^ +code(?: =|:)", text, re.MULTILINE):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ClassDef):
                continue
            names = {ast.unparse(item).partition(" ")[0].rstrip(":") for item in node.body}
            for item in node.body:
                value = getattr(item, "value", None)
                if isinstance(value, ast.Constant) and ast.unparse(item).startswith(("code =", "code:")):
                    found.setdefault(value.value, []).append((node.name, names))
    return found


def middleware_codes():
    """Codes of refusals before an HTTP request reaches the application."""
    return set(re.findall(r'\d{3}, "(\w+)"', Path(application.__file__).read_text())) | set(
        re.findall(r'INTERNAL_SERVER_ERROR, "(\w+)"', Path(problems.__file__).read_text())
    )


def test_every_code_has_an_entry_and_every_entry_a_code():
    """The codes of the sources and the codes of the catalogue are the same."""
    symptoms = {code for code, entry in ENTRIES.items() if not entry.is_ours}
    known = {*class_bodies(), *middleware_codes(), *DecisionCode, *WORDS, *FRAMEWORK, *symptoms}
    assert set(ENTRIES) == known
    assert sum(len(family.entries) for family in FAMILIES) == len(ENTRIES)


def test_a_class_with_a_code_has_guidance():
    """A class that sets a code also sets its help, and one class owns each code."""
    for code, bodies in class_bodies().items():
        assert [name for name, names in bodies if "guidance" not in names] == [], code
        assert len(bodies) == 1, code


def test_entries_name_the_classes_with_their_code():
    """The entry names the class that sets the code; each named class has that code."""
    for code, bodies in class_bodies().items():
        assert {name for name, _ in bodies} <= set(ENTRIES[code].classes), code
    for entry in ENTRIES.values():
        for name in entry.classes:
            if hasattr(errors, name):
                assert getattr(errors, name).code == entry.code


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.code)
def test_an_entry_has_meaning_cause_fix_and_example(entry):
    """Each part is a different text of full sentences, and the named pages exist."""
    parts = {name: getattr(entry, name) for name in SHORTEST}
    assert {name for name, text in parts.items() if len(text.split()) < SHORTEST[name]} == set()
    assert {name for name, text in parts.items() if EMPTY_PHRASES.search(text)} == set()
    assert len(set(parts.values())) == len(parts)
    for text in (entry.meaning, entry.cause, entry.fix):
        assert (text[0].isupper() or text[0] == "`" or text.startswith("pip")) and text.endswith((".", '".')), text
    for place in entry.see:
        page, _, anchor = place.partition("#")
        assert not anchor or anchor in anchors(DOCS / page), place
        assert (DOCS / page).is_file(), place


def test_every_reason_of_the_helper_is_explained():
    """Each reason that the helper can give is in the table."""
    assert set(get_args(Reason)) <= {one.word for one in HELPER_REASONS}


def test_the_pages_are_current(tmp_path):
    """docs/errors has the generated pages only; the generator removes other pages."""
    made = {f"{name}.md": text for name, text in pages().items()}
    assert {file.name: file.read_text() for file in (DOCS / "errors").iterdir()} == made, "run `make golden`"
    (tmp_path / "gone.md").write_text("x")
    main(str(tmp_path))
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == made


def test_every_code_has_an_anchor_on_the_page_of_its_family():
    """Each code is a heading of the page to which the index links."""
    for family in FAMILIES:
        assert {entry.code for entry in family.entries} <= set(anchors(DOCS / "errors" / f"{family.name}.md"))


def test_hints_use_the_texts_of_fixes():
    """The hint of a denial is the text in ``fixes``, and the catalogue names the same call."""
    denial = errors.SubprocessDenied("subprocess.Popen")
    assert denial.hint == denials.SDK_SUBPROCESS
    assert "sdk.tasks.run_subprocess([...])" in ENTRIES[denial.code].fix
    engine = errors.FilesystemDenied(
        "/x", subject="voice", subject_kind="engine", operations=("read",), installing=True
    )
    assert denials.place_of("engine", "voice", "access", installing=True) in engine.hint


@pytest.mark.parametrize("kind", ["skill", "core"])
def test_subjects_that_only_the_host_runs_are_declared_in_its_call(kind):
    """Skills and the core have neither a manifest nor a decorator."""
    denial = errors.FilesystemDenied("/x", subject="summarise", subject_kind=kind, operations=("read",))
    assert "process_guard_context" in denial.hint
    assert "manifest.json" not in denial.hint


def test_errors_have_one_public_name_and_survive_pickling():
    """Tracebacks and pickles name democrai_sandbox.errors, in whichever module a class is defined."""
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert kind.__module__ in {"democrai_sandbox.errors", "democrai_sandbox.policy.problems"}, name
    denial = errors.FilesystemDenied(
        "/x", subject="a", subject_kind="module", chain=("module:a",), operations=("read",)
    )
    again = pickle.loads(pickle.dumps(denial))
    assert (type(again), str(again), again.hint) == (type(denial), str(denial), denial.hint)


def test_plain_removes_markdown_only():
    """Paths, names with underscores, and asterisks in code remain."""
    assert plain("**not** `a_b` in `*.example.com` and a *file*") == "not a_b in *.example.com and a file"
