"""Statements of the pages about behavior that readers did not expect, each tried as the page says it."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from democrai_sandbox.errors import FilesystemDenied, InvalidInputError, ResultInvalid
from democrai_sandbox.host.config import load
from democrai_sandbox.host.config.display import shown_values
from democrai_sandbox.host.config.yaml_document import read_document
from democrai_sandbox.kernel import os_settings
from democrai_sandbox.kernel.landlock.rights import HIGHEST_ABI
from democrai_sandbox.kernel.status import SPAWN_SERVER, not_wanted
from democrai_sandbox.policy import SubjectKind
from democrai_sandbox.runtime.children.service import UNCONFINED
from democrai_sandbox.sdk import testing
from tests.docs.examples import run
from tests.docs.pages import REPOSITORY, blocks, pages
from tests.services.commands import COMMAND

MODULE = """
import os

from democrai_sandbox import sdk


@sdk.action("program")
async def program(argv):
    done = await sdk.tasks.run_subprocess(argv)
    return {"text": done.text, "unenforced": list(done.unenforced)}


@sdk.action("read")
def read(path):
    with open(path, "rb") as file:
        file.read(1)


@sdk.action("exists")
def exists(path):
    return os.path.exists(path)


@sdk.action("ask")
def ask(path):
    return sdk.access.check_external_access(resource_type="filesystem", operation="read", target=path)


@sdk.action("same")
def same(value):
    return value


@sdk.action("deep")
def deep(levels):
    return [] if levels == 1 else [deep(levels - 1)]
"""
DEEPEST = 63
"""Levels of lists and dicts that pass in the host's process, in a worker, and in a test."""


@pytest.fixture
def folder(tmp_path):
    """The folder of a module that declares nothing."""
    folder = tmp_path / "modules" / "bare"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"name": "bare"}))
    (folder / "module.py").write_text(MODULE)
    return folder


@pytest.fixture
def module(folder):
    """The module, run without the kernel layer."""
    with testing.module(folder) as running:
        yield running


@pytest.fixture
def secret(outside):
    """A file that no subject may read."""
    path = outside / "secret.txt"
    path.write_text("SECRET")
    return str(path)


@pytest.fixture
def outside(request, tmp_path_factory):
    """A folder outside the temporary folder, which every subject may use."""
    folder = REPOSITORY / "build" / f"statements-{tmp_path_factory.getbasetemp().name}-{request.node.name}"
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def text_of(name):
    """Return the text of a page on one line."""
    return " ".join((REPOSITORY / name).read_text(encoding="utf-8").split())


