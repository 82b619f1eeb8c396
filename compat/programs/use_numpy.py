"""numpy: arrays, linear algebra, and a file."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import numpy as np

    rng = np.random.default_rng(7)
    matrix = rng.normal(size=(4, 4))
    solution = np.linalg.solve(matrix, np.arange(4.0))
    assert np.allclose(matrix @ solution, np.arange(4.0))
    values = np.linalg.eigvalsh(matrix @ matrix.T)
    assert np.all(values > 0)

    path = os.path.join(folder, "arrays.npz")
    np.savez_compressed(path, matrix=matrix, solution=solution)
    with np.load(path) as data:
        assert np.array_equal(data["matrix"], matrix)

    text = os.path.join(folder, "table.txt")
    np.savetxt(text, matrix, delimiter=",")
    assert np.allclose(np.loadtxt(text, delimiter=","), matrix)

    mapped = np.memmap(os.path.join(folder, "mapped.bin"), dtype="int32", mode="w+", shape=(10,))
    mapped[:] = np.arange(10)
    mapped.flush()

    objects = os.path.join(folder, "objects.npy")
    np.save(objects, np.array([{"a": 1}, [1, 2]], dtype=object), allow_pickle=True)
    loaded = np.load(objects, allow_pickle=True)
    assert loaded[0] == {"a": 1}

    spectrum = np.abs(np.fft.rfft(np.sin(np.linspace(0, 20, 64))))
    records = np.array([(1, "x"), (2, "y")], dtype=[("id", "i4"), ("name", "U4")])
    return {
        "values": [round(float(v), 6) for v in values],
        "peak": int(spectrum.argmax()),
        "sum": int(mapped.sum()),
        "names": records["name"].tolist(),
        "einsum": round(float(np.einsum("ij,ji->", matrix, matrix)), 6),
    }
