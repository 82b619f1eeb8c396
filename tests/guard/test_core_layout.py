"""The six folders of the C core: one header each, and no circle between them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "src/democrai_sandbox/guard/_core"
FOLDERS = {
    "rules": (),
    "core": ("rules",),
    "network": ("rules", "core"),
    "io": ("rules", "core", "network"),
    "interpreter": ("rules", "core", "io"),
    "edge": ("rules", "core", "network", "io", "interpreter"),
}
"""The folders in their order, and the folders whose header each may include."""
SOURCES = sorted(CORE.rglob("*.c"))
DEFINED = re.compile(r"^(?!static|typedef)\w[\w ]*[ *](\w+)\([^;{}]*\)\n\{", re.MULTILINE)


def plain(path):
    """Return the text of a file without comments and string literals."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
    return re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)


def declared(folder):
    """Return the names of functions and variables that the header of a folder declares."""
    types = r"^(?:typedef|enum)[^\n]*;|^(?:typedef|struct|enum)\b[^;{]*\{.*?^\}[^;]*;|^static inline.*?^\}"
    text = re.sub(types, "", re.sub(r"^#.*$", "", header(folder), flags=re.MULTILINE), flags=re.DOTALL | re.MULTILINE)
    found = set()
    for line in re.findall(r"^\w[^;{]*;", text, re.MULTILINE):
        if line.startswith("extern") and "(" not in line:
            found.update(re.findall(r"(\w+)(?:\[\])?(?=[,;])", line))
        else:
            found.add(re.search(r"(?:\(\*)?(\w+)\)?\(", line)[1])
    return found


def header(folder):
    """Return the header of a folder without comments."""
    return plain(CORE / folder / f"{folder}.h")


def included(path):
    """Return the headers of the core that a file includes."""
    return re.findall(r'^#include "(.*)"$', path.read_text(), re.MULTILINE)


def test_every_file_is_in_one_of_the_folders():
    """A folder has C sources and one header, which has its name."""
    found = {path.relative_to(CORE) for path in CORE.rglob("*.[ch]")}
    assert {path.parent.as_posix() for path in found} == set(FOLDERS)
    assert {path.as_posix() for path in found if path.suffix == ".h"} == {f"{name}/{name}.h" for name in FOLDERS}


def test_the_folders_form_no_circle():
    """Each folder includes earlier ones only."""
    order = list(FOLDERS)
    assert [name for name in order if not set(FOLDERS[name]) <= set(order[: order.index(name)])] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_header_includes_what_its_folder_may_use(folder):
    """The header lists all folders that the sources may use, and no others."""
    assert included(CORE / folder / f"{folder}.h") == [f"{name}/{name}.h" for name in FOLDERS[folder]]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_source_includes_the_header_of_its_folder(source):
    """And no other header of the core."""
    assert included(source) == [f"{source.parent.name}/{source.parent.name}.h"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_uses_names_of_the_folders_that_it_includes(folder):
    """A header that comes with another one gives no right to use its functions."""
    foreign = {name: other for other in FOLDERS if other not in (folder, *FOLDERS[folder]) for name in declared(other)}
    used = {
        f"{source.name}: {name} of {foreign[name]}"
        for source in (CORE / folder).glob("*.c")
        for name in set(re.findall(r"(?<![\w.>])\w+(?=\()", plain(source))) & set(foreign)
    }
    assert used == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_prototypes_are_in_the_header_of_the_folder_that_defines_the_function(folder):
    """So that a function is found by its header, and cannot be used around it."""
    sources = {source.name: plain(source) for source in (CORE / folder).glob("*.c")}
    defined = {name for text in sources.values() for name in DEFINED.findall(text)} - {"PyInit__core"}
    prototypes = {name for name in declared(folder) if re.search(rf"[ *]{name}\(", header(folder))}
    assert prototypes - defined == set()
    assert {name for name in defined if name not in declared(folder)} == set()
    assert [name for name, text in sources.items() if re.search(r"^extern (?!char \*\*environ)", text, re.M)] == []


def test_no_name_is_declared_twice():
    """One header declares it, so one folder defines it."""
    names = [name for folder in FOLDERS for name in sorted(declared(folder))]
    assert len(names) > 400
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_the_map_lists_every_file():
    """The page has one line for each source, by folder, and names the folders that each folder uses."""
    page = (ROOT / "docs/guard-core.md").read_text()
    listed = re.findall(r"^\| `(\w+/\w+\.c)` \| \S", page, re.MULTILINE)
    assert sorted(listed) == [source.relative_to(CORE).as_posix() for source in SOURCES]
    table = {
        name: tuple(re.findall(r"`(\w+)`", uses))
        for name, uses in re.findall(r"^\| `(\w+)` \| .* \|(.*)\|$", page, re.MULTILINE)
    }
    assert table | {"edge": FOLDERS["edge"]} == FOLDERS