def test_a_program_is_not_restricted_without_the_kernel_layer(folder, secret):
    """tasks.md, modules.md, troubleshooting.md: it reads what the user may read, and ``unenforced`` reports that."""
    call = ("run", "module", folder, "--no-kernel", "--action", "program", "--params")
    done = subprocess.run(
        [*COMMAND, *call, json.dumps({"argv": ["cat", secret]})], capture_output=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == {"text": "SECRET", "unenforced": list(UNCONFINED)}


def test_own_code_gets_the_denial_when_it_looks_for_a_file(module, secret):
    """glossary.md, troubleshooting.md: ``os.path.exists`` raises for an undeclared path."""
    with pytest.raises(FilesystemDenied):
        module.action("exists", path=secret)


def test_a_module_without_entries_reads_the_runtime_paths(module, secret):
    """modules.md, manifests.md: an empty list allows the files that every subject may read, and no others."""
    for path in ("/etc/hosts", "/etc/os-release", "/proc/meminfo", "/usr/bin/env", "/dev/null"):
        module.action("read", path=path)
    for path in ("/etc/passwd", secret):
        with pytest.raises(FilesystemDenied):
            module.action("read", path=path)


def test_runtime_paths_are_allowed_by_the_allowlist(module):
    """approvals.md, SECURITY.md: the answer about such a file, with the message of the table."""
    answer = module.action("ask", path="/etc/hosts")
    assert answer["code"] == "sandbox_allowlist"
    assert f"| {answer['message']} |" in text_of("docs/approvals.md")


def test_a_denial_is_short_and_its_hint_has_the_entry(module):
    """README.md, concepts.md: ``str()`` names subject and path; ``hint`` has the manifest entry."""
    with pytest.raises(FilesystemDenied) as denied:
        module.action("read", path="/etc/passwd")
    assert str(denied.value) == "sandbox_filesystem_denied:bare:/etc/passwd"
    entry = {"resource_type": "filesystem", "operation": "read", "target": "/etc/passwd"}
    assert json.dumps(entry) in denied.value.hint


def test_values_may_be_nested_as_deep_as_the_page_says(module):
    """modules.md: parameters and results up to this depth pass, deeper ones are refused."""
    assert f"nested at most {DEEPEST} deep" in text_of("docs/modules.md")
    value = []
    for _ in range(DEEPEST - 1):
        value = [value]
    assert module.action("same", value=value) == value
    assert module.action("deep", levels=DEEPEST) == value
    with pytest.raises(InvalidInputError):
        module.action("same", value=[[value]])
    with pytest.raises(ResultInvalid):
        module.action("deep", levels=DEEPEST + 2)


PENDING = """
import urllib.request
from pathlib import Path

from democrai_sandbox import configure_guard, process_guard_context
from democrai_sandbox.access import Access, AccessSettings, Caller
from democrai_sandbox.runtime.access_environment import GuardSurroundings, serving

state = Path("state").resolve()
state.mkdir()
access = Access(AccessSettings(f"sqlite:///{state}/access.db", f"{state}/keys"), GuardSurroundings())
configure_guard(decider=access.service, protected_paths=[state])
guard = process_guard_context(subject="reports", user_id="uma", session_key="monday")


def pending():
    with serving(Caller(user_id="ada", role="super")):
        return [str(request.access.target) for request in access.administration.pending_requests()]


with access:
    for act in (Path("/etc/passwd").read_text, lambda: urllib.request.urlopen("https://api.example.com/v1")):
        try:
            guard.run(act)
        except PermissionError as denial:
            print(type(denial).__name__, pending())
"""


def test_only_network_access_files_a_request_automatically(tmp_path):
    """approvals.md, embedding.md, glossary.md: a denied file operation files none."""
    printed = run(PENDING, tmp_path).splitlines()
    assert printed == ["FilesystemDenied []", "NetworkDenied ['https://api.example.com/v1']"]


def test_config_show_prints_the_defaults_of_the_page():
    """configuration.md: a default that is a value is printed; ``none`` is a dash."""
    shown = {setting.name: setting.value for setting in shown_values(load(environ={"HOME": "/home/ann"}))}
    page = (REPOSITORY / "docs/configuration.md").read_text()
    rows = re.findall(r"^\| `([a-z_.]+)` \| `[A-Z_]+` \| (`[^<$`]+`|none|\d+) \|", page, re.MULTILINE)
    assert len(rows) > 30
    for key, default in rows:
        assert shown[key] == (None if default == "none" else read_document(default.strip("`")).value), key


def test_threads_and_output_are_set_in_python_only():
    """modules.md: the configuration file has no such keys."""
    for key in ("threads_per_subject", "capture_output"):
        with pytest.raises(ValueError):
            load({"state_dir": "/srv/state", "sandbox": {key: 4}}, environ={"HOME": "/home/ann"})
        assert f"`RuntimeSettings({key}=" in text_of("docs/modules.md")


def test_every_landlock_version_has_a_row():
    """os-enforcement.md: the table ends where the programs end."""
    rows = re.findall(r"^\| (\d+) \| \d+\.\d+ \|", (REPOSITORY / "docs/os-enforcement.md").read_text(), re.MULTILINE)
    assert list(map(int, rows)) == list(range(1, HIGHEST_ABI + 1))


def test_every_kind_of_subject_is_in_the_glossary():
    """glossary.md: the row *kind* names each of them."""
    (row,) = re.findall(r"^\| \*\*kind\*\* .*$", (REPOSITORY / "docs/glossary.md").read_text(), re.MULTILINE)
    assert {f"`{kind.value}`" for kind in SubjectKind} <= set(re.findall(r"`\w+`", row))


def test_no_page_installs_a_package_that_is_not_published():
    """serving.md, deployment.md: a first installation takes the wheel of ``make build``."""
    for page in pages():
        for block in blocks(page):
            assert not re.search(r"(?m)^(\$ )?pip install [^\n]*democrai-sandbox\[", block.text), block.page


def test_commands_work_with_older_versions_of_curl():
    """quickstart.md, api.md: ``--json`` needs curl 7.82, which some supported distributions lack."""
    for page in pages():
        for block in blocks(page):
            if block.language in {"sh", "console"} and "curl" in block.text:
                assert not re.search(r"(?:curl|call) [^\n]*--json", block.text), f"{block.page}:{block.line}"


def test_each_terminal_of_the_quickstart_is_set_up():
    """quickstart.md: the second terminal gets the path of the programs and of the configuration."""
    text = (REPOSITORY / "docs/quickstart.md").read_text()
    _, _, second = text.partition("second terminal")
    assert second.count("export DEMOCRAI_CONFIG_FILE=") == 1
    assert second.count('export PATH="') == 1


def test_pages_agree_about_tools_managers_and_links():
    """A tool's own list is exact on every page; approvals.md names managers; configuration.md links embedding.md."""
    for name in ("concepts", "manifests", "ai", "approvals", "testing", "extensions", "shadow"):
        assert "exactly" in text_of(f"docs/{name}.md"), name
    assert "`sandbox.managers`" in text_of("docs/approvals.md")
    assert "[embed](embedding.md)" in text_of("docs/configuration.md")


def test_workers_are_confined_without_the_helper():
    """os-enforcement.md: the spawn server starts unless ``enabled`` is false, and the status names that setting."""
    assert os_settings({}).wants_spawn_server
    assert os_settings({"enabled": False, "seccomp": {"enabled": True}}).wants_spawn_server
    assert not os_settings({"enabled": False, "landlock": {"enabled": True}}).wants_spawn_server
    assert "sandbox.os.enabled" in not_wanted(SPAWN_SERVER).fix
