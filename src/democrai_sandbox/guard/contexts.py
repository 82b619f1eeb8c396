"""``process_guard_context`` and related functions: guards from declarations, or from a child's environment."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from democrai_sandbox import policy
from democrai_sandbox.policy import AccessRule, FileAccess, InvalidInputError, Problem, ResourceType, Subject
from democrai_sandbox.policy.paths import pattern_problem
from democrai_sandbox.policy.rules import rules_for_paths, rules_for_targets, rules_from_json, rules_to_json
from democrai_sandbox.policy.subjects import SubjectChain, chain_from_list, chain_to_list

from . import _core
from .interface import RawView, is_guarded
from .runtime_paths import OWNED, entry, program_places

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ._core import Guard, Policy

_PATH_MAX = 4096
_PROGRAM = ResourceType.SYSTEM_DEPENDENCY
_EXECUTE = int(FileAccess.EXECUTE)
_READ = FileAccess.READ
_WRITE = FileAccess.READ | FileAccess.CREATE | FileAccess.MODIFY | FileAccess.DELETE


def process_guard_context(
    *,
    subject: str,
    subject_kind: str = "module",
    allowed_paths: Iterable[str | os.PathLike[str]] = (),
    allowed_targets: Iterable[str] = (),
    access: Iterable[AccessRule | Mapping[str, object]] = (),
    allowed_imports: Iterable[str] = (),
    allow_subprocess: bool = False,
    include_runtime_paths: bool = True,
    user_id: Any = None,
    organization_id: Any = None,
    session_key: Any = None,
) -> Guard:
    """Return a guard for one activation of a subject: ``with``, ``async with``, or ``.run(callable)``.

    ``allowed_paths`` mean read, create, modify and delete; ``allowed_targets`` mean connect, receive and send.
    ``access`` takes rules or manifest entries. Inside a guard, contexts of the runtime merge with the enclosing guard.
    A context that guarded code opens can only narrow, and keeps the identity.
    """
    return make_guard(
        subject=subject,
        subject_kind=subject_kind,
        allowed_paths=allowed_paths,
        allowed_targets=allowed_targets,
        access=access,
        allowed_imports=allowed_imports,
        allow_subprocess=allow_subprocess,
        include_runtime_paths=include_runtime_paths,
        user_id=user_id,
        organization_id=organization_id,
        session_key=session_key,
        opened_by="process_guard_context",
    )


def exact_guard_context(
    *,
    subject: str,
    subject_kind: str,
    access: Iterable[AccessRule | Mapping[str, object]] = (),
    allowed_imports: Iterable[str] = (),
    include_runtime_paths: bool = True,
    user_id: Any = None,
    organization_id: Any = None,
    session_key: Any = None,
) -> Guard:
    """Return a guard that does not merge with its caller's: for a tool with an ``access`` list, or an MCP server."""
    return make_guard(
        subject=subject,
        subject_kind=subject_kind,
        access=access,
        allowed_imports=allowed_imports,
        include_runtime_paths=include_runtime_paths,
        user_id=user_id,
        organization_id=organization_id,
        session_key=session_key,
        exact=True,
    )


def network_policy_context(
    *,
    subject: str,
    subject_kind: str = "module",
    allowed_targets: Iterable[str] = (),
    access: Iterable[AccessRule | Mapping[str, object]] = (),
    user_id: Any = None,
    organization_id: Any = None,
    session_key: Any = None,
) -> Guard:
    """Return a guard for the network alone: files, imports and processes stay unchanged.

    ``process_guard_context`` also restricts the network; use this one if nothing else must be restricted.
    """
    return make_guard(
        subject=subject,
        subject_kind=subject_kind,
        allowed_targets=allowed_targets,
        access=access,
        user_id=user_id,
        organization_id=organization_id,
        session_key=session_key,
        network_only=True,
        opened_by="network_policy_context",
    )


def process_guard_bypass_context() -> Guard:
    """Return a context without a guard, for runtime internals.

    Entering it inside a guard is refused unless the calling code was registered with ``configure_guard``.
    """
    return _core.bypass()


def make_guard(
    *,
    user_id: Any = None,
    organization_id: Any = None,
    session_key: Any = None,
    exact: bool = False,
    **declarations: Any,
) -> Guard:
    """Return a guard from declarations; the compiled policy is cached."""
    return _core.guard(policy_of(**declarations), user_id, organization_id, session_key, exact)


