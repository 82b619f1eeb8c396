"""Source files that the documents name exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, name_of, pages

NAMED = re.compile(r"(?<![\w./-])((?:[\w.-]+/)*\w+\.(?:py|c|h))(?![\w/-])")
INLINE = re.compile(r"`([^`\n]+)`")
OF_READERS = {
    "README.md": {"modules/hello/module.py"},
    "docs/access-service.md": {"try.py"},
    "docs/approvals.md": {"try.py"},
    "docs/extractors.md": {"extractors/lines/extractor.py", "tests/test_lines.py"},
    "docs/modules.md": {"modules/fragile/module.py", "modules/notes/module.py", "modules/notes/texts.py"},
    "docs/network.md": {"try.py"},
    "docs/quickstart.md": {"modules/hello/module.py"},
    "docs/testing.md": {
        *("engines/stems/engine.py", "modules/roster/module.py", "tests/test_roster.py", "tests/test_stems.py"),
    },
    "docs/working-on-the-guard.md": {"src/democrai_sandbox/guard/clients/NAME.py"},
    "docs/working-on-the-product.md": {
        *("cli/uptime.py", "runtime/converters.py", "src/democrai_sandbox/console/pages/uptime.py"),
        *("tests/cli/test_uptime.py", "tests/console/pages/test_uptime.py"),
    },
}
"""Files that a page has its reader write."""


@pytest.fixture(scope="module")
def files():
    """The paths of all files of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return {Path(file) for file in listed if (REPOSITORY / file).exists()}


def ends(files):
    """Return the ends of the paths of files, each from a folder on."""
    return {"/".join(file.parts[start:]) for file in files for start in range(len(file.parts))}


def named_files(page):
    """Return the source files that a page names between backquotes."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"))
    return {name for code in INLINE.findall(text) for name in NAMED.findall(code)}


def test_each_named_source_file_exists(files):
    """A path is one from the repository, the package or any folder in it; a renamed file is noticed."""
    known = ends(files)
    missing = {page: named_files(page) - known - OF_READERS.get(name_of(page), set()) for page in pages()}
    assert {name_of(page): sorted(names) for page, names in missing.items() if names} == {}


def test_source_files_are_found():
    """The pattern finds what it looks for."""
    assert sum(len(named_files(page)) for page in pages()) > 100
