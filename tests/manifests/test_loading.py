"""Manifests from files, texts and data: valid, or rejected with every problem."""

from __future__ import annotations

import errno
import json
import os
import pickle

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
from tests.manifests.growth import is_linear
from tests.services.golden import sentence
from tests.services.rows import rows

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
    """Rule whose methods could return anything."""


class Twin(str):
    """Key that is never equal to another one."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def problems_of(value, kind="module", **options):
    text = value if isinstance(value, str | bytes) else json.dumps(value)
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text, kind, **options)
    return caught.value.problems


# --- valid manifests
# ---------------------------------------------------------------------------------------------------


@rows(("kind", "value"), RIGHT)
def test_right_manifests_are_read_and_written_back(kind, value):
    """Text and data give the same model, and its serialized form parses to an equal one."""
    manifest = parse_manifest(json.dumps(value), kind, folder="/srv/ext")
    assert type(manifest) is MODELS[kind]
    assert manifest.kind == kind
    assert str(manifest.subject) == f"{kind}:{value['name']}"
    assert manifest == make_manifest(value, MODELS[kind], folder="/srv/ext")
    assert manifest == parse_manifest(json.dumps(manifest_to_dict(manifest)), ManifestKind(kind))
    assert hash(manifest) == hash(pickle.loads(pickle.dumps(manifest)))


def test_a_module_declares_at_the_top():
    """Relative targets start from the folder, and a list of operations gives several rules."""
    manifest = make_manifest({"name": "demo", "access": [NETWORK, FILES]}, ModuleManifest, folder="/srv/demo")
    assert manifest.access == (
        AccessRule(ResourceType.NETWORK, Operation.RECEIVE, "", "https://api.example.com/v1"),
        AccessRule(ResourceType.FILESYSTEM, Operation.READ, "", "/srv/demo/data"),
        AccessRule(ResourceType.FILESYSTEM, Operation.CREATE, "", "/srv/demo/data"),
    )
    assert manifest.entry == "module.py"
    assert manifest.sections == {"": Section(access=manifest.access)}


def test_the_phases_of_an_engine_are_apart():
    """A declaration of one phase does not apply in the other."""
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


def test_nothing_declared_is_not_an_empty_declaration():
    """A tool without the key has the rights of its caller; one with an empty list has none."""
    assert make_manifest({"name": "t"}, ToolDeclaration).access is None
    assert make_manifest({"name": "t"}, ToolDeclaration).sections == {"": None}
    assert make_manifest({"name": "t", "access": []}, ToolDeclaration).access == ()
    assert make_manifest({"name": "t", "access": []}, ToolDeclaration).sections == {"": Section()}


def test_an_mcp_server_may_use_its_endpoint():
    """The rules are for the endpoint without its query; a disabled server has none."""
    server = make_manifest({**MCP, "endpoint_url": "https://MCP.example.com:443/mcp?key=7"}, McpServer)
    assert server.transport is McpTransport.STREAMABLE_HTTP
    assert (server.enabled, server.timeout_ms) == (True, 30_000)
    assert server.endpoint_url.endswith("?key=7")
    assert {rule.normalized_target for rule in server.access} == {"https://mcp.example.com/mcp"}
    assert {rule.operation for rule in server.access} == {"connect", "receive", "send"}
    assert make_manifest({**MCP, "enabled": False}, McpServer).access == ()


def test_decorators_may_give_rules_and_tuples():
    """Data from Python may contain rule objects and tuples; it is copied before it is parsed."""

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


# --- invalid manifests
# -------------------------------------------------------------------------------------------------


@rows(("kind", "value", "pointer"), [*WRONG, *BEYOND_THE_SCHEMA])
def test_the_one_problem_of_a_wrong_manifest_is_found(kind, value, pointer):
    """Each problem of the corpus is reported at its place, without others."""
    text = json.dumps(value, indent=1)
    (problem,) = problems_of(text, kind, folder="/srv/ext")
    assert problem.pointer == pointer
    assert problem.line >= 1
    with pytest.raises(ManifestError) as caught:
        make_manifest(value, kind, folder="/srv/ext")
    assert [one.pointer for one in caught.value.problems] == [pointer]


def test_all_problems_come_at_once():
    """All problems are reported in the order of the text, with lines and suggestions."""
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


MEANT = [
    ("module", {"name": "my module!"}, "/name", "my-module"),
    ("module", {"name": "demo", "isolation": "process"}, "/isolation", None),
    ("module", {"name": "demo", "allow_subprocess": True}, "/allow_subprocess", None),
    ("module", {"name": "demo", "permissions": []}, "/permissions", "access"),
    ("module", {"name": "demo", "allowed_paths": []}, "/allowed_paths", "access"),
    ("module", {"name": "demo", "Version": "1"}, "/Version", "version"),
    ("module", {"name": "demo", "zzz": 1}, "/zzz", None),
    ("engine", {"name": "demo", "access": []}, "/access", None),
    ("engine", {"name": "demo", "acces": []}, "/acces", None),
    ("engine", {"name": "demo", "allowed_config_urls": []}, "/allowed_config_urls", None),
    ("engine", {"name": "demo", "dependencies": []}, "/dependencies", None),
    ("mcp", {**MCP, "transport": "http"}, "/transport", "streamable_http"),
    ("mcp", {**MCP, "timeout": 5}, "/timeout", "timeout_ms"),
    ("mcp", {**MCP, "enabled": "False"}, "/enabled", "false"),
    ("mcp", {**MCP, "timeout_ms": "5"}, "/timeout_ms", None),
    ("module", {"name": None}, "/name", None),
    ("module", {"name": {}}, "/name", None),
    ("module", {"name": []}, "/name", None),
    ("module", {"name": True}, "/name", None),
    ("module", {"name": 1}, "/name", None),
]
"""Manifests with one problem, its pointer and the suggestion."""


@rows(("kind", "value", "pointer", "suggestion"), MEANT)
def test_a_refusal_names_what_was_probably_meant(kind, value, pointer, suggestion):
    """A misspelled or foreign name leads to the right one."""
    (problem,) = problems_of(value, kind)
    assert (problem.pointer, problem.suggestion) == (pointer, suggestion)


def test_a_refusal_says_what_was_expected():
    """The message says what was expected, what was found, and where a key belongs."""
    told = [(kind, value, *problems_of(value, kind)) for kind, value, *_ in MEANT]
    sentence("expected", "\n".join(f"{kind} {json.dumps(value)}\n    {problem}" for kind, value, problem in told))
    places = {problem.pointer: problem.message for kind, _, problem in told if kind == "engine"}
    for key, belongs in {
        "/access": ("'runtime'", "'install'"),
        "/acces": ("'access'", "'runtime'", "'install'"),
        "/allowed_config_urls": ("'runtime'",),
        "/dependencies": ("'requirements'", "'install'"),
    }.items():
        assert all(name in places[key] for name in belongs)


def test_relative_targets_need_a_folder():
    """Without a folder, relative targets cannot be resolved."""
    (problem,) = problems_of({"name": "demo", "access": [FILES]})
    assert problem.pointer == "/access/0/target"
    assert repr(FILES["target"]) in problem.message


def test_a_flood_of_problems_is_cut():
    """The first hundred problems are reported, with the number of others; the cost grows with their number."""

    def flood(count):
        return count, json.dumps({"name": "demo", "access": [{"a": 1}] * count})

    def read(given):
        count, text = given
        found = problems_of(text)
        assert len(found) == 101
        assert f" {4 * count - 100} " in found[-1].message

    assert is_linear(read, flood)


@rows(
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
def test_data_that_is_no_json_is_refused(value):
    """Python objects without a JSON form are rejected like any invalid value."""
    with pytest.raises(ManifestError):
        make_manifest(value, "module")


def test_data_without_end_is_refused():
    """A list that contains itself is rejected, not followed forever."""
    endless = []
    endless.append(endless)
    with pytest.raises(ManifestError, match="64"):
        make_manifest({"name": "demo", "access": endless}, "module")


@rows("kind", ["modul", "task", "core", "", None, 1, Section, object])
def test_an_unknown_kind_is_the_callers_mistake(kind):
    """An unknown kind is rejected before anything is read."""
    with pytest.raises(InvalidInputError) as caught:
        parse_manifest("{}", kind)
    assert [problem.pointer for problem in caught.value.problems] == ["/kind"]


@rows("folder", ["", "relative", "/a\0b", b"/bytes"])
def test_a_folder_must_be_absolute(folder):
    """The meaning of a relative folder would change with the working directory."""
    with pytest.raises(InvalidInputError) as caught:
        parse_manifest("{}", "module", folder=folder)
    assert [problem.pointer for problem in caught.value.problems] == ["/folder"]


def test_only_text_is_parsed():
    """An object instead of a text is rejected."""
    with pytest.raises(ManifestError, match="dict"):
        parse_manifest({}, "module")


# --- files -----------------------------------------------------------------------------------------------------------


def test_the_folder_of_the_file_is_the_base(tmp_path, monkeypatch):
    """Relative targets do not depend on the working directory later, even if the file's path was relative."""
    (tmp_path / "manifest.json").write_text(json.dumps({"name": "demo", "access": [FILES]}))
    monkeypatch.chdir(tmp_path)
    manifest = load_manifest("manifest.json", ModuleManifest)
    assert manifest.access[0].normalized_target == str(tmp_path / "data")
    assert manifest.source.path == str(tmp_path / "manifest.json")
    assert manifest.source.place("/access") == (1, 28)


