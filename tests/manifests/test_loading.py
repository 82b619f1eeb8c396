"""Manifests from files, texts and data: everything right, or every problem at once."""

from __future__ import annotations

import json
import os
import pickle
import time

import pytest

from democrai_sandbox.manifests import (
    AgentDeclaration,
    EngineManifest,
    ExtractorManifest,
    ManifestError,
    ManifestKind,
    McpServer,
    McpTransport,
    ModuleManifest,
    PipelineDeclaration,
    Section,
    ToolDeclaration,
    load_manifest,
    make_manifest,
    manifest_to_dict,
    parse_manifest,
)
from democrai_sandbox.policy import AccessRule, InvalidInputError, Operation, ResourceType
from tests.manifests.corpus import BEYOND_THE_SCHEMA, FILES, MCP, NETWORK, RIGHT, WRONG

MODELS = {
    "module": ModuleManifest,
    "engine": EngineManifest,
    "extractor": ExtractorManifest,
    "mcp": McpServer,
    "tool": ToolDeclaration,
    "agent": AgentDeclaration,
    "pipeline": PipelineDeclaration,
}


class Loose(AccessRule):
    """A rule that could answer as it likes."""


class Twin(str):
    """A key that is never equal to another one."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def problems_of(value, kind="module", **options):
    text = value if isinstance(value, str | bytes) else json.dumps(value)
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text, kind, **options)
    return caught.value.problems


class TestRightManifests:
    @pytest.mark.parametrize(("kind", "value"), RIGHT)
    def test_are_read_and_written_back(self, kind, value):
        """Text and data give the same model, and what is written of it is read as an equal one."""
        manifest = parse_manifest(json.dumps(value), kind, folder="/srv/ext")
        assert type(manifest) is MODELS[kind]
        assert manifest.kind == kind
        assert str(manifest.subject) == f"{kind}:{value['name']}"
        assert manifest == make_manifest(value, MODELS[kind], folder="/srv/ext")
        assert manifest == parse_manifest(json.dumps(manifest_to_dict(manifest)), ManifestKind(kind))
        assert hash(manifest) == hash(pickle.loads(pickle.dumps(manifest)))

    def test_a_module_declares_at_the_top(self):
        """Relative targets start from the folder, and a list of operations is several rules."""
        manifest = make_manifest({"name": "demo", "access": [NETWORK, FILES]}, ModuleManifest, folder="/srv/demo")
        assert manifest.access == (
            AccessRule(ResourceType.NETWORK, Operation.RECEIVE, "", "https://api.example.com/v1"),
            AccessRule(ResourceType.FILESYSTEM, Operation.READ, "", "/srv/demo/data"),
            AccessRule(ResourceType.FILESYSTEM, Operation.CREATE, "", "/srv/demo/data"),
        )
        assert manifest.entry == "module.py"
        assert manifest.sections == {"": Section(access=manifest.access)}

    def test_the_phases_of_an_engine_are_apart(self):
        """What one phase declares is not declared in the other."""
        manifest = make_manifest(
            {
                "name": "whisper",
                "runtime": {"allowed_config_urls": ["url"]},
                "install": {"access": [NETWORK], "allowed_imports": ["cffi"], "requirements": ["a", "a", "b"]},
            },
            EngineManifest,
        )
        assert manifest.runtime.access == manifest.runtime.allowed_imports == ()
        assert manifest.runtime.allowed_config_urls == ("url",)
        assert len(manifest.install.access) == 1
        assert manifest.install.requirements == ("a", "b")
        assert list(manifest.sections) == ["/runtime", "/install"]

    def test_nothing_declared_is_not_an_empty_declaration(self):
        """A tool without the key runs under what encloses it; one with an empty list may do nothing."""
        assert make_manifest({"name": "t"}, ToolDeclaration).access is None
        assert make_manifest({"name": "t"}, ToolDeclaration).sections == {"": None}
        assert make_manifest({"name": "t", "access": []}, ToolDeclaration).access == ()
        assert make_manifest({"name": "t", "access": []}, ToolDeclaration).sections == {"": Section()}

    def test_an_mcp_server_may_use_its_endpoint(self):
        """The rules are for the endpoint without its query, and there are none while it is not enabled."""
        server = make_manifest({**MCP, "endpoint_url": "https://MCP.example.com:443/mcp?key=7"}, McpServer)
        assert server.transport is McpTransport.STREAMABLE_HTTP
        assert (server.enabled, server.timeout_ms) == (True, 30_000)
        assert server.endpoint_url.endswith("?key=7")
        assert {rule.normalized_target for rule in server.access} == {"https://mcp.example.com/mcp"}
        assert {rule.operation for rule in server.access} == {"connect", "receive", "send"}
        assert make_manifest({**MCP, "enabled": False}, McpServer).access == ()

    def test_decorators_may_give_rules_and_tuples(self):
        """Data from Python may hold rule objects and tuples; it is copied before it is read."""

        class Sly(str):
            __slots__ = ()

            def __eq__(self, other):
                return True

            __hash__ = str.__hash__

        rule = AccessRule(ResourceType.FILESYSTEM, Operation.READ, "/srv/a", "/srv/a")
        given = {"name": Sly("t"), "access": (rule, FILES)}
        tool = make_manifest(given, "tool", folder="/srv/t")
        assert type(tool.name) is str
        assert len(tool.access) == 3
        given["access"] = None
        object.__setattr__(rule, "normalized_target", "/")
        assert tool.source.value["access"][1] == FILES
        assert {one.normalized_target for one in tool.access} == {"/srv/a", "/srv/t/data"}


class TestWrongManifests:
    @pytest.mark.parametrize(("kind", "value", "pointer"), [*WRONG, *BEYOND_THE_SCHEMA])
    def test_the_one_problem_is_found(self, kind, value, pointer):
        """Each fault of the corpus is told at its place, and nothing else with it."""
        text = json.dumps(value, indent=1)
        (problem,) = problems_of(text, kind, folder="/srv/ext")
        assert problem.pointer == pointer
        assert problem.line >= 1
        with pytest.raises(ManifestError) as caught:
            make_manifest(value, kind, folder="/srv/ext")
        assert [one.pointer for one in caught.value.problems] == [pointer]

    def test_all_problems_come_at_once(self):
        """Every fault is told, in the order of the text, with its line and the nearest right name."""
        found = problems_of(
            '{\n"nam": "demo",\n"verison": "1",\n"access": [\n'
            '{"resource_type": "netwrok", "operation": "receive", "target": "https://a.example"},\n'
            '{"resource_type": "network", "operation": "recieve", "target": ""},\n'
            '{"resource_type": "filesystem", "operations": ["read"], "target": "/a"}],\n'
            '"allowed_imports": ["ctypes.util"],\n"allowed_imports": 5,\n"isolation": NaN}'
        )
        told = [(one.line, one.pointer, one.suggestion) for one in found]
        assert told == [
            (1, "", None),
            (2, "/nam", "name"),
            (3, "/verison", "version"),
            (5, "/access/0/resource_type", "network"),
            (6, "/access/1/operation", "receive"),
            (6, "/access/1/target", None),
            (7, "/access/2", None),
            (7, "/access/2/operations", "operation"),
            (9, "/allowed_imports", None),
            (10, "/isolation", None),
        ]
        assert "network_target_missing" in found[5].message

    @pytest.mark.parametrize(
        ("kind", "value", "words"),
        [
            ("module", {"name": "my module!"}, "did you mean 'my-module'"),
            ("module", {"name": "demo", "isolation": "process"}, "host's configuration"),
            ("module", {"name": "demo", "allow_subprocess": True}, "host's configuration"),
            ("module", {"name": "demo", "permissions": []}, "did you mean 'access'"),
            ("module", {"name": "demo", "allowed_paths": []}, "did you mean 'access'"),
            ("module", {"name": "demo", "Version": "1"}, "did you mean 'version'"),
            ("module", {"name": "demo", "zzz": 1}, "unknown key 'zzz'"),
            ("engine", {"name": "demo", "access": []}, "belongs into 'runtime' or 'install'"),
            ("engine", {"name": "demo", "acces": []}, "'access' belongs into 'runtime' or 'install'"),
            ("engine", {"name": "demo", "allowed_config_urls": []}, "belongs into 'runtime'"),
            ("engine", {"name": "demo", "dependencies": []}, "'requirements' belongs into 'install'"),
            ("mcp", {**MCP, "transport": "http"}, "did you mean 'streamable_http'"),
            ("mcp", {**MCP, "timeout": 5}, "did you mean 'timeout_ms'"),
            ("mcp", {**MCP, "enabled": "False"}, "did you mean 'false'"),
            ("mcp", {**MCP, "timeout_ms": "5"}, "expected a whole number from 1 to 3,600,000, got '5'"),
            ("module", {"name": None}, "got null"),
            ("module", {"name": {}}, "got an object"),
            ("module", {"name": []}, "got a list"),
            ("module", {"name": True}, "got true"),
            ("module", {"name": 1}, "got a number"),
        ],
    )
    def test_the_message_says_what_was_expected(self, kind, value, words):
        """A refusal names what was expected, what stood there and what was probably meant."""
        (problem,) = problems_of(value, kind)
        assert words in str(problem)

    def test_relative_targets_need_a_folder(self):
        """Without a folder there is nothing to be relative to."""
        (problem,) = problems_of({"name": "demo", "access": [FILES]})
        assert "not absolute" in problem.message

    def test_a_flood_of_problems_is_cut(self):
        """The first hundred are told, the number of the others is."""
        begin = time.process_time()
        found = problems_of({"name": "demo", "access": [{"a": 1}] * 9_000})
        assert len(found) == 101
        assert "and 35900 further problems" in found[-1].message
        assert time.process_time() - begin < 10

    @pytest.mark.parametrize(
        "value",
        [
            {1: 2},
            {"name": "x", "k" * 300: 1},
            {"name": b"demo"},
            {"name": "x", "access": [object.__new__(Loose)]},
            {"name": "x", "access": [AccessRule("url", "get", "x", 5)]},
            {Twin("name"): "x", Twin("name"): "y"},
            {"name": "demo", "access": {1, 2}},
            {"name": "demo", "access": iter([])},
            {"name": float("nan")},
            object(),
        ],
    )
    def test_data_that_is_no_json_is_refused(self, value):
        """Python objects that JSON does not have are refused like any wrong value."""
        with pytest.raises(ManifestError):
            make_manifest(value, "module")

    def test_data_without_end_is_refused(self):
        """A list that holds itself is refused, not followed for ever."""
        endless = []
        endless.append(endless)
        with pytest.raises(ManifestError, match="nested"):
            make_manifest({"name": "demo", "access": endless}, "module")

    @pytest.mark.parametrize("kind", ["modul", "task", "core", "", None, 1, Section, object])
    def test_an_unknown_kind_is_the_callers_mistake(self, kind):
        """A kind that does not exist is refused before anything is read."""
        with pytest.raises(InvalidInputError, match="expected a kind of manifest"):
            parse_manifest("{}", kind)

    @pytest.mark.parametrize("folder", ["", "relative", "/a\0b", b"/bytes"])
    def test_a_folder_must_be_absolute(self, folder):
        """A relative folder would mean something else after a change of directory."""
        with pytest.raises(InvalidInputError, match="absolute"):
            parse_manifest("{}", "module", folder=folder)

    def test_only_text_is_parsed(self):
        """An object in place of a text is refused."""
        with pytest.raises(ManifestError, match="JSON text"):
            parse_manifest({}, "module")


class TestFiles:
    def test_the_folder_of_the_file_is_the_base(self, tmp_path, monkeypatch):
        """A relative path to the file does not make relative targets depend on the directory later."""
        (tmp_path / "manifest.json").write_text(json.dumps({"name": "demo", "access": [FILES]}))
        monkeypatch.chdir(tmp_path)
        manifest = load_manifest("manifest.json", ModuleManifest)
        assert manifest.access[0].normalized_target == str(tmp_path / "data")
        assert manifest.source.path == str(tmp_path / "manifest.json")
        assert manifest.source.place("/access") == (1, 28)

    def test_problems_name_the_file(self, tmp_path):
        """The error names the file and keeps it across processes."""
        file = tmp_path / "manifest.json"
        file.write_bytes(b'{"name": "\xff"}')
        with pytest.raises(ManifestError) as caught:
            load_manifest(file, "module")
        error = pickle.loads(pickle.dumps(caught.value))
        assert error.path == str(file)
        assert str(error).startswith(f"{file}: line 1, column 11: the text is not UTF-8")
        assert error.diagnostics().splitlines()[0] == f"invalid_input: 1 problem in {file}"
        assert error.code == "invalid_input"

    def test_what_is_no_readable_file_is_refused(self, tmp_path):
        """Missing, a folder, a pipe, a device, too large: each is told as what it is, and none is waited for."""
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "large").write_bytes(b" " * 10_000_000)
        (tmp_path / "empty").touch()
        (tmp_path / "loop").symlink_to("loop")
        expected = {
            "missing": "there is no file",
            "": "got a folder (did you mean",
            "pipe": "got a device, pipe or socket",
            "large": "larger than",
            "empty": "the text ends here",
            "loop": "unreadable",
            "empty/x": "unreadable",
            "nul\0": "not a path",
        }
        for name, words in expected.items():
            with pytest.raises(ManifestError) as caught:
                load_manifest(f"{tmp_path}/{name}", "module")
            assert words in str(caught.value), name
        with pytest.raises(ManifestError, match="device"):
            load_manifest("/dev/zero", "module")
        with pytest.raises(ManifestError, match="unreadable: Input/output error"):
            load_manifest("/proc/self/mem", "module")

    @pytest.mark.skipif(os.geteuid() == 0, reason="the super user may read everything")
    def test_an_unreadable_file_is_refused(self, tmp_path):
        """A file that may not be read means that nothing runs."""
        file = tmp_path / "manifest.json"
        file.write_text("{}")
        file.chmod(0)
        with pytest.raises(ManifestError, match="unreadable: Permission denied"):
            load_manifest(file, "module")
