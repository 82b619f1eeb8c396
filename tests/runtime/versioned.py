"""Runtime tests that run on every interpreter; the others depend on processes, sockets and the store."""

from __future__ import annotations

VERSIONED = {
    "attacks/": "attacks: frames, callbacks, futures and finders of the interpreter",
    "ai/test_attacks.py": "attacks on live objects between levels",
    "ai/test_nesting.py": "chains and guards follow the contexts of asyncio",
    "ai/test_schema.py": "schemas are derived with typing and inspect",
    "worker/test_attacks.py": "attacks on the guard in a bare interpreter",
    "worker/test_calls.py::test_what_a_worker_declares": "kinds of functions are told by their code objects",
    "worker/test_calls.py::test_a_cancelled_call": "cancellation in asyncio and in threads",
    "worker/test_codec.py::test_what_is_no_frame": "depth and digits that the interpreter's own JSON reader takes",
    "worker/test_confinement.py::test_the_guard_in_a_worker": "the guard in a bare interpreter",
    "worker/test_confinement.py::test_guarded_code_reaches": "attacks on frames, threads, the collector and the loop",
    "worker/test_confinement.py::test_two_workers": "the import system and start-up files",
    "worker/test_failures.py::test_what_cannot_be_carried": "recursion limits and exits",
    "worker/test_growth.py": "reference counts of the extension in C",
    "test_sdk_services.py": "what the extension in C tells about the guard in force",
    "test_guarded_access.py::test_guarded_code": "attacks on the decisions",
    "test_guarded_access.py::test_neither_threads": "attacks by what threads and modules lead to",
    "test_modules.py::test_render": "the import system",
    "test_modules.py::test_mischief": "exceptions, coroutines and context variables",
    "test_modules.py::test_calls_that_end": "guards follow the contexts of asyncio and threads",
    "test_modules.py::test_nothing_is_declared": "the import system",
}
"""Tests that depend on the interpreter's version, with the reason: prefixes of files, folders or test names."""
