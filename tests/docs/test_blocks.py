"""Every block of code in the documents is tried: here, or by the test that is named here for its page."""

from __future__ import annotations

import json
import re
from collections import Counter

import yaml

from democrai_sandbox.host.config import load
from democrai_sandbox.manifests import ManifestKind, make_manifest
from democrai_sandbox.policy import parse_access
from tests.docs.pages import REPOSITORY, blocks, every_block, name_of, pages
from tests.services.rows import rows

RUN_BY = {
    ("README.md", "console"): "tests/docs/test_quickstart.py",
    ("README.md", "python"): "tests/docs/test_quickstart.py",
    ("docs/access-service.md", "python"): "tests/docs/test_examples.py",
    ("docs/ai.md", "python"): "tests/runtime/ai/test_document.py",
    ("docs/api.md", "sh"): "tests/console/api/test_docs.py",
    ("docs/approvals.md", "python"): "tests/docs/test_examples.py",
    ("docs/concepts.md", "python"): "tests/docs/test_examples.py",
    ("docs/configuration.md", "console"): "tests/host/config/test_docs.py",
    ("docs/deployment.md", "sh"): "tests/cluster/page.py",
    ("docs/embedding.md", "python"): "tests/console/browser/test_embedded.py",
    ("docs/engines.md", "python"): "tests/runtime/engines/test_page.py",
    ("docs/extensions.md", "python"): "tests/runtime/test_pages.py",
    ("docs/extractors.md", "python"): "tests/runtime/test_pages.py",
    ("docs/manifests.md", "python"): "tests/manifests/test_docs.py",
    ("docs/mcp.md", "python"): "tests/runtime/mcp/test_page.py",
    ("docs/media.md", "python"): "tests/runtime/media/test_page.py",
    ("docs/modules.md", "python"): "tests/runtime/test_pages.py",
    ("docs/network.md", "python"): "tests/docs/test_examples.py",
    ("docs/cli.md", "console"): "tests/docs/test_quickstart.py",
    ("docs/os-enforcement.md", "js"): "tests/docs/test_examples.py",
    ("docs/os-enforcement.md", "python"): "tests/kernel/test_page.py",
    ("docs/quickstart.md", "console"): "tests/docs/test_quickstart.py",
    ("docs/quickstart.md", "python"): "tests/docs/test_quickstart.py",
    ("docs/sdk.md", "python"): "tests/runtime/test_pages.py",
    ("docs/tasks.md", "python"): "tests/runtime/tasks/test_docs.py",
    ("docs/troubleshooting.md", "console"): "tests/docs/test_quickstart.py",
    ("docs/testing.md", "python"): "tests/runtime/test_pages.py",
}
"""Which test runs the blocks of a page; it names the page."""

CHECKED_HERE = {"json", "yaml", "text"}
OTHER_YAML = {"scrape_configs", "groups"}
"""The first keys of YAML that is not ours."""


def test_every_block_says_what_it_is():
    """A block without a language would be run by nobody."""
    assert [f"{block.page}:{block.line}" for block in every_block("")] == []


def test_every_block_is_run_or_says_why_not():
    """Each page with programs has its test, and each block that cannot be run has a reason beside it."""
    for page in pages():
        for block in blocks(page):
            if block.language in CHECKED_HERE or block.reason:
                continue
            where = RUN_BY.get((block.page, block.language))
            assert where, f"{block.page}:{block.line}: nothing runs this block of {block.language}"


@rows(("page", "where"), [(page, where) for (page, _), where in RUN_BY.items()])
def test_the_tests_that_run_them_are_there(page, where):
    """The table above is true: the page has such blocks, and the test speaks of the page."""
    languages = {language for other, language in RUN_BY if other == page}
    assert languages <= {block.language for block in blocks(REPOSITORY / page)}
    assert re.search(rf"{re.escape(page.removeprefix('docs/').removesuffix('.md'))}", (REPOSITORY / where).read_text())


def test_few_blocks_are_not_run():
    """What cannot be run is counted, so that it does not become a habit."""
    left = Counter(block.page for page in pages() for block in blocks(page) if block.reason)
    assert sum(left.values()) <= 8, left


def kind_of(data):
    """What a manifest is one of, by the keys that only one kind has."""
    if "transport" in data:
        return ManifestKind.MCP
    if "allowed_config_urls" in data.get("runtime", {}):
        return ManifestKind.ENGINE
    return ManifestKind.EXTRACTOR if {"runtime", "install"} & set(data) else ManifestKind.MODULE


@rows("block", every_block("json"), ids=lambda block: f"{block.page}:{block.line}")
def test_json_is_what_it_looks_like(block):
    """It can be read; manifests are valid manifests, entries are valid entries."""
    for text in [block.text] if block.text.lstrip().startswith("{\n") else block.text.splitlines():
        data = json.loads(text)
        if "resource_type" in data and "operation" in data and len(data) == len(("type", "operation", "target")):
            assert parse_access([data], base="/srv/democrai")
        elif {"access", "runtime", "install", "transport", "limits"} & set(data) or set(data) == {"name"}:
            if "name" not in data:
                data = {"name": "example", **data}
            assert make_manifest(data, kind_of(data), folder="/srv/democrai/extension")


@rows("block", every_block("yaml"), ids=lambda block: f"{block.page}:{block.line}")
def test_yaml_is_a_configuration_that_loads(block, tmp_path_factory):
    """A configuration is accepted as it stands, with its folders there; YAML of other programs can be read."""
    data = yaml.safe_load(block.text)
    if next(iter(data)) in OTHER_YAML:
        return
    folder = tmp_path_factory.mktemp("yaml")
    text = re.sub(r"(?<=[\s\[\"'])/(?:srv|opt|var|etc|run)(?=/)", lambda root: f"{folder}{root.group()}", block.text)
    for key in ("modules_path", "engines_path", "extractors_path"):
        for place in re.findall(rf"^{key}: (\S+)$", text, re.MULTILINE):
            (folder / place).mkdir(parents=True, exist_ok=True)
    file = folder / "config.yaml"
    file.write_text(text)
    file.chmod(0o600)
    load(file, environ={"HOME": str(folder)})


def test_the_pages_are_in_the_order_of_the_site():
    """Each page has its place; the index of error codes leads to the pages of their families."""
    (nav,) = re.findall(r"^nav:\n(.*)", (REPOSITORY / "mkdocs.yml").read_text(), re.DOTALL | re.MULTILINE)
    placed = re.findall(r"- (\S+\.md)$", nav, re.MULTILINE)
    assert len(placed) == len(set(placed))
    errors = {name_of(page) for page in (REPOSITORY / "docs" / "errors").glob("*.md")} - {"docs/errors/index.md"}
    assert set(placed) == {name_of(page) for page in pages()} - errors
