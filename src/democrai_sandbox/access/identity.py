"""Who is asking or deciding, as the runtime's request context says; and who may decide."""

from __future__ import annotations

from dataclasses import dataclass

SUPER = "super"
"""The role, and the access level, that may decide."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity of a request that the runtime serves. Empty texts stand for what is not there."""

    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    role: str = ""
    access_level: str = ""
    task_id: str = ""

    @property
    def may_decide(self) -> bool:
        """Whether this user may approve and deny: present, not scoped to an organization, and super."""
        return bool(self.user_id) and not self.organization_id and SUPER in (self.role, self.access_level)
