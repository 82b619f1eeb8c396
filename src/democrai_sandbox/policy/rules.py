"""Access rules, parsed from a manifest, a guard's arguments or a child's environment, and compiled for checks."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from keyword import iskeyword
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from .network_rules import NetworkIndex, network_entries
from .operations import NETWORK_OPERATIONS, VALID_OPERATIONS, WRITING_OPERATIONS, Operation, ResourceType, file_access
from .paths import UNIX_SCHEME, PathIndex, literal_target, normalise_path, pattern_problem
from .problems import InvalidInputError, NetworkTargetMissingError, Problem, nearest, pointer_to
from .subjects import Subject
from .targets import parse_declaration
from .text import control_character, exact_str, invisible_character, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

KEYS = ("resource_type", "operation", "target")
"""Keys of one entry of an ``access`` list; all are required, others are rejected."""

# Names that other systems use. They are only hints in errors, never accepted.
_OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("type", "resource", "kind"), "resource_type"),
        **dict.fromkeys(("operations", "op", "ops", "action", "mode", "method"), "operation"),
        **dict.fromkeys(("targets", "path", "host", "value"), "target"),
        **dict.fromkeys(("url", "http", "https", "net", "socket", "internet"), "network"),
        **dict.fromkeys(("file", "files", "fs", "disk", "folder", "directory"), "filesystem"),
        **dict.fromkeys(("program", "binary", "command", "dependency"), "system_dependency"),
        **dict.fromkeys(("get", "download", "fetch", "head"), "receive"),
        **dict.fromkeys(("post", "put", "upload"), "send"),
        **dict.fromkeys(("list", "stat", "open"), "read"),
        **dict.fromkeys(("write", "update", "append", "edit", "change"), "modify"),
        **dict.fromkeys(("remove", "unlink", "move"), "delete"),
        **dict.fromkeys(("run", "exec", "spawn"), "execute"),
    }
)


@dataclass(frozen=True, slots=True)
class AccessRule:
    """One allowed access. Two rules are equal if they allow the same, however the target is spelled."""

    resource_type: ResourceType
    operation: Operation
    target: str = field(compare=False)
    """Target as declared."""
    normalized_target: str

    def to_dict(self) -> dict[str, str]:
        """Return the manifest form with the normalized target, which needs no base folder."""
        return {
            "resource_type": self.resource_type.value,
            "operation": self.operation.value,
            "target": written_target(self.resource_type, self.normalized_target),
        }


def parse_access(entries: object, *, base: str | None, pointer: str = "/access") -> tuple[AccessRule, ...]:
    """Parse an ``access`` list, or raise with all its problems.

    ``entries`` is a list of ``AccessRule`` objects and manifest entries. A relative filesystem target is resolved
    against ``base``, the folder of the manifest. An empty list gives no rules; the caller handles a missing list.
    """
    if not isinstance(entries, list | tuple):
        raise InvalidInputError.of(f"expected a list of access entries, got {shown(entries)}", pointer=pointer)
    folder = None if base is None else normalise_path(base)
    rules: dict[AccessRule, None] = {}
    problems: list[Problem] = []
    for index, entry in enumerate(entries):
        place = pointer_to(pointer, index)
        if type(entry) is AccessRule:
            rules.update(dict.fromkeys(_check_rule(entry, place, problems)))
        else:
            rules.update(dict.fromkeys(_parse_entry(entry, folder, place, problems)))
    if problems:
        raise InvalidInputError(problems)
    return tuple(rules)


def written_target(resource_type: ResourceType | str, normalized_target: str) -> str:
    """Return a normalized target in declared form, which differs for files whose name looks like a pattern."""
    names_file = resource_type == ResourceType.FILESYSTEM or (
        resource_type == ResourceType.NETWORK and normalized_target.startswith(UNIX_SCHEME)
    )
    return literal_target(normalized_target) if names_file else normalized_target


def normalise_target(resource_type: ResourceType, target: str, *, base: str | None = None) -> str:
    """Return the canonical text of a target; the only normalizer for manifests, approvals and requests."""
    if resource_type is ResourceType.NETWORK:
        return parse_declaration(target).normalized
    text = exact_str(target)
    if text is None:
        raise InvalidInputError.of(f"expected a text, got {shown(target)}")
    if not text:
        raise InvalidInputError.of("the target is empty")
    if resource_type is ResourceType.FILESYSTEM:
        return _normalise_file_target(text, base)
    if (invisible := invisible_character(text)) or text != text.strip():
        what = f"the character {invisible}" if invisible else "white space at its start or end"
        raise InvalidInputError.of(f"the name of a system dependency contains {what}: {shown(text)}")
    return text


_Members: TypeAlias = "dict[str | None, Any]"


def _parse_entry(entry: object, folder: str | None, pointer: str, problems: list[Problem]) -> list[AccessRule]:
    if not issubclass(type(entry), dict):
        problems.append(Problem(pointer, f"expected an object with {', '.join(KEYS)}, got {shown(entry)}"))
        return []
    before = len(problems)
    items = dict.items(cast("dict[object, Any]", entry))  # the method of dict, because a subclass may override it
    members: _Members = {key: value for name, value in items if (key := exact_str(name)) in KEYS}
    missing = [key for key in KEYS if key not in members]
    problems += [_unknown_key(name, missing, pointer) for name, _ in items if exact_str(name) not in KEYS]
    problems += [Problem(pointer, f"the key '{key}' is missing") for key in missing]
    resource_type = _parse_resource_type(members, pointer, problems)
    operations = _parse_operations(members, resource_type, pointer, problems)
    target = _parse_target(members, resource_type, folder, pointer, problems)
    if len(problems) > before or resource_type is None or target is None:
        return []
    raw, normal = target
    return [AccessRule(resource_type, operation, raw, normal) for operation in operations]


def _unknown_key(key: object, missing: list[str], pointer: str) -> Problem:
    name = exact_str(key) or ""
    return Problem(pointer_to(pointer, name), f"unknown key {shown(key)}", _suggest(name, missing))


def _parse_resource_type(members: _Members, pointer: str, problems: list[Problem]) -> ResourceType | None:
    if "resource_type" not in members:
        return None
    place = pointer_to(pointer, "resource_type")
    text = exact_str(members["resource_type"])
    if text is None:
        problems.append(Problem(place, f"expected a text, got {shown(members['resource_type'])}"))
    elif text not in tuple(ResourceType):
        message = f"unknown resource type {shown(text)}; one of: {', '.join(ResourceType)}"
        problems.append(Problem(place, message, _suggest(text, ResourceType)))
    else:
        return ResourceType(text)
    return None


def _parse_operations(
    members: _Members, resource_type: ResourceType | None, pointer: str, problems: list[Problem]
) -> list[Operation]:
    if "operation" not in members:
        return []
    value = members["operation"]
    place = pointer_to(pointer, "operation")
    if not isinstance(value, list | tuple):
        return _parse_operation(value, resource_type, place, problems)
    if not value:
        problems.append(Problem(place, "the list of operations is empty"))
    return [
        operation
        for index, item in enumerate(value)
        for operation in _parse_operation(item, resource_type, pointer_to(place, index), problems)
    ]


def _parse_operation(
    value: object, resource_type: ResourceType | None, place: str, problems: list[Problem]
) -> list[Operation]:
    choices = tuple(Operation) if resource_type is None else VALID_OPERATIONS[resource_type]
    text = exact_str(value)
    if text is None:
        problems.append(Problem(place, f"expected an operation or a list of operations, got {shown(value)}"))
    elif text not in choices:
        known = text in tuple(Operation)
        what = f"{text!r} is not an operation for {resource_type}" if known else f"unknown operation {shown(text)}"
        problems.append(Problem(place, f"{what}; one of: {', '.join(choices)}", _suggest(text, choices)))
    else:
        return [Operation(text)]
    return []


def _parse_target(
    members: _Members, resource_type: ResourceType | None, folder: str | None, pointer: str, problems: list[Problem]
) -> tuple[str, str] | None:
    if "target" not in members:
        return None
    place = pointer_to(pointer, "target")
    text = exact_str(members["target"])
    if text is None:
        problems.append(Problem(place, f"expected a text, got {shown(members['target'])}"))
    elif not text:
        missing = resource_type is ResourceType.NETWORK
        problems.append(Problem(place, NetworkTargetMissingError.code if missing else "the target is empty"))
    elif resource_type is not None and (problem := _pattern_problem(resource_type, text, place)):
        problems.append(problem)
    elif resource_type is not None:
        try:
            return text, normalise_target(resource_type, text, base=folder)
        except InvalidInputError as error:
            problems += [problem.moved(place) for problem in error.problems]
    return None


def _pattern_problem(resource_type: ResourceType, text: str, place: str) -> Problem | None:
    is_socket = resource_type is ResourceType.NETWORK and text.startswith(UNIX_SCHEME)
    return pattern_problem(text, place) if is_socket or resource_type is ResourceType.FILESYSTEM else None


def _check_rule(rule: AccessRule, pointer: str, problems: list[Problem]) -> list[AccessRule]:
    """Accept a finished rule only if parsing would have produced it."""
    sound = (
        type(rule.resource_type) is ResourceType
        and type(rule.operation) is Operation
        and rule.operation in VALID_OPERATIONS[rule.resource_type]
        and type(rule.normalized_target) is str
    )
    if not sound:
        problems.append(Problem(pointer, "the rule contains invalid values"))
        return []
    place = pointer_to(pointer, "normalized_target")
    try:
        normal = normalise_target(rule.resource_type, rule.normalized_target)
    except InvalidInputError as error:
        problems += [problem.moved(place) for problem in error.problems]
        return []
    if normal != rule.normalized_target:
        problems.append(Problem(place, f"{shown(rule.normalized_target)} is not normalized", normal))
        return []
    return [rule]


def _normalise_file_target(text: str, base: str | None) -> str:
    if control := control_character(text):
        raise InvalidInputError.of(f"the path contains the control character {control}: {shown(text)}")
    try:
        text.encode("utf-8", "surrogateescape")  # as file names are
    except UnicodeEncodeError:
        raise InvalidInputError.of(f"the path contains a lone surrogate: {shown(text)}") from None
    if text.startswith("~"):
        raise InvalidInputError.of(f"'~' is not expanded; write the absolute path instead of {shown(text)}")
    if text.startswith("/"):
        return normalise_path(text)
    if base is None:
        raise InvalidInputError.of(f"the path is not absolute: {shown(text)}")
    return normalise_path(f"{base}/{text}")


def _suggest(name: str, candidates: Iterable[str]) -> str | None:
    choices = [str(candidate) for candidate in candidates]
    other = _OTHER_NAMES.get(name.lower())
    return other if other in choices else nearest(name, choices)


# Iterable, but passed by mistake: each would be read as a list of characters, numbers or keys.
_NOT_A_LIST = (str, bytes, bytearray, memoryview, dict, os.PathLike)


def rules_for_paths(paths: Iterable[str | os.PathLike[str]]) -> tuple[AccessRule, ...]:
    """Return rules to read, create, modify and delete each absolute path. ``~`` is not expanded."""
    return _rules(paths, ResourceType.FILESYSTEM, WRITING_OPERATIONS, _path_text, "/allowed_paths")


def rules_for_targets(targets: Iterable[str]) -> tuple[AccessRule, ...]:
    """Return rules to connect to, receive from and send to each target."""
    return _rules(targets, ResourceType.NETWORK, NETWORK_OPERATIONS, exact_str, "/allowed_targets")


def _rules(
    values: Iterable[object],
    resource_type: ResourceType,
    operations: tuple[Operation, ...],
    to_text: Callable[[object], str | None],
    pointer: str,
) -> tuple[AccessRule, ...]:
    rules: dict[AccessRule, None] = {}
    problems: list[Problem] = []
    for index, value in enumerate(_items(values, pointer)):
        place = pointer_to(pointer, index)
        text = to_text(value)
        if text is None:
            problems.append(Problem(place, f"expected a text, got {shown(value)}"))
            continue
        try:
            normal = normalise_target(resource_type, text)
        except InvalidInputError as error:
            problems += [problem.moved(place) for problem in error.problems]
        else:
            rules.update((AccessRule(resource_type, operation, text, normal), None) for operation in operations)
    if problems:
        raise InvalidInputError(problems)
    return tuple(rules)


def _items(values: object, pointer: str) -> Iterable[object]:
    if isinstance(values, _NOT_A_LIST) or not hasattr(type(values), "__iter__"):
        raise InvalidInputError.of(f"expected a list, got {shown(values)}", pointer=pointer)
    return tuple(values)  # type: ignore[arg-type]  # has __iter__, as checked above


def _path_text(value: object) -> str | None:
    """Return a path as exact text; ``__fspath__`` is called once, because its result may change."""
    text = exact_str(value)
    if text is None and isinstance(value, os.PathLike):
        text = exact_str(os.fspath(value))
    return text


def rules_to_json(rules: Iterable[AccessRule]) -> str:
    """Return the rules as a JSON list in manifest form. The text is ASCII, also for paths that are not UTF-8."""
    return json.dumps([rule.to_dict() for rule in rules], ensure_ascii=True, separators=(",", ":"))


def rules_from_json(text: str, *, pointer: str = "") -> tuple[AccessRule, ...]:
    """Parse the output of ``rules_to_json``. Unreadable rules are rejected, and never treated as an empty list."""
    exact = exact_str(text)
    if exact is None:
        raise InvalidInputError.of(f"expected a JSON text, got {shown(text)}", pointer=pointer)
    return parse_access(_decode(exact, pointer), base=None, pointer=pointer)


def _decode(text: str, pointer: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_unique_members, parse_constant=_refuse_constant)
    except InvalidInputError as error:
        raise InvalidInputError(problem.moved(pointer) for problem in error.problems) from None
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    except RecursionError:
        message = "the JSON is nested too deeply"
    except ValueError:
        message = "the JSON contains a number that is too long"
    raise InvalidInputError.of(message, pointer=pointer)


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject an object with a duplicate key, because readers differ in the value they keep."""
    members = dict(pairs)
    if len(members) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise InvalidInputError.of(f"duplicate key {shown(repeated)}")
    return members


def _refuse_constant(name: str) -> object:
    raise InvalidInputError.of(f"{name} is not JSON")


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
