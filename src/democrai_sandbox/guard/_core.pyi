from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple, Self, TypeVar, final

_T = TypeVar("_T")

@final
class Policy: ...

class AccessQuestion(NamedTuple):
    """May this subject do this? All of it comes from the guard's state, nothing from the code that is guarded."""

    subject: str
    subject_kind: str
    subject_chain: tuple[str, ...]
    resource_type: str
    operation: str
    target: str
    register_request: bool
    user_id: Any
    organization_id: Any
    session_key: Any

@final
class Guard:
    """One activation of a policy: with, async with, or run(callable)."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> bool: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *args: object) -> bool: ...
    def run(self, function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T: ...

def setup(
    *,
    denial_factory: Callable[..., BaseException] = ...,
    usage_error: type[BaseException] = ...,
    child_environment: Callable[[tuple[Any, ...]], dict[str, str]] = ...,
    decider: Callable[[AccessQuestion], bool] = ...,
    recorder: Callable[..., None] = ...,
    facade_files: frozenset[str] = ...,
    sensitive_roots: frozenset[str] = ...,
    protected: tuple[tuple[bytes, int], ...] = ...,
    runtime_policy: Policy = ...,
    code_policy: Policy = ...,
    runtime_code: list[CodeType] = ...,
    check_failed: type[BaseException] = ...,
    handle_code: CodeType = ...,
) -> None: ...
def policy(
    *,
    subject: str,
    kind: str,
    entries: tuple[tuple[bytes, int], ...],
    imports: frozenset[str],
    allow_subprocess: bool,
    include_runtime: bool,
    declared: str,
    ancestors: tuple[str, ...],
    resolve: bool,
) -> Policy: ...
def guard(policy: Policy, user_id: Any, organization_id: Any, session_key: Any, exact: bool) -> Guard: ...
def bypass() -> Guard: ...
def bind_foreign(callback: _T, context: object, /) -> _T: ...
def recall(key: tuple[object, ...]) -> Policy | None: ...
def remember(key: tuple[object, ...], policy: Policy) -> None: ...
def protected_entries() -> tuple[tuple[bytes, int], ...]: ...
def sensitive_roots() -> frozenset[str]: ...
def current_view() -> tuple[Any, ...] | None: ...
def recent() -> list[tuple[Any, ...]]: ...
def live_states() -> int:
    """Count the guard states that are alive in this process."""

def is_sealed() -> bool: ...
def patched_entries() -> list[tuple[str, str, str, bool]]:
    """List every builtin of the patch table: module, type, name, and whether this interpreter has it patched."""

def mask(policy: Policy, path: bytes) -> int: ...
