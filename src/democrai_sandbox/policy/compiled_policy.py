"""Compiled policy: the declarations of a subject in the form that checks read."""

from __future__ import annotations

from dataclasses import dataclass, field
from keyword import iskeyword
from typing import TYPE_CHECKING

from .network_rules import NetworkIndex, network_entries
from .operations import ResourceType, file_access
from .paths import PathIndex
from .problems import InvalidInputError, Problem, pointer_to
from .rules import AccessRule
from .subjects import Subject
from .text import exact_str, shown

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    """Rights of one subject. Create it with ``compile_policy``."""

    subject: Subject
    rules: tuple[AccessRule, ...]
    allowed_imports: frozenset[str]
    allow_subprocess: bool
    # Derived from the rules, so excluded from comparison.
    paths: PathIndex = field(compare=False, repr=False)
    network: NetworkIndex = field(compare=False, repr=False)

    @property
    def file_entries(self) -> tuple[tuple[str, int], ...]:
        """Filesystem roots with their ``FileAccess`` masks as plain numbers, for the native core."""
        return tuple((path, int(mask)) for path, mask in self.paths.entries)

    @property
    def network_entries(self) -> tuple[tuple[bytes, int], ...]:
        """Network rules as keys with their ``NetworkAccess`` masks, for the native core."""
        return network_entries(self.rules)


def compile_policy(
    *,
    subject: Subject,
    rules: Iterable[AccessRule],
    allowed_imports: Iterable[str] = (),
    allow_subprocess: bool = False,
) -> CompiledPolicy:
    """Compile the declarations of a subject. Without rules, nothing is allowed."""
    kept = tuple(rules)
    problems = _type_problems("/subject", subject, Subject)
    for index, rule in enumerate(kept):
        problems += _type_problems(pointer_to("/rules", index), rule, AccessRule)
    problems += _type_problems("/allow_subprocess", allow_subprocess, bool)
    imports = _parse_imports(allowed_imports, problems)
    if problems:
        raise InvalidInputError(problems)
    files = (rule for rule in kept if rule.resource_type is ResourceType.FILESYSTEM)
    return CompiledPolicy(
        subject=subject,
        rules=kept,
        allowed_imports=imports,
        allow_subprocess=allow_subprocess,
        paths=PathIndex((rule.normalized_target, file_access(rule.operation)) for rule in files),
        network=NetworkIndex(kept),
    )


def _type_problems(pointer: str, value: object, expected: type) -> list[Problem]:
    """Require the exact type: a subclass may lie, and a text such as "false" would count as true."""
    if type(value) is expected:
        return []
    return [Problem(pointer, f"expected {expected.__name__}, got {shown(value)}")]


def _parse_imports(names: object, problems: list[Problem]) -> frozenset[str]:
    pointer = "/allowed_imports"
    if not isinstance(names, list | tuple | set | frozenset):
        problems.append(Problem(pointer, f"expected a list of import roots, got {shown(names)}"))
        return frozenset()
    roots: set[str] = set()
    for index, name in enumerate(names):
        text = exact_str(name)
        place = pointer_to(pointer, index)
        root = (text or "").partition(".")[0]
        if text is None or not root.isidentifier() or iskeyword(root):
            problems.append(Problem(place, f"expected the root name of an import, got {shown(name)}"))
        elif root != text:
            problems.append(Problem(place, f"expected the root name of an import, got {shown(text)}", root))
        else:
            roots.add(root)
    return frozenset(roots)
