"""Resource types, operations, access masks, and the decision of a check."""

from __future__ import annotations

from enum import IntFlag, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self

from .problems import InvalidInputError, nearest
from .text import exact_str

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


IMPORT = "import"
"""In the place of a resource type, where accesses are recorded: the root of a sensitive import. No rule has it."""


class ResourceType(StrEnum):
    """Resource type of a rule. A URL is a *target* of the network, not a type."""

    NETWORK = "network"
    FILESYSTEM = "filesystem"
    SYSTEM_DEPENDENCY = "system_dependency"


class Operation(StrEnum):
    """Operation on a resource. Operations do not include each other."""

    CONNECT = "connect"
    RECEIVE = "receive"
    SEND = "send"
    READ = "read"
    CREATE = "create"
    MODIFY = "modify"
    DELETE = "delete"
    EXECUTE = "execute"


NETWORK_OPERATIONS = (Operation.CONNECT, Operation.RECEIVE, Operation.SEND)
"""Every network operation; the meaning of the ``allowed_targets`` shorthand."""

WRITING_OPERATIONS = (Operation.READ, Operation.CREATE, Operation.MODIFY, Operation.DELETE)
"""Meaning of the ``allowed_paths`` shorthand: all file operations except execution."""

VALID_OPERATIONS: Mapping[ResourceType, tuple[Operation, ...]] = MappingProxyType(
    {
        ResourceType.NETWORK: NETWORK_OPERATIONS,
        ResourceType.FILESYSTEM: (*WRITING_OPERATIONS, Operation.EXECUTE),
        ResourceType.SYSTEM_DEPENDENCY: (Operation.EXECUTE,),
    }
)
"""Valid operations of each resource type."""


class FileAccess(IntFlag):
    """Filesystem operations as bits. The native core uses exactly these values; never renumber them."""

    READ = 1
    CREATE = 2
    MODIFY = 4
    DELETE = 8
    EXECUTE = 16


NO_ACCESS = FileAccess(0)
EVERY_ACCESS = FileAccess.READ | FileAccess.CREATE | FileAccess.MODIFY | FileAccess.DELETE | FileAccess.EXECUTE


class NetworkAccess(IntFlag):
    """Network operations as bits. The native core uses exactly these values; never renumber them."""

    CONNECT = 1
    RECEIVE = 2
    SEND = 4


_RECEIVING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def is_valid_operation(resource_type: ResourceType, operation: Operation) -> bool:
    """Return whether the operation exists for that resource type."""
    return operation in VALID_OPERATIONS[resource_type]


def file_access(operations: Operation | Iterable[Operation]) -> FileAccess:
    """Return the mask of filesystem operations; raises ``ValueError`` for other operations."""
    mask = NO_ACCESS
    for operation in (operations,) if isinstance(operations, Operation) else operations:
        if operation not in VALID_OPERATIONS[ResourceType.FILESYSTEM]:
            raise ValueError(f"{operation!s} is not a filesystem operation")
        mask |= FileAccess[operation.upper()]
    return mask


def network_access(operation: Operation) -> NetworkAccess:
    """Return the bit of a network operation; raises ``ValueError`` for other operations."""
    if operation not in NETWORK_OPERATIONS:
        raise ValueError(f"{operation!s} is not a network operation")
    return NetworkAccess[operation.upper()]


def http_operation(method: str) -> Operation:
    """Return the operation of an HTTP method: GET, HEAD and OPTIONS receive, every other method sends.

    Case is folded for ASCII only: ``str.upper`` would turn U+017F into an ``S`` and an unknown method into OPTIONS.
    """
    text = exact_str(method)
    if text is not None and text.isascii() and text.upper() in _RECEIVING_METHODS:
        return Operation.RECEIVE
    return Operation.SEND


_PAIRS = MappingProxyType(
    {(str(kind), str(act)): (kind, act) for kind, acts in VALID_OPERATIONS.items() for act in acts}
)


def read_operation(resource_type: object, operation: object) -> tuple[ResourceType, Operation]:
    """Parse a resource type and operation, or raise with the nearest valid name."""
    if isinstance(resource_type, str) and isinstance(operation, str):
        found = _PAIRS.get((resource_type, operation))
        if found is not None:
            return found
    kind = _one_of(resource_type, tuple(ResourceType), "resource_type")
    return ResourceType(kind), Operation(_one_of(operation, VALID_OPERATIONS[ResourceType(kind)], "operation"))


def _one_of(value: object, choices: tuple[str, ...], name: str) -> str:
    if isinstance(value, str) and value in choices:
        return str(value)
    what = repr(value) if isinstance(value, str) else type(value).__name__
    suggestion = nearest(value, map(str, choices)) if isinstance(value, str) else None
    message = f"unknown {name.replace('_', ' ')} {what[:100]}; one of: {', '.join(map(str, choices))}"
    raise InvalidInputError.of(message, pointer=f"/{name}", suggestion=suggestion)


EXTERNAL_URL_LOCKED = "External URL is locked."
"""Message for a network target that is not enabled."""


class DecisionCode(StrEnum):
    """Reason for the result of a check."""

    SANDBOX_ALLOWLIST = "sandbox_allowlist"
    SESSION_APPROVAL = "session_approval"
    PERMANENT_APPROVAL = "permanent_approval"
    DENIED = "denied"
    PENDING = "pending"
    NOT_ENABLED = "not_enabled"

    @property
    def allows(self) -> bool:
        """Whether a decision with this code allows the operation."""
        return self in _ALLOWING


_ALLOWING = frozenset({DecisionCode.SANDBOX_ALLOWLIST, DecisionCode.SESSION_APPROVAL, DecisionCode.PERMANENT_APPROVAL})


class _AccessDecisionFields(NamedTuple):
    allowed: bool
    code: DecisionCode
    requires_approval: bool
    message: str
    request_id: str | None = None


class AccessDecision(_AccessDecisionFields):
    """Result of ``check_external_access``, consistent and immutable.

    ``request_id`` is the pending request, if one exists. The class is a tuple because ``object.__setattr__`` can change
    a frozen dataclass, and a cached result could then be changed by its first receiver.
    """

    __slots__ = ()

    def __new__(
        cls,
        allowed: bool,  # noqa: FBT001 - the fields of a tuple
        code: DecisionCode,
        requires_approval: bool,  # noqa: FBT001 - likewise
        message: str,
        request_id: str | None = None,
    ) -> Self:
        """Reject a decision whose fields contradict each other."""
        if (type(allowed), type(code), type(requires_approval)) != (bool, DecisionCode, bool):
            raise TypeError("a decision needs two bools and a DecisionCode")
        if allowed is not code.allows:
            raise ValueError(f"a decision with the code {code} cannot have allowed={allowed}")
        if allowed and (requires_approval or request_id is not None):
            raise ValueError("an allowed operation cannot require approval or have a pending request")
        return super().__new__(cls, allowed, code, requires_approval, message, request_id)
