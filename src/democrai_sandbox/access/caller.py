"""Identity of the caller, taken from the runtime's request context, and the right to decide."""

from __future__ import annotations

from typing import NamedTuple, Self
from uuid import UUID

from democrai_sandbox.policy import InvalidInputError

SUPER = "super"
"""Role or access level that may decide."""


class _CallerFields(NamedTuple):
    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    role: str = ""
    access_level: str = ""
    task_id: str = ""


class Caller(_CallerFields):
    """Identity of the caller that the runtime serves. Missing parts are empty texts.

    The identity is an immutable tuple, because it is shared. Numbers become texts, so that organization 0 is not empty.
    """

    __slots__ = ()

    def __new__(cls, *fields: object, **named: object) -> Self:
        """Accept texts, numbers, UUIDs and None; reject other types."""
        given = {**dict(zip(cls._fields, fields, strict=False)), **named}
        return super().__new__(cls, **{name: identity_text(value, name) for name, value in given.items()})

    @property
    def may_decide(self) -> bool:
        """Whether this user may approve and deny: a known user without an organization, with super rights."""
        return bool(self.user_id) and not self.organization_id and SUPER in (self.role, self.access_level)


def identity_text(value: object, name: str) -> str:
    """Return a part of an identity as a plain text; None becomes an empty text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return str.__str__(value) if type(value) is str else "".join(value)
    if type(value) is int or isinstance(value, UUID):
        return str(value)
    raise InvalidInputError.of(f"expected a text, a number or None, got {type(value).__name__}", pointer=f"/{name}")
