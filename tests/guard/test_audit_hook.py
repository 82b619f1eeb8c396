"""The audit hook is installed and removed with the guards, unnoticed by other hooks."""

from __future__ import annotations

import gc
import marshal
import sys


def coming_and_going(world):
    """Return the events of the host's hook, and guarded refusals, over many first and last guards."""
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


def events_of_id(world):
    """Return the events of id() inside a guard, without another hook and with one."""
    import sys

    from democrai_sandbox import process_guard_context

    events = []
    thing = object()
    number = id(thing)

    def same():
        return id(thing) == number

    guard = process_guard_context(subject="demo", allowed_paths=[world.root])
    alone = guard.run(same)
    sys.addaudithook(lambda event, args: events.append(args) if event == "builtins.id" else None)
    watched = guard.run(same)
    return alone, watched, events == [(number,)]


def reading_code(world):
    """Return results of marshal.loads in guarded code, before and after the host adds a hook, and the hook's events."""
    from democrai_sandbox import process_guard_context

    def load() -> list[object]:
        content = marshal.dumps([1, "two"])
        results = [marshal.loads(content), marshal.loads(memoryview(content)), marshal.loads(bytearray(content))]
        for broken in (b"", content[:-1], b"?", memoryview(content)[::2]):
            try:
                results.append(marshal.loads(broken))
            except Exception as error:
                results.append(f"{type(error).__name__}: {error}")
        return results

    guard = process_guard_context(subject="demo", allowed_paths=[world.root])
    unguarded, alone = load(), guard.run(load)
    refused = [guard.run(world.verdict, gc.get_objects), gc.isenabled()]
    seen = []
    sys.addaudithook(lambda event, args: seen.append(bytes(args[0])) if event == "marshal.loads" else None)
    heard = guard.run(load)
    return {"same": unguarded == alone == heard, "refused": refused, "seen": len(seen)}


class TestHook:
    def test_it_is_there_for_every_guard_and_disturbs_no_other(self, case):
        """A hook of the host sees each event once, before, in and between guards; each guard has our hook below it."""
        assert case.run(coming_and_going) == {"seen": 202, "late": 2, "refused": ["TamperDenied"], "alive": 0}

    def test_code_is_read_as_without_a_guard_and_other_hooks_hear_of_it(self, case):
        """Without another hook the event is omitted; values, errors, our hook and the collector are unchanged."""
        assert case.run(reading_code) == {"same": True, "refused": ["TamperDenied", True], "seen": 6}

    def test_other_hooks_still_get_the_event_of_id(self, case):
        """Without another hook it is left out, because copies and imports call id() often."""
        assert case.run(events_of_id) == [True, True, True]
