"""The audit hook comes and goes with the guards; nobody else's hook notices."""

from __future__ import annotations

import gc
import sys


def coming_and_going(world):
    """Events of the host's own hook, and what guarded code is refused, over many first and last guards."""
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.guard import live_states

    seen = []
    sys.addaudithook(lambda event, _: seen.append(event) if event == "test.event" else None)
    guard = process_guard_context(subject="demo", allowed_paths=[world.root])
    refused = []
    for _ in range(100):
        sys.audit("test.event")
        refused.append(guard.run(world.verdict, gc.get_objects))
        guard.run(sys.audit, "test.event")
    late = []
    sys.addaudithook(lambda event, _: late.append(event) if event == "test.event" else None)
    guard.run(sys.audit, "test.event")
    sys.audit("test.event")
    return {"seen": len(seen), "late": len(late), "refused": sorted(set(refused)), "alive": live_states()}


class TestHook:
    def test_it_is_there_for_every_guard_and_disturbs_no_other(self, case):
        """A hook of the host sees each event once, before, in and between guards; each guard has ours below it."""
        assert case.run(coming_and_going) == {"seen": 202, "late": 2, "refused": ["TamperDenied"], "alive": 0}
