"""Bad input causes a typed error or a denial, never a crash and never an allowed access."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guard.attacks.cases import run_cases
from tests.services.rows import rows

# Mistakes of a host that creates a guard. Each is rejected before anything runs under it.
ARGUMENTS = {
    "empty_path": "allowed_paths=['']",
    "relative_path": "allowed_paths=['some/where']",
    "dot_path": "allowed_paths=['.']",
    "tilde_path": "allowed_paths=['~/x']",
    "blank_path": "allowed_paths=['  ']",
    "number_path": "allowed_paths=[7]",
    "none_path": "allowed_paths=[None]",
    "nested_list_path": "allowed_paths=[[inside]]",
    "nul_path": "allowed_paths=[inside + '\\0x']",
    "string_for_list": "allowed_paths=inside",
    "bytes_for_list": "allowed_paths=inside.encode()",
    "number_for_list": "allowed_paths=7",
    "none_for_list": "allowed_paths=None",
    "mapping_for_list": "allowed_paths={inside: 'rw'}",
    "endless_path": "allowed_paths=['/' + 'x' * 70000]",
    "path_object_of_number": "allowed_paths=[Answering(7)]",
    "unknown_kind": "subject_kind='planet'",
    "empty_kind": "subject_kind=''",
    "number_kind": "subject_kind=3",
    "none_kind": "subject_kind=None",
    "empty_subject": "subject=''",
    "blank_subject": "subject='  '",
    "none_subject": "subject=None",
    "number_subject": "subject=3",
    "nul_subject": "subject='a\\0b'",
    "newline_subject": "subject='a\\nb'",
    "access_string": "access='read'",
    "access_none": "access=None",
    "access_mapping": "access={'resource_type': 'filesystem', 'operation': 'read', 'target': inside}",
    "access_number": "access=[7]",
    "access_empty_rule": "access=[{}]",
    "access_missing_target": "access=[{'resource_type': 'filesystem', 'operation': 'read'}]",
    "access_missing_operation": "access=[{'resource_type': 'filesystem', 'target': inside}]",
    "access_unknown_type": "access=[{'resource_type': 'file', 'operation': 'read', 'target': inside}]",
    "access_unknown_operation": "access=[{'resource_type': 'filesystem', 'operation': 'write', 'target': inside}]",
    "access_operation_of_another": "access=[{'resource_type': 'filesystem', 'operation': 'connect', 'target': inside}]",
    "access_empty_operations": "access=[{'resource_type': 'filesystem', 'operation': [], 'target': inside}]",
    "access_unknown_key": "access=[{'resource_type': 'filesystem', 'operation': 'read', 'target': inside, 'x': 1}]",
    "access_empty_target": "access=[{'resource_type': 'filesystem', 'operation': 'read', 'target': ''}]",
    "access_none_target": "access=[{'resource_type': 'filesystem', 'operation': 'read', 'target': None}]",
    "access_nul_target": "access=[{'resource_type': 'filesystem', 'operation': 'read', 'target': '/a\\0b'}]",
    "targets_string": "allowed_targets='example.com'",
    "targets_empty": "allowed_targets=['']",
    "targets_number": "allowed_targets=[7]",
    "targets_userinfo": "allowed_targets=['https://a:b@example.com']",
    "targets_nul": "allowed_targets=['example.com\\0.evil.org']",
    "imports_string": "allowed_imports='ctypes'",
    "imports_number": "allowed_imports=[7]",
    "imports_empty": "allowed_imports=['']",
    "subprocess_string": "allow_subprocess='no'",
    "subprocess_none": "allow_subprocess=None",
    "subprocess_number": "allow_subprocess=1",
    "runtime_string": "include_runtime_paths='no'",
    "unknown_argument": "allowed_path=[inside]",
}

# Values that a subject may pass as a path, named after their peculiarity.
PATHS = {
    "nul": "inside + '/own.txt\\0'",
    "nul_then_more": "inside + '/own.txt\\0/../../outside/secret.txt'",
    "nul_bytes": "(inside + '/own.txt\\0x').encode()",
    "empty": "''",
    "empty_bytes": "b''",
    "none": "None",
    "float": "1.5",
    "list": "[outside]",
    "dictionary": "{outside: 1}",
    "object": "object()",
    "huge_number": "10 ** 30",
    "negative_number": "-7",
    "true": "True",
    "endless": "'/' + 'x' * 65536",
    "endless_components": "inside + '/x' * 32768",
    "endless_dots": "inside + '/..' * 20000 + outside",
    "endless_bytes": "b'/' + b'y' * 65536",
    "odd_bytes": "outside.encode() + b'\\xff\\xfe'",
    "odd_bytes_inside": "inside.encode() + b'/\\xff\\xfe/../../outside/secret.txt'",
    "lone_surrogate": "outside + '\\ud800'",
    "escaped_byte": "outside + '\\udcff'",
    "raising": "Raising()",
    "raising_exit": "Raising(SystemExit)",
    "answers_number": "Answering(7)",
    "answers_none": "Answering(None)",
    "answers_bytearray": "Answering(bytearray(outside.encode()))",
    "answers_itself": "Answering(Answering(outside))",
    "answers_subclass": "Answering(Text(outside))",
    "answers_differently": "Changing(inside + '/own.txt', outside)",
    "answers_differently_back": "Changing(outside, inside + '/own.txt')",
    "subclass": "Text(outside)",
    "bytes_subclass": "Bytes(outside.encode())",
    "endless_recursion": "Recursive()",
    "class_itself": "Answering",
    "raising_class": "Liar(outside)",
}
DOORS = (
    "open(path).read()",
    "os.read(os.open(path, os.O_RDONLY), 99)",
    "os.stat(path).st_size == 15",
    "os.listdir(path)",
    "os.rename(path, inside + '/moved')",
    "os.path.exists(path)",
    "__import__('pathlib').Path(path).read_text()",
    "__import__('io').FileIO(path).read()",
    "os.access(path, 0)",
    "os.readlink(path)",
    "os.truncate(path, 0)",
    "os.mkdir(path)",
    "os.symlink(path, inside + '/s')",
    "os.link(path, inside + '/l')",
    "os.utime(path)",
    "__import__('sqlite3').connect(path)",
)
SETUP = """
class Raising:
    def __init__(self, error=LookupError):
        self.error = error
    def __fspath__(self):
        raise self.error("no answer")

