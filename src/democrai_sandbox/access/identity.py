"""Who is asking or deciding, as the runtime's request context says; and who may decide."""

from __future__ import annotations

from typing import NamedTuple, Self
from uuid import UUID

from democrai_sandbox.policy import InvalidInputError

SUPER = "super"
"""The role, and the access level, that may decide."""


class _Fields(NamedTuple):
    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    role: str = ""
    access_level: str = ""
    task_id: str = ""


class Caller(_Fields):
    """The identity of a request that the runtime serves. Empty texts stand for what is not there.

    A tuple, because it is handed out, and nobody who gets it may change it for others. Numbers become texts: an
    organization with the number 0 is one.
    """

    __slots__ = ()

    def __new__(cls, *fields: object, **named: object) -> Self:
        """Take texts, numbers and None; refuse what nobody could compare."""
        given = {**dict(zip(cls._fields, fields, strict=False)), **named}
        return super().__new__(cls, **{name: identity_text(value, name) for name, value in given.items()})

    @property
    def may_decide(self) -> bool:
        """Whether this user may approve and deny: present, not scoped to an organization, and super."""
        return bool(self.user_id) and not self.organization_id and SUPER in (self.role, self.access_level)


def identity_text(value: object, name: str) -> str:
    """Return part of an identity as a plain text; None is the empty one."""
    if value is None:
        return ""
    if isinstance(value, str):
        return str.__str__(value) if type(value) is str else "".join(value)
    if type(value) is int or isinstance(value, UUID):
        return str(value)
    raise InvalidInputError.of(f"expected a text, a number or nothing, got {type(value).__name__}", pointer=f"/{name}")