def test_problems_name_the_file(tmp_path):
    """The error names the file, also after pickling."""
    file = tmp_path / "manifest.json"
    file.write_bytes(b'{"name": "\xff"}')
    with pytest.raises(ManifestError) as caught:
        load_manifest(file, "module")
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.path == str(file)
    (problem,) = error.problems
    assert (problem.line, problem.column) == (1, 11)
    assert "0xff" in problem.message
    assert str(error) == f"{file}: {problem}"
    assert error.code == "invalid_input"
    sentence("file that is not UTF-8", error.diagnostics(), folder=tmp_path)


def test_what_is_no_readable_file_is_refused(tmp_path):
    """Missing, a folder, a pipe, a device, too large: each has a specific message, and none blocks."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b" " * 10_000_000)
    (tmp_path / "empty").touch()
    (tmp_path / "loop").symlink_to("loop")
    names = ("missing", "", "pipe", "large", "empty", "loop", "empty/x", "nul\0")
    told = {}
    for path in (*(f"{tmp_path}/{name}" for name in names), "/dev/zero", "/proc/self/mem"):
        with pytest.raises(ManifestError) as caught:
            load_manifest(path, "module")
        assert caught.value.path == path.rstrip("/")
        (told[path],) = caught.value.problems
    assert told[f"{tmp_path}/"].suggestion == f"{tmp_path}/manifest.json"
    assert told[f"{tmp_path}/pipe"] == told["/dev/zero"]
    for path, number in {"loop": errno.ELOOP, "empty/x": errno.ENOTDIR, "/proc/self/mem": errno.EIO}.items():
        assert os.strerror(number) in told[os.path.join(tmp_path, path)].message
    sentence("unreadable files", "\n".join(f"{path!a}: {problem}" for path, problem in told.items()), folder=tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="the super user may read everything")
def test_an_unreadable_file_is_refused(tmp_path):
    """If a file cannot be read, nothing runs."""
    file = tmp_path / "manifest.json"
    file.write_text("{}")
    file.chmod(0)
    with pytest.raises(ManifestError, match=os.strerror(errno.EACCES)):
        load_manifest(file, "module")
