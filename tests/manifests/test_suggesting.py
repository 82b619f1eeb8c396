"""Suggested manifest: everything except the declarations stays unchanged."""

from __future__ import annotations

import json

from democrai_sandbox.manifests import ManifestKind, make_manifest, parse_manifest
from democrai_sandbox.manifests.proposal import ObservedUse, section_of, suggest

READ = ObservedUse("filesystem", "read", "/srv/a")


def entry(operation, target):
    kind = "network" if operation in {"connect", "receive", "send"} else "filesystem"
    return {"resource_type": kind, "operation": operation, "target": target}


def test_only_the_declarations_change():
    """Name, version, limits and their order stay; the text parses to the suggested manifest."""
    written = {
        "name": "demo",
        "access": [entry("read", "/srv")],
        "version": "3",
        "limits": {"open_files": 100},
    }
    manifest = parse_manifest(json.dumps(written), ManifestKind.MODULE)
    found = suggest(manifest, [READ], ["ctypes"])
    review = list(found.proposal.review)
    changed = {"access": [entry("read", "/srv/a")], "allowed_imports": ["ctypes"], "review": review}
    assert found.value == {**written, **changed}
    assert list(found.value)[:4] == list(written)
    assert parse_manifest(found.text, ManifestKind.MODULE) == found.manifest
    assert manifest.source.value == written


def test_each_phase_has_a_section_of_its_own():
    """The other section stays unchanged; a missing one is added only if it is needed."""
    manifest = make_manifest({"name": "e", "install": {"requirements": ["x"]}}, ManifestKind.ENGINE)
    assert suggest(manifest, [], pointer="/runtime").value == {"name": "e", "install": {"requirements": ["x"]}}
    found = suggest(manifest, [READ], pointer="/runtime")
    assert found.value["runtime"] == {"access": [entry("read", "/srv/a")], "review": list(found.proposal.review)}
    assert found.value["install"] == {"requirements": ["x"]}
    assert section_of(found.manifest, "/runtime").access == found.proposal.rules


def test_what_is_declared_and_what_was_not_used():
    """A broad entry is used by everything it covers; an unused one is reported."""
    written = {"name": "demo", "access": [entry("read", "/srv"), entry("receive", "https://a.example.com")]}
    found = suggest(make_manifest(written, ManifestKind.MODULE), [READ])
    assert found.is_declared(READ)
    assert not found.is_declared(ObservedUse("filesystem", "modify", "/srv/a"))
    assert [rule.normalized_target for rule in found.unused] == ["https://a.example.com"]
    assert suggest(make_manifest({"name": "demo", "access": written["access"]}, "module"), []).value["access"] == []


def test_paths_below_the_manifest_are_relative_to_it():
    """The folder can then be moved."""
    manifest = make_manifest({"name": "demo"}, ManifestKind.MODULE, folder="/opt/demo")
    seen = [ObservedUse("filesystem", "modify", path) for path in ("/opt/demo/state/x", "/opt/demolition")]
    targets = {item["target"] for item in suggest(manifest, seen).value["access"]}
    assert targets == {"state/x", "/opt/demolition"}
    assert [
        item["target"] for item in suggest(manifest, [ObservedUse("filesystem", "read", "/opt/demo")]).value["access"]
    ] == ["."]


def test_it_is_linted():
    """Findings are about the proposal, with its lines."""
    found = suggest(make_manifest({"name": "demo"}, ManifestKind.MODULE), [ObservedUse("filesystem", "read", "/etc")])
    assert [(finding.code, finding.line) for finding in found.findings] == [("broad_root", 4)]