def policy_of(**declarations: Any) -> Policy:
    """Return the compiled policy of declarations, cached.

    Arguments besides those of ``process_guard_context``: ``opened_by``, the public function that hints of denials name;
    ``ancestors``, the call chain that this subject continues; ``own_read`` and ``own_write``, paths that the runtime
    gives to this subject below protected paths.
    """
    key = _key(declarations)
    found = None if key is None else _core.recall(key)
    if found is None:
        found = _compile(**declarations)
        if key is not None:
            _core.remember(key, found)
    return found


def _key(declarations: dict[str, Any]) -> tuple[object, ...] | None:
    """Return a cache key of plain values, or None if a value is not plain; such declarations are compiled each time."""
    parts: list[object] = []
    for name, value in declarations.items():
        if type(value) in (list, tuple):
            items = tuple(_plain(item) for item in value)
            if None in items:
                return None
            parts.append((name, items))
        elif type(value) in (str, bool):
            parts.append((name, value))
        else:
            return None
    return tuple(parts)


def _plain(item: object) -> object:
    if type(item) is str or type(item) is AccessRule or type(item) is Subject:
        return item
    if type(item) is dict:
        values = tuple(_plain_value(value) for value in item.values())
        plain = None not in values and all(type(key) is str for key in item)
        return tuple(zip(item, values, strict=True)) if plain else None
    return os.fspath(item) if type(item).__module__.startswith("pathlib") and isinstance(item, os.PathLike) else None


def _plain_value(value: object) -> object:
    """Return a value of a manifest entry for a cache key: a text, or a list of texts such as operations."""
    if type(value) is list and all(type(part) is str for part in value):
        return tuple(value)
    return value if type(value) is str else None


def _compile(
    *,
    include_runtime_paths: bool = True,
    network_only: bool = False,
    opened_by: str = "",
    ancestors: SubjectChain = (),
    own_read: Iterable[str | os.PathLike[str]] = (),
    own_write: Iterable[str | os.PathLike[str]] = (),
    **declarations: Any,
) -> Policy:
    """Pass the policy to the core, which resolves links in the roots."""
    compiled = _checked(include_runtime_paths, own_read, own_write, **declarations)
    roots = [(path.encode("utf-8", "surrogateescape"), mask) for path, mask in compiled.file_entries]
    named = (rule.normalized_target for rule in compiled.rules if rule.resource_type is _PROGRAM)
    programs = [(path.encode("utf-8", "surrogateescape"), _EXECUTE) for name in named for path in program_places(name)]
    own = ((own_read, _READ), (own_write, _WRITE))
    owned = [entry(os.fspath(path), int(mask) | OWNED) for paths, mask in own for path in paths]
    for path, _ in roots:
        if len(path) >= _PATH_MAX:
            message = f"the path exceeds the limit of the system: {path[:40]!r}..."
            raise InvalidInputError.of(message, pointer="/allowed_paths")
    return _core.policy(
        subject=compiled.subject.name,
        kind=compiled.subject.kind.value,
        entries=(*roots, *programs, *owned, *_core.protected_entries(), *_core.read_only_entries()),
        imports=compiled.allowed_imports,
        allow_subprocess=compiled.allow_subprocess,
        include_runtime=include_runtime_paths,
        declared=rules_to_json(compiled.rules),
        ancestors=tuple(map(str, ancestors)),
        resolve=True,
        network=compiled.network_entries,
        network_only=network_only,
        opened_by=opened_by,
        named_programs=bool(programs),
    )


def _checked(
    include_runtime_paths: object,
    own_read: object,
    own_write: object,
    *,
    subject: str,
    subject_kind: str = "module",
    allowed_paths: object = (),
    allowed_targets: object = (),
    access: object = (),
    allowed_imports: Iterable[str] = (),
    allow_subprocess: bool = False,
) -> policy.CompiledPolicy:
    """Return the declared rights of a subject, or raise with all problems."""
    problems: list[Problem] = []
    if type(include_runtime_paths) is not bool:  # a text such as "false" would count as true
        what = f"expected bool, got {type(include_runtime_paths).__name__}"
        problems.append(Problem("/include_runtime_paths", what))
    rules: list[AccessRule] = []
    actor: Subject | None = None
    try:
        actor = Subject(subject_kind, subject)  # type: ignore[arg-type] # text is taken and checked
    except InvalidInputError as error:
        problems += error.problems
    for parse, value, pointer in (
        (_rules_without_patterns, allowed_paths, "/allowed_paths"),
        (rules_for_targets, allowed_targets, "/allowed_targets"),
        (partial(policy.parse_access, base=None), access, "/access"),
        (_rules_for_reading, own_read, "/own_read"),
        (rules_for_paths, own_write, "/own_write"),
    ):
        try:
            rules += parse(_sequence(value, pointer))
        except InvalidInputError as error:
            problems += error.problems
    if problems or actor is None:
        raise InvalidInputError(problems)
    return policy.compile_policy(
        subject=actor, rules=rules, allowed_imports=allowed_imports, allow_subprocess=allow_subprocess
    )


