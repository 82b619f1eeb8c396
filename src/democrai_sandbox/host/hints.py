"""Hints of denials for accesses that have not happened."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.errors import FilesystemDenied, NetworkDenied, SandboxDenied, fixes
from democrai_sandbox.policy import EXTERNAL_URL_LOCKED, AccessDecision, DecisionCode, ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.access.values import AccessTuple, Request


class _ProgramDenied(SandboxDenied):
    """Undeclared program. The service reports it to the caller without an exception."""

    @property
    def hint(self) -> str:
        """Manifest entry and approval call."""
        wanted = {"resource_type": "system_dependency", "operation": self.operation, "target": self.target}
        return (
            f"Add to {self._place('access')}:\n  {json.dumps(wanted)}\n"
            f"Or request approval: {fixes.asking('system_dependency', self.operation, self.target)}"
        )


_DENIALS: Mapping[ResourceType, type[SandboxDenied]] = MappingProxyType(
    {
        ResourceType.FILESYSTEM: FilesystemDenied,
        ResourceType.NETWORK: NetworkDenied,
        ResourceType.SYSTEM_DEPENDENCY: _ProgramDenied,
    }
)


def hint_for(access: AccessTuple, pending: Request | None = None, *, installing: bool = False) -> str:
    """Return the hint of the denial for this access, which mentions a pending request."""
    subject = access.subject
    denial = _DENIALS[access.resource_type](
        access.target,
        subject=subject.name,
        subject_kind=subject.kind.value,
        chain=(str(subject),),
        operations=(access.operation.value,),
        installing=installing,
    )
    if pending is None:
        return denial.hint
    if isinstance(denial, NetworkDenied):
        denial.decision = AccessDecision(
            allowed=False,
            code=DecisionCode.PENDING,
            requires_approval=True,
            message=EXTERNAL_URL_LOCKED,
            request_id=pending.id,
        )
        return denial.hint
    return f"{fixes.WAITING.format(request=pending.id)}\n{denial.hint}"
