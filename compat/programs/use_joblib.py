"""joblib: a memory cache in the folder, threads, and saved objects."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import joblib
    import numpy as np
    from joblib import Memory, Parallel, delayed

    calls = []
    memory = Memory(os.path.join(folder, "cache"), verbose=0)

    @memory.cache
    def slow(x: int) -> int:
        calls.append(x)
        return x * x

    assert [slow(2), slow(2), slow(3)] == [4, 4, 9] and calls == [2, 3]
    cached = slow.check_call_in_cache(2)
    slow.clear(warn=False)
    again = slow(2)

    threads = Parallel(n_jobs=2, backend="threading")(delayed(pow)(2, n) for n in range(5))
    one = Parallel(n_jobs=1)(delayed(len)("x" * n) for n in range(3))
    lazy = Parallel(n_jobs=2, backend="threading", return_as="generator")(delayed(abs)(-n) for n in range(4))

    data = {"array": np.arange(1000), "text": "caf\u00e9", "list": [1, 2]}
    sizes = {}
    for name in ("plain.joblib", "small.joblib.gz", "small.joblib.xz"):
        path = os.path.join(folder, name)
        joblib.dump(data, path)
        loaded = joblib.load(path)
        assert np.array_equal(loaded["array"], data["array"]) and loaded["text"] == data["text"]
        sizes[name] = os.path.getsize(path) < 9000
    mapped = joblib.load(os.path.join(folder, "plain.joblib"), mmap_mode="r")["array"]
    return {
        "cached": cached,
        "again": [again, calls],
        "threads": threads,
        "one": one,
        "lazy": list(lazy),
        "sizes": sizes,
        "mapped": [type(mapped).__name__, int(mapped.sum())],
        "hash": joblib.hash({"a": 1, "b": [1, 2]}),
    }
