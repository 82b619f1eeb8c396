"""A context without a guard is checked again once it has one."""

from __future__ import annotations

import asyncio
import contextvars
import threading


def known_clean(world):
    """Run from one context, before, inside and after a guard that only the context carries."""
    from democrai_sandbox import current_guard, process_guard_context

    kept = process_guard_context(subject="other").run(contextvars.copy_context)  # keeps a state alive meanwhile

    def look():
        guard = current_guard()
        return [guard.subject if guard else None, world.can_read()]

    async def task():
        seen = []
        for _ in range(3):
            seen.append(contextvars.copy_context().run(look))
            with process_guard_context(subject="demo", allowed_paths=[world.root]):
                seen.append(contextvars.Context().run(look))
                await asyncio.sleep(0)
                seen.append(contextvars.Context().run(look))
        return seen

    def in_thread():
        here.append(shared.run(contextvars.Context().run, look))

    shared, here = contextvars.Context(), []
    shared.run(contextvars.Context().run, look)
    worker = threading.Thread(target=in_thread)
    worker.start()
    worker.join()
    return asyncio.run(task()), here, kept is not None


class TestCleanContext:
    def test_a_guard_in_a_context_that_was_clean_holds(self, case):
        """However often the context was found clean, code that runs from it under a guard is guarded."""
        seen, elsewhere, _ = case.run(known_clean)
        free, guarded = [None, "ok"], ["demo", "FilesystemDenied"]
        assert seen == [free, guarded, guarded] * 3
        assert elsewhere == [free]
