"""Lint: entries that grant more than is probably needed."""

from __future__ import annotations

import json
import os

from democrai_sandbox.guard.configuration import SENSITIVE_ROOTS
from democrai_sandbox.manifests import (
    FindingCode,
    ModuleManifest,
    Severity,
    lint,
    load_manifest,
    make_manifest,
    parse_manifest,
)
from democrai_sandbox.manifests.lint import SENSITIVE_IMPORTS
from democrai_sandbox.policy import parse_access
from tests.manifests.corpus import FILES, MCP, NETWORK
from tests.manifests.growth import is_linear
from tests.services.golden import sentence
from tests.services.rows import rows


def module(*access, imports=(), **options):
    return make_manifest({"name": "demo", "access": access, "allowed_imports": imports}, "module", **options)


def codes(manifest, **options):
    return [(str(finding.code), finding.pointer) for finding in lint(manifest, **options)]


def network(target, operation="receive"):
    return {"resource_type": "network", "operation": operation, "target": target}


def file(target, operation="read"):
    return {"resource_type": "filesystem", "operation": operation, "target": target}


def test_a_narrow_manifest_gives_no_findings(tmp_path):
    """Exact entries have no findings: URLs, ports, separate folders, loopback."""
    manifest = module(
        network("https://api.example.com/v1"),
        network("https://files.example.com"),
        network("db.example.com:5432", ["connect"]),
        network("http://localhost:8080/x"),
        network("http://127.0.0.2/x"),
        network("unix:/run/app.sock", "connect"),
        file("data", ["read", "create"]),
        file("/srv/democrai/reports"),
        file(str(tmp_path)),
        folder="/opt/ext/demo",
    )
    assert lint(manifest) == ()


@rows("target", ["/", "/home", "/home/alice", "/root", "/etc", "/srv/..", "/usr", "/tmp"])
def test_broad_roots_are_found(target):
    """The whole disk, a top-level folder and a home folder are more than an extension needs."""
    (finding,) = lint(module(file(target, ["read", "create"])))
    assert (finding.code, finding.severity) == (FindingCode.BROAD_ROOT, Severity.WARNING)
    assert finding.pointer == "/access/0"
    assert finding.advice


def test_a_link_to_a_broad_root_is_found(tmp_path):
    """The resolved root counts."""
    (tmp_path / "link").symlink_to("/home")
    assert codes(module(file(str(tmp_path / "link")))) == [("broad_root", "/access/0")]


def test_checkouts_are_found(tmp_path):
    """A root at or below a folder with .git is found, unless it is in the manifest's folder."""
    (tmp_path / "code" / ".git").mkdir(parents=True)
    (tmp_path / "code" / "src" / "demo" / "data").mkdir(parents=True)
    for target in ("code", "code/src", "code/not/yet/there"):
        assert codes(module(file(f"{tmp_path}/{target}"))) == [("checkout_root", "/access/0")], target
    assert codes(module(file(str(tmp_path)))) == []
    own = module(file("data"), file("..", "create"), folder=f"{tmp_path}/code/src/demo")
    assert codes(own) == [("checkout_root", "/access/1")]


@rows(
    ("target", "code"),
    [
        ("api.example.com", "bare_host"),
        ("203.0.113.7", "bare_host"),
        ("*.example.com", "wildcard_host"),
        ("*.example.com:443", "wildcard_host"),
        ("10.0.0.0/8", "address_range"),
        ("http://api.example.com/v1", "plain_http"),
        ("ws://api.example.com/v1", "plain_http"),
    ],
)
def test_wide_and_plain_targets_are_found(target, code):
    """Hosts without a port, wildcards, ranges and unencrypted URLs are found, once per entry."""
    assert codes(module(network(target, ["receive", "send"]))) == [(code, "/access/0")]


def test_entries_that_another_covers_are_found():
    """Whole entries are found once; of an entry with several operations, the covered ones."""
    manifest = module(
        file("/srv/a/b"),
        file("/srv/a", ["read", "create"]),
        file("/srv/a/c", ["delete", "create"]),
        network("https://api.example.com/v1/x"),
        network("https://API.example.com/v1"),
        network("https://api.example.com/v1", ["receive", "send"]),
        file("/srv/a/", "read"),
    )
    assert codes(manifest) == [
        ("covered_entry", "/access/0"),
        ("covered_entry", "/access/2/operation/1"),
        ("covered_entry", "/access/3"),
        ("covered_entry", "/access/5/operation/0"),
        ("covered_entry", "/access/6"),
    ]
    finding = lint(manifest)[0]
    assert finding.severity is Severity.NOTICE
    assert "/access/1 (/srv/a)" in finding.message


def test_phases_do_not_cover_one_another():
    """The same entry is needed in both phases of an engine; findings point into their phase."""
    sections = {"runtime": {"access": [NETWORK]}, "install": {"access": [NETWORK, NETWORK], "allowed_imports": ["os"]}}
    manifest = make_manifest({"name": "whisper", **sections}, "engine")
    assert codes(manifest) == [
        ("covered_entry", "/install/access/1"),
        ("needless_import", "/install/allowed_imports/0"),
    ]


