"""Protected paths are closed to every subject, also below a declared root."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guard.attacks.cases import run_cases
from tests.services.rows import rows

SECRET = "inside + '/vault/secret.txt'"
GUARD = """
def act():
    {act}
result = process_guard_context(subject='s', allowed_paths=[inside]{more}).run(act)
"""
ACTS = {
    "read": f"return open({SECRET}).read()",
    "write": f"open({SECRET}, 'w').write('x')",
    "append": f"open({SECRET}, 'a').write('x')",
    "stat": f"return os.stat({SECRET}).st_size",
    "exists": f"return os.path.exists({SECRET})",
    "list": "return os.listdir(inside + '/vault')",
    "scan": "return list(os.scandir(inside + '/vault'))",
    "enter": "os.chdir(inside + '/vault')",
    "remove": f"os.remove({SECRET})",
    "move": f"os.rename({SECRET}, inside + '/x')",
    "move_folder": "os.rename(inside + '/vault', inside + '/x')",
    "replace": f"os.replace(inside + '/own.txt', {SECRET})",
    "replace_folder": "os.rename(inside, inside + '2')",
    "link": f"os.link({SECRET}, inside + '/x')",
    "symlink": f"os.symlink({SECRET}, inside + '/x')",
    "symlink_relative": "os.symlink('vault', inside + '/x')",
    "chmod": f"os.chmod({SECRET}, 0o777)",
    "truncate": f"os.truncate({SECRET}, 0)",
    "new_file": "open(inside + '/vault/new', 'w')",
    "new_folder": "os.mkdir(inside + '/vault/new')",
    "dots": "return open(inside + '/vault/../vault/./secret.txt').read()",
    "proc": f"return open('/proc/self/root' + {SECRET}).read()",
    "bytes": f"return open(({SECRET}).encode()).read()",
    "copytree": "__import__('shutil').copytree(inside, inside + '-copy')",
    "rmtree": "__import__('shutil').rmtree(inside + '/vault')",
    "sqlite": f"return __import__('sqlite3').connect({SECRET}).execute('select 1')",
}
# Ways in which a host may name the same secret.
NAMES = {
    "folder": "inside + '/vault'",
    "file": SECRET,
    "trailing_slash": "inside + '/vault/'",
    "dots": "inside + '/vault/../vault'",
    "path_object": "__import__('pathlib').Path(inside) / 'vault'",
    "through_link": "base + '/to-vault'",
    "above": "inside",
}
FILE_ONLY = {"list", "scan", "enter", "new_file", "new_folder", "symlink_relative"}
MORE = {
    "plain": "",
    "rule": f", access=[{{'resource_type': 'filesystem', 'operation': ['read', 'modify'], 'target': {SECRET}}}]",
    "root_itself": ", include_runtime_paths=False",
    "install": ", allow_subprocess=True",
}


def setup(name: str) -> str:
    return f"os.symlink('inside/vault', base + '/to-vault')\nconfigure_guard(protected_paths=[{name}])"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, object]]]:
    """Results of every act for every way of naming the secret, one child per way."""
    found = {}
    for name, expression in NAMES.items():
        cases = {
            f"{act} {more}": GUARD.format(act=source, more=addition)
            for act, source in ACTS.items()
            for more, addition in MORE.items()
        }
        found[name] = run_cases(cases, tmp_path_factory.mktemp("protected") / "b", setup(expression))
    return found


@rows("act", ACTS)
@rows("name", NAMES)
def test_protected_path_is_closed(name: str, act: str, outcomes: dict[str, dict[str, dict[str, object]]]) -> None:
    """The protected path is denied for every spelling by the host, also with other rights of the subject."""
    if name == "file" and act in FILE_ONLY:
        return  # concerns the folder, which is not protected here
    found = {more: outcomes[name][f"{act} {more}"] for more in MORE}
    wanted = {"FilesystemDenied", "FilesystemFdDenied"}
    assert {more: outcome for more, outcome in found.items() if not wanted & set(outcome.get("raised", ()))} == {}


OPEN_CASES = {
    "neighbour": "open(inside + '/vaults', 'w').write('x')",
    "neighbour_folder": "os.mkdir(inside + '/vault2')",
    "own": "return open(inside + '/own.txt').read()",
    "listing": "return 'own.txt' in os.listdir(inside)",
    "new": "open(inside + '/new', 'w').write('x')",
    "move": "os.rename(inside + '/own.txt', inside + '/own2.txt')",
    "remove": "open(inside + '/new2', 'w').close(); os.remove(inside + '/new2')",
}


def test_what_lies_beside_stays_open(tmp_path: Path) -> None:
    """Protecting a path affects no other path."""
    cases = {name: GUARD.format(act=act, more="") for name, act in OPEN_CASES.items()}
    found = run_cases(cases, tmp_path / "b", setup(NAMES["folder"]))
    assert [name for name, outcome in found.items() if "value" not in outcome] == [], found


def test_host_reads_what_it_protects(tmp_path: Path) -> None:
    """The protection applies only to subjects; the host is not guarded."""
    found = run_cases({"host": f"result = open({SECRET}).read()"}, tmp_path / "b", setup(NAMES["folder"]))
    assert found["host"] == {"value": "'the-secret-4711'"}


def test_protection_cannot_be_added_or_lifted_later(tmp_path: Path) -> None:
    """After the first guard the list is final, for the host too."""
    source = "process_guard_context(subject='s').run(int)\nconfigure_guard(protected_paths=[])"
    found = run_cases({"later": source}, tmp_path / "b", setup(NAMES["folder"]))
    assert "GuardSealedError" in found["later"]["raised"]


def test_bad_protected_path_is_refused(tmp_path: Path) -> None:
    """An invalid protected path is an error, because the host must not believe that it is protected."""
    wrong = ("''", "'relative'", "7", "None", "'/a\\0b'", "[]")
    found = run_cases({name: f"configure_guard(protected_paths=[{name}])" for name in wrong}, tmp_path / "b")
    assert [name for name, outcome in found.items() if "InvalidInputError" not in outcome.get("raised", ())] == [], (
        found
    )
