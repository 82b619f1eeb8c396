"""scipy: optimisation, statistics, sparse matrices, signals, and files."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import numpy as np
    from scipy import integrate, interpolate, io, linalg, optimize, signal, sparse, spatial, special, stats

    best = optimize.minimize(lambda x: (x[0] - 1) ** 2 + (x[1] + 2) ** 2, [0.0, 0.0], method="BFGS")
    assert np.allclose(best.x, [1, -2], atol=1e-4)
    root = optimize.brentq(lambda x: x**3 - 2, 0, 2)
    area, _ = integrate.quad(np.sin, 0, np.pi)
    decay = integrate.solve_ivp(lambda t, y: -y, (0, 1), [1.0], rtol=1e-8)
    curve = interpolate.CubicSpline([0, 1, 2, 3], [0, 1, 4, 9])
    test = stats.ttest_ind([1, 2, 3, 4, 5], [2, 3, 4, 5, 7])

    matrix = sparse.random(20, 20, density=0.2, random_state=1, format="csr") + sparse.identity(20, format="csr")
    solved = sparse.linalg.spsolve(matrix.tocsc(), np.ones(20))
    assert np.allclose(matrix @ solved, 1)
    path = os.path.join(folder, "matrix.npz")
    sparse.save_npz(path, matrix)
    assert sparse.load_npz(path).nnz == matrix.nnz

    mat = os.path.join(folder, "data.mat")
    io.savemat(mat, {"values": np.arange(6).reshape(2, 3)})
    assert io.loadmat(mat)["values"].shape == (2, 3)

    top, bottom = signal.butter(3, 0.2)
    tree = spatial.KDTree(np.arange(20.0).reshape(10, 2))
    return {
        "root": round(root, 6),
        "area": round(area, 6),
        "decay": round(float(decay.y[0, -1]), 5),
        "curve": round(float(curve(1.5)), 6),
        "p": round(float(test.pvalue), 6),
        "filter": [round(float(v), 6) for v in top],
        "nearest": int(tree.query([5.1, 6.2])[1]),
        "gamma": round(float(special.gamma(4.5)), 6),
        "det": round(float(linalg.det(np.array([[1.0, 2.0], [3.0, 4.0]]))), 6),
    }
