"""diskcache: a cache, memoised functions, a deque, an index and a lock."""

from __future__ import annotations


def main(folder: str) -> object:
    import os
    import time

    from diskcache import Cache, Deque, FanoutCache, Index, Lock

    calls = []
    with Cache(os.path.join(folder, "cache"), size_limit=10**6) as cache:
        cache["a"] = {"nested": [1, 2]}
        cache.set("tagged", 1, tag="t")
        cache.set("short", 1, expire=0.01)
        cache["large"] = b"x" * 100_000
        cache.incr("count", 5)
        time.sleep(0.05)

        @cache.memoize(name="double")
        def double(x: int) -> int:
            calls.append(x)
            return x * 2

        assert [double(3), double(3)] == [6, 6] and calls == [3]
        with cache.transact():
            cache["b"] = 2
        with cache.read("large") as file:
            large = len(file.read())
        with Lock(cache, "lock"):
            locked = "lock" in cache
        result = {
            "a": cache["a"],
            "short": cache.get("short"),
            "count": cache["count"],
            "evicted": cache.evict("t"),
            "popped": cache.pop("b"),
            "large": large,
            "locked": locked,
            "check": len(cache.check()),
            "keys": sorted(str(key) for key in cache if isinstance(key, str)),
        }
    with Cache(os.path.join(folder, "cache")) as again:
        result["again"] = again["a"]["nested"]
    deque = Deque([1, 2, 3], directory=os.path.join(folder, "deque"))
    deque.rotate(1)
    index = Index(os.path.join(folder, "index"), {"x": 1, "y": 2})
    with FanoutCache(os.path.join(folder, "fanout"), shards=2) as fanout:
        fanout["k"] = "v"
        result["fanout"] = fanout["k"]
    result["deque"] = list(deque)
    result["index"] = [list(item) for item in index.items()]
    deque.cache.close()
    index.cache.close()
    return result