def _rules_for_reading(paths: list[Any]) -> tuple[AccessRule, ...]:
    return tuple(rule for rule in rules_for_paths(paths) if rule.operation == "read")


def _rules_without_patterns(paths: list[Any]) -> tuple[AccessRule, ...]:
    """Refuse paths that look like patterns, unless such a file exists. Guarded code can only narrow its rights."""
    rules = rules_for_paths(paths)
    problems = {rule.target: pattern_problem(rule.target, "/allowed_paths") for rule in rules}
    if any(problems.values()) and not is_guarded():
        found = [one for path, one in problems.items() if one is not None and not os.path.lexists(path)]
        if found:
            raise InvalidInputError(found)
    return rules


def _sequence(value: object, pointer: str) -> list[Any]:
    """Reject a single string, whose characters would each count as a path."""
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    raise InvalidInputError.of(f"expected a list, got {type(value).__name__}", pointer=pointer)


SUBJECT = "DEMOCRAI_NETWORK_SUBJECT"
SUBJECT_KIND = "DEMOCRAI_NETWORK_SUBJECT_KIND"
ACCESS = "DEMOCRAI_ACCESS"
SUBJECT_CHAIN = "DEMOCRAI_SUBJECT_CHAIN"
IDENTITY = {
    "user_id": "DEMOCRAI_USER_ID",
    "organization_id": "DEMOCRAI_ORGANIZATION_ID",
    "session_key": "DEMOCRAI_SESSION_KEY",
}


def environment_of(view: tuple[Any, ...], approved: Iterable[AccessRule] = ()) -> dict[str, str]:
    """Return the ``DEMOCRAI_*`` variables for a child of this guard state, with rules for its approvals."""
    raw = RawView(*view)
    kind, name = raw.actor
    declared = (rule for link in raw.allow_chain for rule in link.rules)
    rules = dict.fromkeys((*declared, *approved))
    made = {
        SUBJECT: name,
        SUBJECT_KIND: kind,
        ACCESS: rules_to_json(tuple(rules)),
        SUBJECT_CHAIN: json.dumps(chain_to_list(raw.chain)),
    }
    for attribute, variable in IDENTITY.items():
        value = getattr(raw, attribute)
        if value is not None:
            made[variable] = str(value)
    return made


def child_environment() -> dict[str, str]:
    """Return the ``DEMOCRAI_*`` variables for a child process of the active guard; empty without a guard."""
    view = _core.current_view()
    return {} if view is None else environment_of(view)


def process_guard_context_from_env(environ: Mapping[str, str] | None = None) -> Guard:
    """Return the guard that the parent's environment describes. A missing or malformed value is an error."""
    given = os.environ if environ is None else environ
    missing = [name for name in (SUBJECT, SUBJECT_KIND, ACCESS) if not given.get(name)]
    if missing:
        raise InvalidInputError([Problem(f"/{name}", "the variable is missing or empty") for name in missing])
    _check_subject(given)
    return make_guard(
        subject=given[SUBJECT],
        subject_kind=given[SUBJECT_KIND],
        access=rules_from_json(given[ACCESS], pointer=f"/{ACCESS}"),
        ancestors=_chain(given.get(SUBJECT_CHAIN)),
        user_id=given.get(IDENTITY["user_id"]),
        organization_id=given.get(IDENTITY["organization_id"]),
        session_key=given.get(IDENTITY["session_key"]),
    )


def _check_subject(given: Mapping[str, str]) -> None:
    """Name the variable instead of the argument in problems of the subject."""
    places = {"/kind": f"/{SUBJECT_KIND}", "/name": f"/{SUBJECT}"}
    try:
        Subject(given[SUBJECT_KIND], given[SUBJECT])  # type: ignore[arg-type] # text is taken and checked
    except InvalidInputError as error:
        moved = (replace(problem, pointer=places.get(problem.pointer, problem.pointer)) for problem in error.problems)
        raise InvalidInputError(moved) from None


def _chain(text: str | None) -> SubjectChain:
    if text is None:
        return ()
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInputError.of(f"not JSON: {error}", pointer=f"/{SUBJECT_CHAIN}") from None
    return chain_from_list(value, pointer=f"/{SUBJECT_CHAIN}")
