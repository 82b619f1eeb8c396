"""dask: delayed functions, arrays and bags with the threaded scheduler."""

from __future__ import annotations


def main(folder: str) -> object:
    import os
    from concurrent.futures import ThreadPoolExecutor

    import dask
    import dask.array as da
    import dask.bag as db
    import numpy as np

    @dask.delayed
    def add(a: int, b: int) -> int:
        return a + b

    with ThreadPoolExecutor(2) as pool, dask.config.set(pool=pool, scheduler="threads"):
        total = add(add(1, 2), add(3, 4)).compute()
        assert total == 10
        both = dask.compute(add(1, 1), add(2, 2))
        array = da.arange(1000, chunks=100)
        mean = float((array**2).mean().compute())
        matrix = da.ones((20, 20), chunks=5)
        product = float((matrix @ matrix.T).sum().compute())
        path = os.path.join(folder, "stack")
        da.to_npy_stack(path, da.arange(10, chunks=5))
        stacked = da.from_npy_stack(path).sum().compute()
        bag = db.from_sequence(range(10), npartitions=2)
        even = bag.filter(lambda x: x % 2 == 0).map(lambda x: x * x).compute(scheduler="threads")
        words = db.from_sequence(["a b", "b c"]).map(str.split).flatten().frequencies()
        counts = dict(words.compute(scheduler="threads"))
        files = bag.map(str).to_textfiles(os.path.join(folder, "text-*.txt"), compute=False)
        dask.compute(*files)
        read = db.read_text(os.path.join(folder, "text-*.txt")).map(int).sum().compute(scheduler="threads")
        persisted = array[:10].persist()
    graph = {"x": 1, "y": (lambda x: x + 1, "x"), "z": (sum, ["x", "y"])}
    return {
        "total": total,
        "both": list(both),
        "mean": mean,
        "product": product,
        "stacked": int(stacked),
        "even": even,
        "counts": dict(sorted(counts.items())),
        "read": read,
        "persisted": persisted.compute(scheduler="sync").tolist(),
        "graph": dask.get(graph, "z"),
        "same": bool(np.array_equal(array.compute(scheduler="sync"), np.arange(1000))),
        "chunks": [list(c) for c in array.rechunk(250).chunks],
    }
