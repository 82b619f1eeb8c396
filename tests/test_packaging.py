"""The distribution: its metadata, what it ships, and what no file in the repository may say."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest

import democrai_sandbox

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src" / "democrai_sandbox"
REQUIREMENTS = sorted((REPOSITORY / "requirements").glob("*.txt"))
PACKAGES = [
    "democrai_sandbox",
    *(found.name for found in pkgutil.iter_modules(democrai_sandbox.__path__, "democrai_sandbox.")),
]


def repository_texts() -> dict[str, str]:
    """Every text file that git would commit, by its path."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    texts = {}
    for name in listed:
        path = REPOSITORY / name
        if path.is_file():
            texts[name] = path.read_text(encoding="utf-8", errors="replace")
    return texts


def test_metadata_states_name_version_and_interpreters():
    """The installed metadata names the distribution, its licence and exactly the supported interpreters."""
    about = metadata.metadata("democrai-sandbox")
    assert about["Name"] == "democrai-sandbox"
    assert about["License-Expression"] == "Apache-2.0"
    assert set(about["Requires-Python"].split(",")) == {">=3.11", "<3.14"}


def test_dependencies_are_few_and_servers_are_extras():
    """Installing the package brings in what the embedded service needs; drivers for servers are asked for."""
    required = metadata.requires("democrai-sandbox")
    always = [re.match(r"[\w-]+", line).group() for line in required if "extra ==" not in line]
    extras = {re.match(r"[\w-]+", line).group() for line in required if "extra ==" in line}
    assert sorted(always) == ["alembic", "cryptography", "idna", "pyyaml", "sqlalchemy"]
    assert extras == {"mcp", "psycopg", "redis", *CONSOLE}


CONSOLE = {"fastapi", "jinja2", "prometheus-client", "python-multipart", "uvicorn"}
FOREIGN = {
    "access": {"alembic", "cryptography", "psycopg", "redis", "sqlalchemy"},
    "console": {"anyio", "fastapi", "jinja2", "markupsafe", "prometheus_client", "pydantic", "starlette", "uvicorn"},
    "host/accounts": {"cryptography", "sqlalchemy"},
    "host/config": {"yaml"},
    "runtime/installs": {"pip"},
    "runtime/mcp": {"anyio", "httpx2", "mcp", "mcp_types", "pydantic"},
    "runtime/store": {"sqlalchemy"},
}
"""What each package may import of others; the guard and what it stands on need nothing but idna."""


def test_source_imports_no_more_than_its_package_may():
    """A third-party package comes in with the part of the product that needs it, nowhere else."""
    foreign = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            else:
                continue
            place = path.relative_to(SOURCE)
            allowed = [names for part, names in FOREIGN.items() if place.is_relative_to(part)]
            known = {"democrai_sandbox", "idna"}.union(*allowed) | sys.stdlib_module_names
            foreign |= {(path.name, name) for name in names if name.partition(".")[0] not in known}
    assert foreign == set()


def test_package_is_marked_as_typed():
    """Type checkers of users find the marker file."""
    assert resources.files("democrai_sandbox").joinpath("py.typed").is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_resolve(package):
    """Every name in a package's __all__ exists, once, and has a docstring if it is a class or function."""
    module = importlib.import_module(package)
    names = getattr(module, "__all__", [])
    assert len(set(names)) == len(names)
    for name in names:
        value = getattr(module, name)
        assert not callable(value) or value.__doc__, f"{package}.{name} has no docstring"


def test_top_package_states_its_public_names():
    """The top-level package declares what it offers."""
    assert "process_guard_context" in democrai_sandbox.__all__


def test_compiled_core_is_an_extension_module():
    """The folder of C sources next to the compiled module is not taken for a package."""
    core = importlib.import_module("democrai_sandbox.guard._core")
    assert core.__file__.endswith(".so")


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_requirements_are_pinned_by_hash_and_name_no_registry(path):
    """Each requirement has one version and at least one hash, and no line names an index or an address."""
    text = path.read_text()
    logical = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    requirements = [line for line in logical if line and not line.startswith("#")]
    assert requirements
    for line in requirements:
        assert re.match(r"[\w.-]+==[\w.]+", line), line
        assert "--hash=sha256:" in line, line
    assert not re.search(r"://|--(extra-)?index-url|--find-links", text)


def test_each_requirements_input_has_its_locked_file():
    """`make lock` was run for every input file, and every direct requirement is in the result."""
    for source in (REPOSITORY / "requirements").glob("*.in"):
        locked = {line.partition("==")[0] for line in source.with_suffix(".txt").read_text().splitlines()}
        wanted = {re.match(r"[\w-]+", line).group() for line in source.read_text().splitlines() if line[:1].isalpha()}
        assert wanted <= locked


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="an unpacked archive has no list of files")
def test_no_file_names_a_machine_or_a_registry():
    """Nothing in the repository holds a developer's own paths or the host name of a package registry."""
    # The letters in brackets keep this file from matching itself.
    forbidden = re.compile(
        r"/roo[t]/\.pyenv|/wor[k]/(main|shared)|pythonhoste[d]\.|pyp[i]\.org|de[b]\.debian\.|npmj[s]\."
    )
    found = {
        f"{name}: {hit.group()}" for name, text in repository_texts().items() for hit in [forbidden.search(text)] if hit
    }
    assert found == set()


def test_make_help_lists_every_target_of_the_documents():
    """The table of targets in CONTRIBUTING.md and the Makefile agree."""
    defined = set(re.findall(r"^([a-z]+):.*## ", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    described = set(re.findall(r"^\| `make (\w+)` \|", (REPOSITORY / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert described == defined - {"help"}
