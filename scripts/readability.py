"""Measure how readable the source tree is: ``python scripts/readability.py [--list NAME]``.

The measures are those that newcomers stumbled over: gerund module names, class names used twice, modules with one
importer, protocols with one implementation, the share of module headers, and the number of files and lines.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "democrai_sandbox"
USUAL_WORDS = frozenset({"encoding", "keyring", "logging", "recording", "routing", "string", "testing"})
SUBJECT_LENGTH = 72


class Module:
    """One Python file of the source tree."""

    def __init__(self, path: Path, package: Path = PACKAGE) -> None:
        self.path = path
        self.relative = path.relative_to(package)
        self.text = path.read_text()
        self.lines = self.text.count("\n")
        self.tree = ast.parse(self.text)
        parts = self.relative.with_suffix("").parts
        self.name = ".".join((package.name, *(parts[:-1] if parts[-1] == "__init__" else parts)))
        self.top = parts[0] if len(parts) > 1 else ""

    def header_lines(self) -> int:
        """Return the number of lines up to the last import of the leading docstring and imports."""
        last = 0
        for node in self.tree.body:
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            if not (docstring or guarded or isinstance(node, ast.Import | ast.ImportFrom)):
                break
            last = node.end_lineno or last
        return last

    def classes(self) -> Iterator[ast.ClassDef]:
        """Yield the public and private classes at module level."""
        return (node for node in self.tree.body if isinstance(node, ast.ClassDef))

    def imported(self, known: frozenset[str]) -> set[str]:
        """Return the modules of the package that this module imports."""
        found = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                source = self.absolute(node)
                names = {f"{source}.{alias.name}" for alias in node.names} & known
                found |= names if len(names) == len(node.names) else names | ({source} & known)
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names} & known
        return found - {self.name}

    def absolute(self, node: ast.ImportFrom) -> str:
        """Return the full name of the module that an import names."""
        if not node.level:
            return node.module or ""
        here = self.name.split(".") + ([""] if self.path.stem == "__init__" else [])
        return ".".join(here[: -node.level] + (node.module or "").split(".")).rstrip(".")


def modules_of(package: Path = PACKAGE) -> list[Module]:
    """Return the modules below a package."""
    return [Module(path, package) for path in sorted(package.rglob("*.py"))]


def gerunds(modules: list[Module]) -> list[str]:
    """Return the modules named by a gerund that is not a usual noun."""
    named = [one for one in modules if one.relative.stem.endswith("ing") and one.relative.stem not in USUAL_WORDS]
    return [str(one.relative) for one in named]


def repeated_classes(modules: list[Module]) -> list[str]:
    """Return the class names that are defined in more than one package, with the number of definitions."""
    places = defaultdict(list)
    for module in modules:
        for node in module.classes():
            places[node.name.lstrip("_")].append(module)
    repeated = {name: found for name, found in places.items() if len({one.relative.parent for one in found}) > 1}
    return [
        f"{name} x{len(found)}: {', '.join(str(one.relative) for one in found)}"
        for name, found in sorted(repeated.items())
    ]


def single_importers(modules: list[Module]) -> list[str]:
    """Return the modules that exactly one module imports, from the same folder."""
    known = frozenset(one.name for one in modules)
    importers = defaultdict(list)
    for module in modules:
        for name in module.imported(known):
            importers[name].append(module)
    found = []
    for module in modules:
        users = importers[module.name]
        if module.path.stem in ("__init__", "__main__") or len(users) != 1:
            continue
        if users[0].path.parent == module.path.parent and users[0].path.stem != "__init__":
            found.append(f"{module.relative} ({module.lines}) <- {users[0].relative} ({users[0].lines})")
    return found


def lonely_protocols(modules: list[Module]) -> list[str]:
    """Return the protocols that at most one class of the package implements, judged by their method names."""
    classes = [(module, node) for module in modules for node in module.classes()]
    bases = {node.name: {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases} for _, node in classes}
    members = {node.name: _members(node) for _, node in classes}
    found = []
    for module, node in classes:
        if "Protocol" not in bases[node.name]:
            continue
        wanted = members[node.name]
        fits = [name for name, have in members.items() if wanted and wanted <= have and "Protocol" not in bases[name]]
        if len(fits) <= 1:
            found.append(f"{module.relative}:{node.name} ({', '.join(fits) or 'none'})")
    return found


def _members(node: ast.ClassDef) -> set[str]:
    """Return the methods and attributes of a class, with those that its methods set."""
    functions = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    annotated = {ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
    assigned = {ast.unparse(target) for one in node.body if isinstance(one, ast.Assign) for target in one.targets}
    stored = (one for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store))
    return functions | annotated | assigned | {one.attr for one in stored if ast.unparse(one.value) == "self"}


def long_subjects() -> list[str]:
    """Return the commit subjects that are too long."""
    command = ["git", "-C", str(ROOT), "log", "--format=%s"]
    subjects = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [one for one in subjects if len(one) > SUBJECT_LENGTH]


def header_share(modules: list[Module]) -> float:
    """Return the share of lines in module headers, in percent."""
    return 100 * sum(one.header_lines() for one in modules) / sum(one.lines for one in modules)


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or the items of one measure."""
    parser = argparse.ArgumentParser(description="Measure how readable the source tree is.")
    parser.add_argument(
        "--list", dest="listed", help="print the items of a measure: gerunds, classes, single, protocols"
    )
    parser.add_argument("--package", type=Path, default=PACKAGE, help="another package, to compare with")
    options = parser.parse_args(arguments)
    modules = modules_of(options.package)
    items = {
        "gerunds": gerunds(modules),
        "classes": repeated_classes(modules),
        "single": single_importers(modules),
        "protocols": lonely_protocols(modules),
    }
    if options.listed:
        print("\n".join(items[options.listed]))
        return 0
    print(f"modules named by a gerund: {len(items['gerunds'])} of {len(modules)}")
    print(f"class names in more than one package: {len(items['classes'])}")
    print(f"modules with exactly one importer, in the same folder: {len(items['single'])}")
    print(f"protocols with at most one implementation: {len(items['protocols'])}")
    print(f"share of module headers: {header_share(modules):.1f} %")
    print(f"Python files: {len(modules)}")
    print(f"Python lines: {sum(one.lines for one in modules)}")
    print(f"commit subjects over {SUBJECT_LENGTH} characters: {len(long_subjects())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
