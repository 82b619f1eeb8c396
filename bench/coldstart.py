"""New process with a database full of decisions: print the nanoseconds from opening it to the first answer."""

from __future__ import annotations

import sys
from time import perf_counter_ns

from bench.decisions import APPROVED_URL, SUBJECT
from democrai_sandbox.access.checks import AccessService
from democrai_sandbox.access.events import open_bus
from democrai_sandbox.access.node import AccessNode
from democrai_sandbox.access.store import open_store
from democrai_sandbox.policy import Subject, SubjectKind


def main() -> None:
    """Start a node, check once, stop."""
    subject = Subject(SubjectKind.MODULE, SUBJECT)
    start = perf_counter_ns()
    store = open_store(sys.argv[1])
    node = AccessNode(store, open_bus("memory"))
    service = AccessService(node)
    node.start()
    answer = service.check_external_access(
        resource_type="network", operation="receive", target=APPROVED_URL, subject=subject
    )
    elapsed = perf_counter_ns() - start
    assert answer.allowed, answer
    print(elapsed, flush=True)
    node.stop()
    store.close()


if __name__ == "__main__":
    main()
