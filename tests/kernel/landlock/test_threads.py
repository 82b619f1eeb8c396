"""Threads: the kernel restricts the calling thread and those that it starts."""

from __future__ import annotations

from democrai_sandbox.kernel.landlock import ruleset as applying


def threads_from_before(w, count):
    import threading

    go, done, outcomes = threading.Event(), threading.Semaphore(0), {}

    def work(name):
        go.wait(40)
        outcomes[name] = w.tried(open, w.secret)
        done.release()

    for number in range(count):
        threading.Thread(target=work, args=(f"before {number}",), daemon=True).start()
    status = w.confine()
    threading.Thread(target=work, args=("after",), daemon=True).start()
    go.set()
    for _ in range(count + 1):
        done.acquire(timeout=40)
    outcomes["itself"] = w.tried(open, w.secret)
    return status.as_dict(), outcomes


def test_threads_that_existed_before_make_it_partial(ground):
    """They keep all their rights, so the status counts them and has a fix."""
    status, outcomes = ground.run(threads_from_before, 2)
    assert outcomes == {"before 0": "ok", "before 1": "ok", "after": "EACCES", "itself": "EACCES"}
    assert status["state"] == "partial"
    assert "2" in status["reason"] and status["fix"] == applying._FIX_THREADS
    assert (status["details"]["threads"], status["details"]["threads_covered"]) == (3, 1)


def test_with_one_thread_everything_is_covered(ground):
    """Threads that start later have the same rules."""
    status, outcomes = ground.run(threads_from_before, 0)
    assert outcomes == {"after": "EACCES", "itself": "EACCES"}
    assert status["state"] == "active"
    assert (status["details"]["threads"], status["details"]["threads_covered"]) == (1, 1)


def a_newer_kernel(w, known):
    """Kernel with ABI 8, which can cover all threads: simulated by a compiled module that records the flags."""
    import errno
    import threading
    from types import SimpleNamespace

    from democrai_sandbox.kernel import _native
    from democrai_sandbox.kernel.landlock import rights
    from democrai_sandbox.kernel.landlock import ruleset as applying
    from democrai_sandbox.kernel.landlock.rights import LandlockSupport

    calls = []

    def restrict(ruleset, flags=0):
        calls.append(flags)
        if flags and not known:
            raise OSError(errno.EINVAL, "no such flag")

    found = {name: getattr(_native, name) for name in ("landlock_create", "landlock_add_path", "landlock_add_port")}
    rights.native_module = lambda: SimpleNamespace(**found, landlock_restrict=restrict)
    threading.Thread(target=threading.Event().wait, args=(40,), daemon=True).start()
    plan = w.RulesetPlan((w.PathRule(str(w.inside), w.WRITE),))
    newer = applying.apply(plan, support=LandlockSupport(7, 8))
    forced = applying.apply(plan, support=LandlockSupport(7, 8, forced=True))
    return calls, newer.as_dict(), forced.as_dict()


def test_threads_are_taken_along_only_where_the_kernel_says_it_can(ground):
    """The flag is used from ABI 8 on, never on an older kernel or one that is treated as older."""
    calls, newer, forced = ground.run(a_newer_kernel, True)
    assert calls == [8, 0]
    assert (newer["state"], newer["details"]["threads_covered"]) == ("active", 2)
    assert (forced["state"], forced["details"]["threads_covered"]) == ("partial", 1)


def test_a_flag_that_is_refused_after_all_is_not_counted_as_done(ground):
    """Then only the calling thread is restricted, and the status reports that."""
    calls, newer, _ = ground.run(a_newer_kernel, False)
    assert calls[:2] == [8, 0]
    assert (newer["state"], newer["details"]["threads_covered"]) == ("partial", 1)