def test_imports_without_need_are_found(tmp_path):
    """A root that is not sensitive, or that no file mentions, is needless; others are reported."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "module.py").write_text("import json, _ctypes\n")
    (tmp_path / "sub" / "native.py").write_text("importlib.import_module('cffi')\n")
    imports = ["numpy", "ctypes", "cffi", "_ctypes"]
    manifest = module(imports=imports, folder=tmp_path)
    assert codes(manifest) == [
        ("needless_import", "/allowed_imports/0"),
        ("unused_import", "/allowed_imports/1"),
        ("sensitive_import", "/allowed_imports/2"),
        ("sensitive_import", "/allowed_imports/3"),
    ]
    more = codes(manifest, sensitive_imports={*SENSITIVE_IMPORTS, "numpy"})
    assert more[0] == ("unused_import", "/allowed_imports/0")


def test_an_import_is_called_unused_only_when_that_is_known(tmp_path):
    """Without sources, or with unreadable ones, it is unknown; a pipe does not block."""
    (tmp_path / "empty").mkdir()
    for folder in (None, tmp_path / "none", tmp_path / "empty"):
        assert codes(module(imports=["ctypes"], folder=folder)) == [("sensitive_import", "/allowed_imports/0")]
    (tmp_path / "large.py").write_bytes(b"#" * 1_100_000)
    assert codes(module(imports=["ctypes"], folder=tmp_path)) == [("sensitive_import", "/allowed_imports/0")]
    (tmp_path / "large.py").unlink()
    os.mkfifo(tmp_path / "pipe.py")
    assert codes(module(imports=["ctypes"], folder=tmp_path)) == [("unused_import", "/allowed_imports/0")]
    (tmp_path / "gone.py").symlink_to("nowhere")
    assert codes(module(imports=["ctypes"], folder=tmp_path)) == [("sensitive_import", "/allowed_imports/0")]


def test_the_sensitive_roots_are_those_of_the_guard():
    """Lint and the guard use the same roots."""
    assert SENSITIVE_IMPORTS == SENSITIVE_ROOTS


def test_an_mcp_endpoint_in_the_clear_is_found():
    """The registry entry of a server is checked too; a disabled one grants nothing."""
    plain = {**MCP, "endpoint_url": "http://mcp.example.com/mcp"}
    assert codes(make_manifest(plain, "mcp")) == [("plain_http", "/endpoint_url")]
    assert codes(make_manifest({**plain, "enabled": False}, "mcp")) == []
    assert codes(make_manifest(MCP, "mcp")) == []


def test_a_tool_that_declares_nothing_gives_no_findings():
    """A tool without declarations has no findings."""
    assert lint(make_manifest({"name": "t"}, "tool")) == ()
    assert codes(make_manifest({"name": "t", "access": [file("/")]}, "tool")) == [("broad_root", "/access/0")]


def test_findings_have_lines_and_come_in_their_order(tmp_path):
    """Findings of a file have lines."""
    path = tmp_path / "manifest.json"
    access = [network("a.example"), file("/srv/x"), file("/")]
    path.write_text(json.dumps({"allowed_imports": ["os"], "access": access, "name": "demo"}, indent=1))
    found = lint(load_manifest(path, "module"))
    assert [(str(one.code), one.line) for one in found] == [
        ("needless_import", 3),
        ("bare_host", 6),
        ("covered_entry", 11),
        ("broad_root", 16),
    ]
    assert str(found[1]).startswith("line 6: /access/0: warning: a.example ")
    sentence("findings", "\n".join(map(str, found)))


def test_a_model_made_by_hand_is_looked_at_too():
    """Without a text, pointers refer to the text that would be written."""
    rules = parse_access([FILES, network("*.example.com")], base="/srv/x")
    assert codes(ModuleManifest(name="demo", access=rules)) == [("wildcard_host", "/access/2")]


def test_the_cost_grows_with_the_number_of_entries():
    """Many entries are checked without comparing each pair."""

    def manifest(count):
        entries = [network(f"https://a.example/{number}") for number in range(count)]
        return parse_manifest(json.dumps({"name": "demo", "access": entries}), "module")

    def look(found):
        assert lint(found) == ()

    assert is_linear(look, manifest)


def test_restrictions_that_the_machine_does_not_enforce_are_notices():
    """Each is one notice about the manifest; they are no reason for a warning, and none without such a machine."""
    found = lint(module(), unenforced=("files: no Landlock", "system calls: no seccomp"))
    assert [(one.code, one.severity, one.pointer) for one in found] == [
        (FindingCode.UNENFORCED, Severity.NOTICE, "/name")
    ] * 2
    assert "no Landlock" in found[0].message
    assert lint(module()) == ()
