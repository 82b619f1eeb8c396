"""The catalogue of error codes: complete, in step with the code, and the source of the pages."""

from __future__ import annotations

import ast
import pickle
import re
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from democrai_sandbox import errors
from democrai_sandbox.console import problems, security
from democrai_sandbox.errors import fixes
from democrai_sandbox.errors.__main__ import main
from democrai_sandbox.errors.catalogue import ENTRIES, FAMILIES
from democrai_sandbox.errors.catalogue.pages import pages, plain
from democrai_sandbox.errors.catalogue.reasons import HELPER_REASONS
from democrai_sandbox.kernel.helper.answers import Reason
from democrai_sandbox.policy import DecisionCode

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src" / "democrai_sandbox"
DOCS = REPOSITORY / "docs"
WORDS = {"unknown_tool", "invalid_arguments", "invalid_result", "tool_failed", "tool_timeout", "skipped"}
"""Words that answers have, and no exception."""
FRAMEWORK = {"bad_request", "request_timeout", "not_found", "method_not_allowed", "service_unavailable"}


@cache
def carried():
    """Every code that a class carries, with the names of those classes."""
    # Read, not imported: which modules have been imported in this process depends on the other tests in it.
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if not re.search(r"^ +code(?: =|:)", text, re.MULTILINE):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ClassDef):
                continue
            for item in node.body:
                value = getattr(item, "value", None)
                if isinstance(value, ast.Constant) and ast.unparse(item).startswith(("code =", "code:")):
                    found.setdefault(value.value, set()).add(node.name)
    return found


def doors():
    """The codes with which requests are turned away before the application."""
    return set(re.findall(r'\d{3}, "(\w+)"', Path(security.__file__).read_text())) | set(
        re.findall(r'INTERNAL_SERVER_ERROR, "(\w+)"', Path(problems.__file__).read_text())
    )


def test_every_code_has_an_entry_and_every_entry_a_code():
    """Every code of the sources has its entry in the catalogue, and no entry is left over."""
    symptoms = {code for code, entry in ENTRIES.items() if not entry.is_ours}
    known = {*carried(), *doors(), *DecisionCode, *WORDS, *FRAMEWORK, *symptoms}
    assert set(ENTRIES) == known
    assert sum(len(family) for _, family in FAMILIES) == len(ENTRIES)


def test_entries_name_the_classes_that_carry_them():
    """A class that is named exists and has that code; the class that brings the code in is named."""
    for code, classes in carried().items():
        assert classes <= set(ENTRIES[code].classes), code
    for entry in ENTRIES.values():
        for name in entry.classes:
            if hasattr(errors, name):
                assert getattr(errors, name).code == entry.code


def test_every_entry_says_what_it_means_and_what_to_do():
    """Each part is there, as sentences, and what it points at exists."""
    for code, entry in ENTRIES.items():
        assert entry.fix, code
        for text in (entry.meaning, entry.cause, entry.fix, entry.remark):
            assert not text or (text[0].isupper() or text[0] == "`") and text.endswith((".", '".')), (code, text)
        for place in entry.see:
            assert (DOCS / place.partition("#")[0]).is_file(), (code, place)


def test_every_word_of_the_helper_is_explained():
    """Each reason that the helper can give has its line."""
    assert set(get_args(Reason)) <= {one.word for one in HELPER_REASONS}


def test_the_pages_are_current(tmp_path):
    """docs/errors is what the catalogue makes of it, and no more; the generator removes what is left over."""
    made = {f"{name}.md": text for name, text in pages().items()}
    assert {file.name: file.read_text() for file in (DOCS / "errors").iterdir()} == made, "run `make golden`"
    (tmp_path / "gone.md").write_text("x")
    main(str(tmp_path))
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == made


def test_hints_and_catalogue_have_one_wording():
    """What an exception advises is in the catalogue's words, or the other way round."""
    denial = errors.SubprocessDenied("subprocess.Popen")
    assert denial.hint == fixes.SDK_SUBPROCESS
    assert "sdk.tasks.run_subprocess([...])" in ENTRIES[denial.code].fix
    engine = errors.FilesystemDenied(
        "/x", subject="voice", subject_kind="engine", operations=("read",), installing=True
    )
    assert fixes.place_of("engine", "voice", "access", installing=True) in engine.hint


@pytest.mark.parametrize("kind", ["skill", "core"])
def test_what_only_the_host_runs_is_declared_in_its_call(kind):
    """There is no file and no decorator for it."""
    denial = errors.FilesystemDenied("/x", subject="summarise", subject_kind=kind, operations=("read",))
    assert "process_guard_context" in denial.hint
    assert "manifest.json" not in denial.hint


def test_errors_are_known_by_one_name_and_survive_pickling():
    """Wherever a class is written down, tracebacks and pickles say democrai_sandbox.errors."""
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert kind.__module__ in {"democrai_sandbox.errors", "democrai_sandbox.policy.problems"}, name
    denial = errors.FilesystemDenied(
        "/x", subject="a", subject_kind="module", chain=("module:a",), operations=("read",)
    )
    again = pickle.loads(pickle.dumps(denial))
    assert (type(again), str(again), again.hint) == (type(denial), str(denial), denial.hint)


def test_plain_takes_the_marks_away_and_leaves_the_rest():
    """Paths, names with underscores and stars inside of words stay."""
    assert plain("**not** `a_b` in `*.example.com` and a *file*") == "not a_b in *.example.com and a file"
