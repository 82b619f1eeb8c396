"""Collect the allowlist, write it, have the helper apply it, and remember what is in force."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from time import time
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import HelperFailed, KernelLayerError

from .policy_file import PolicyFile, digest_of, encoded

if TYPE_CHECKING:
    from democrai_sandbox.kernel.flow import FlowLog

    from .allowlist import Allowlist, AllowlistBuilder
    from .client import HelperClient

_WITHIN = 15.0
"""Timeout of one update in seconds, which includes resolving names."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Allowlist that the helper has applied."""

    allowlist: Allowlist
    digest: str
    pairs: frozenset[tuple[str, int]]
    """Addresses and ports known to be open."""
    answer: dict[str, Any]
    at: float


class Applying:
    """Update of the allowlist, one at a time. Any thread may read ``applied`` and ``error`` at any time."""

    def __init__(self, builder: AllowlistBuilder, file: PolicyFile, client: HelperClient, flow: FlowLog) -> None:
        """Store the parts."""
        self.applied: Applied | None = None
        self.error: KernelLayerError | None = None
        """Error of the last attempt; the previously applied allowlist stays in force."""
        self.failures = 0
        """Number of failed attempts since the start."""
        self._builder = builder
        self._file = file
        self._client = client
        self._flow = flow
        self._one_at_a_time = threading.Lock()

    def write(self) -> None:
        """Write the current allowlist without applying it: the helper reads the file when it starts."""
        with self._one_at_a_time:
            self._file.write(encoded(self._builder.build().endpoints))

    def run(self, reason: str, *, force: bool, pid: int | None = None) -> Applied:
        """Apply the current allowlist; skip an unchanged one unless ``force`` is set."""
        with self._one_at_a_time:
            try:
                self.applied = self._run(reason, force=force, pid=pid)
            except KernelLayerError as error:
                self.error = error
                self.failures += 1
                self._flow("egress.failed", reason=reason, error=str(error))
                raise
            self.error = None
            return self.applied

    def _run(self, reason: str, *, force: bool, pid: int | None) -> Applied:
        allowlist = self._builder.build()
        content = encoded(allowlist.endpoints)
        digest = digest_of(content)
        last = self.applied
        if last is not None and last.digest == digest and self.error is None and not force:
            self._flow("egress.unchanged", reason=reason, endpoints=len(allowlist.endpoints))
            return replace(last, allowlist=allowlist)
        self._file.write(content)
        answer = self._client.apply(pid, timeout=_WITHIN)
        if answer.get("digest", digest) != digest:
            raise HelperFailed(
                f"the helper read a different policy from {self._file.path} than this process wrote",
                fix="use a separate policy file per application: put {pid} into sandbox.os.policy_file",
                reason="policy_replaced",
            )
        self._flow(
            "egress.applied",
            reason=reason,
            endpoints=len(allowlist.endpoints),
            addresses=answer.get("addresses"),
            unresolved=answer.get("unresolved"),
            failed_sources=[source.name for source in allowlist.failed_sources],
            chains=answer.get("chains"),
            seconds=answer.get("seconds"),
        )
        return Applied(allowlist, digest, allowlist.pairs(), answer, time())
