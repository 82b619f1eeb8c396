"""Files that a child executes to run permitted programs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from democrai_sandbox.policy import parse_access
from democrai_sandbox.runtime.children.path_rights import named_programs
from democrai_sandbox.runtime.confinement.process_paths import executed_files, loader_of

SHELL = shutil.which("sh")


def rules(*entries):
    given = [{"resource_type": kind, "operation": "execute", "target": target} for kind, target in entries]
    return parse_access(given, base=None)


def script(folder, first_line, name="script"):
    path = folder / name
    path.write_text(f"{first_line}\n")
    return str(path)


def test_only_system_dependencies_name_programs():
    """A rule to execute a file does not limit the other programs."""
    given = rules(("filesystem", "/srv/tool"), ("system_dependency", "git"), ("system_dependency", "/opt/tool"))
    assert named_programs(given) == ("git", "/opt/tool")
    assert named_programs(given[:1]) == ()


def test_a_program_comes_with_the_loader_that_it_names():
    """The loader is a program of its own for the kernel, which starts it."""
    loader = loader_of(SHELL)
    assert os.path.isabs(loader) and loader in executed_files(SHELL, (), ())
    assert loader_of(os.devnull) == loader_of("/nonexistent") == loader_of(__file__) == ""


@pytest.mark.parametrize(
    ("first_line", "needed"),
    [
        (f"#!{SHELL}", SHELL),
        (f"#! {SHELL} -e", SHELL),
        ("#!/usr/bin/env sh", SHELL),
        ("#!/usr/bin/env -S NAME=1 sh -e", SHELL),
    ],
)
def test_a_script_comes_with_its_interpreter(tmp_path, first_line, needed):
    """Directly, and through env; the interpreter with its loader."""
    found = {os.path.realpath(path) for path in executed_files(script(tmp_path, first_line), (), ())}
    assert {os.path.realpath(needed), os.path.realpath(loader_of(SHELL))} <= found


def test_a_file_that_is_no_program_of_the_system_is_never_an_interpreter(tmp_path):
    """The subject may have written the script, and a right to execute is also a right to read."""
    secret = script(tmp_path, "secret", "secret")
    link = tmp_path / "link"
    link.symlink_to(secret)
    elf = tmp_path / "elf"
    data = Path(SHELL).resolve().read_bytes()
    loader = loader_of(SHELL).encode()
    elf.write_bytes(data.replace(loader, secret.encode()[: len(loader)].ljust(len(loader), b"\0")))
    for path in (script(tmp_path, f"#!{secret}"), script(tmp_path, f"#!{link}", "other"), str(elf)):
        assert [one for one in executed_files(path, (), ()) if one.startswith(str(tmp_path))] == [path]


def test_a_chain_of_scripts_without_end_has_an_end(tmp_path):
    """A script that names itself needs nothing more than itself."""
    path = tmp_path / "loop"
    path.write_text(f"#!{path}\n")
    assert str(path) in executed_files(str(path), rules(("filesystem", str(path))), ())


@pytest.mark.skipif(not os.path.isdir("/usr/lib/git-core"), reason="git is not installed")
def test_a_named_program_comes_with_its_parts():
    """Only where it is a program of the system; one of the same name elsewhere gets none."""
    assert "/usr/lib/git-core" in executed_files(SHELL, (), ["git"])
    assert "/usr/lib/git-core" not in executed_files(SHELL, (), [])


def test_a_missing_program_and_a_library_add_nothing():
    """A system dependency may also be a library."""
    assert executed_files(SHELL, (), ["no-such-library"]) == executed_files(SHELL, (), ())


def test_the_interpreter_of_the_host_is_a_program_of_the_system(tmp_path):
    """Scripts of installed packages name it, also by the link in the environment."""
    found = executed_files(script(tmp_path, f"#!{sys.executable}"), (), ())
    assert sys.executable in found
