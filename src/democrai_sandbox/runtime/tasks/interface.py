"""Interface that tasks need of the module runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from democrai_sandbox.access.identity import Caller
    from democrai_sandbox.policy import SubjectChain


class SurfaceRunner(Protocol):
    """Calls a function of a module under the module's guard; ``ModuleRuntime.call`` is one."""

    async def __call__(
        self,
        module: str,
        kind: str,
        name: str,
        params: dict[str, Any],
        caller: Caller,
        /,
        *,
        seconds: float | None = None,
        ancestors: SubjectChain = (),
    ) -> Any:
        """Return plain data, or raise an error of the sandbox."""
        ...
