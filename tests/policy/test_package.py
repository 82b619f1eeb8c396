"""Package as a whole."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

from democrai_sandbox import policy

FOLDER = pathlib.Path(policy.__file__).parent


def test_everything_public_is_listed():
    """The list of public names is complete, sorted, and has no stale name."""
    imported = {
        alias.asname or alias.name
        for node in ast.parse((FOLDER / "__init__.py").read_text()).body
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    assert set(policy.__all__) == imported
    assert len(policy.__all__) == len(imported)
    for name in policy.__all__:
        assert hasattr(policy, name)


def test_only_the_standard_library_is_imported():
    """The package imports no other package of ours, and of foreign packages only idna, on demand."""
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 1 or node.module.partition(".")[0] in sys.stdlib_module_names, file
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    assert alias.name in sys.stdlib_module_names or (alias.name == "idna" and node.col_offset), file


def test_idna_is_loaded_only_for_hosts_that_need_it():
    """Importing the package and parsing ASCII hosts does not load idna."""
    program = (
        "import sys\n"
        f"sys.path[:0] = {[path for path in sys.path if path]!r}\n"
        "from democrai_sandbox import policy\n"
        "policy.parse_declaration('https://example.com/x')\n"
        "assert 'idna' not in sys.modules\n"
        "assert policy.parse_declaration('bücher.example').host == 'xn--bcher-kva.example'\n"
        "assert 'idna' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_idna_is_told(monkeypatch):
    """Without the package a non-ASCII host is rejected with a fix, and ASCII hosts keep working."""
    monkeypatch.setitem(sys.modules, "idna", None)
    assert policy.parse_declaration("example.com").host == "example.com"
    try:
        policy.parse_declaration("bücher.example")
    except policy.InvalidInputError as error:
        assert "xn--" in str(error)
    else:
        raise AssertionError("accepted")