class Answering:
    def __init__(self, answer):
        self.answer = answer
    def __fspath__(self):
        return self.answer

class Changing:
    def __init__(self, *answers):
        self.answers = list(answers)
    def __fspath__(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

class Recursive:
    def __fspath__(self):
        return os.fspath(self)

class Text(str):
    def startswith(self, *_):
        return True
    def __eq__(self, other):
        return True
    __hash__ = str.__hash__

class Bytes(bytes):
    pass

class Liar:
    def __init__(self, path):
        self.path = path
    @property
    def __class__(self):
        raise LookupError("no class")
    def __fspath__(self):
        return self.path
"""
MAKE = "arguments = dict(subject='s') | dict({})\nresult = process_guard_context(**arguments).run(open, outside)"
USE = """
path = {path}
def act():
    return {door}
result = process_guard_context(subject='s', allowed_paths=[inside]).run(act)
"""
ENVIRONMENTS = {
    "access_not_json": {"DEMOCRAI_NETWORK_SUBJECT": "s", "DEMOCRAI_ACCESS": "[{"},
    "access_truncated": {"DEMOCRAI_NETWORK_SUBJECT": "s", "DEMOCRAI_ACCESS": '[{"resource_type": "filesys'},
    "access_null": {"DEMOCRAI_NETWORK_SUBJECT": "s", "DEMOCRAI_ACCESS": "null"},
    "access_mapping": {"DEMOCRAI_NETWORK_SUBJECT": "s", "DEMOCRAI_ACCESS": "{}"},
    "access_string": {"DEMOCRAI_NETWORK_SUBJECT": "s", "DEMOCRAI_ACCESS": '"all"'},
    "access_number": {"DEMOCRAI_NETWORK_SUBJECT": "s", "DEMOCRAI_ACCESS": "1"},
    "access_empty_text": {"DEMOCRAI_NETWORK_SUBJECT": "s", "DEMOCRAI_ACCESS": ""},
    "access_list_of_numbers": {"DEMOCRAI_NETWORK_SUBJECT": "s", "DEMOCRAI_ACCESS": "[1]"},
    "access_unknown_operation": {
        "DEMOCRAI_NETWORK_SUBJECT": "s",
        "DEMOCRAI_ACCESS": '[{"resource_type": "filesystem", "operation": "all", "target": "/"}]',
    },
    "access_deep": {"DEMOCRAI_NETWORK_SUBJECT": "s", "DEMOCRAI_ACCESS": "[" * 100_000},
    "kind_unknown": {
        "DEMOCRAI_NETWORK_SUBJECT": "s",
        "DEMOCRAI_NETWORK_SUBJECT_KIND": "planet",
        "DEMOCRAI_ACCESS": "[]",
    },
    "subject_empty": {"DEMOCRAI_NETWORK_SUBJECT": "", "DEMOCRAI_ACCESS": "[]"},
    "subject_missing": {"DEMOCRAI_ACCESS": "[]"},
    "user_not_a_number": {"DEMOCRAI_NETWORK_SUBJECT": "s", "DEMOCRAI_ACCESS": "[]", "DEMOCRAI_USER_ID": "root"},
    "nothing_at_all": {},
}


def harmless(outcome: dict[str, object]) -> bool:
    """Return whether a case neither ended its process nor accessed anything outside."""
    value = str(outcome.get("value"))
    return "crashed" not in outcome and "the-secret" not in value and "secret.txt" not in value


def from_environment(values: dict[str, str]) -> str:
    return f"result = process_guard_context_from_env({values!r}).run(open, outside)"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Results of every case of this file, run in one child."""
    cases = {f"make {name}": MAKE.format(arguments) for name, arguments in ARGUMENTS.items()}
    cases |= {
        f"use {name} {number}": USE.format(path=path, door=door)
        for name, path in PATHS.items()
        for number, door in enumerate(DOORS)
    }
    cases |= {f"environment {name}": from_environment(values) for name, values in ENVIRONMENTS.items()}
    return run_cases(cases, tmp_path_factory.mktemp("bad-input"), SETUP)


@rows("name", ARGUMENTS)
def test_bad_argument_is_refused(name: str, outcomes: dict[str, dict[str, object]]) -> None:
    """A wrong argument creates no guard; the error is a ValueError or TypeError with a text."""
    outcome = outcomes[f"make {name}"]
    assert set(outcome.get("raised", ())) & {"ValueError", "TypeError"} and outcome["text"], outcome
    assert "PermissionError" not in outcome["raised"], outcome


@rows("name", sorted(set(ARGUMENTS) - {"unknown_argument", "path_object_of_number"}))
def test_bad_argument_is_named(name: str, outcomes: dict[str, dict[str, object]]) -> None:
    """The error is one of the package and tells the caller what to fix."""
    assert "InvalidInputError" in outcomes[f"make {name}"].get("raised", ()), outcomes[f"make {name}"]


@rows("name", PATHS)
def test_bad_path_gains_nothing(name: str, outcomes: dict[str, dict[str, object]]) -> None:
    """An odd path is an ordinary error or a denial in every function; it neither crashes nor reveals anything."""
    found = {door: outcomes[f"use {name} {number}"] for number, door in enumerate(DOORS)}
    assert {door: outcome for door, outcome in found.items() if not harmless(outcome)} == {}


@rows("name", ENVIRONMENTS)
def test_malformed_environment_is_an_error(name: str, outcomes: dict[str, dict[str, object]]) -> None:
    """A child with a malformed environment gets an error, never an empty guard."""
    outcome = outcomes[f"environment {name}"]
    assert "InvalidInputError" in outcome.get("raised", ()), outcome


def test_root_that_does_not_exist_is_accepted(tmp_path: Path) -> None:
    """A root may be declared before it exists, and then covers what is created there, nothing else."""
    cases = {
        "made": "result = guard.run(os.mkdir, base + '/later')",
        "elsewhere": "guard.run(os.mkdir, base + '/other')",
    }
    found = run_cases(cases, tmp_path, "guard = process_guard_context(subject='s', allowed_paths=[base + '/later'])")
    assert found["made"] == {"value": "None"}
    assert "PermissionError" in found["elsewhere"]["raised"]
