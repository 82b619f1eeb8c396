"""sympy: algebra, calculus, equations, lambdify and printing."""

from __future__ import annotations


def main(folder: str) -> object:
    import os
    import pickle

    import numpy as np
    import sympy as sp

    x, y = sp.symbols("x y")
    f = sp.Function("f")
    assert sp.diff(sp.sin(x) * sp.exp(x), x) == sp.exp(x) * sp.sin(x) + sp.exp(x) * sp.cos(x)
    integral = sp.integrate(x**2 * sp.exp(-x), (x, 0, sp.oo))
    fast = sp.lambdify((x, y), x**2 + sp.sqrt(y), "numpy")
    values = fast(np.array([1.0, 2.0]), 9.0)
    with_math = sp.lambdify(x, sp.sin(x) + 1, "math")
    parsed = sp.sympify("2*x + 3*x**2")
    matrix = sp.Matrix([[2, 1], [1, 3]])
    path = os.path.join(folder, "expression.pkl")
    with open(path, "wb") as file:
        pickle.dump(parsed, file)
    with open(path, "rb") as file:
        assert pickle.load(file) == parsed
    code = sp.ccode(sp.Piecewise((x, x > 0), (-x, True)))
    return {
        "integral": str(integral),
        "solve": [str(root) for root in sp.solve(x**2 - 5 * x + 6, x)],
        "system": str(sp.solve([x + y - 3, x - y - 1], [x, y])),
        "ode": str(sp.dsolve(f(x).diff(x) - f(x), f(x))),
        "limit": str(sp.limit(sp.sin(x) / x, x, 0)),
        "series": str(sp.series(sp.cos(x), x, 0, 5)),
        "factor": str(sp.factor(x**3 - 1)),
        "values": values.tolist(),
        "math": round(with_math(1.0), 6),
        "latex": sp.latex(sp.Integral(x**2, x)),
        "eigen": str(sorted(matrix.eigenvals().items(), key=str)),
        "pi": str(sp.pi.evalf(20)),
        "code": code,
        "primes": list(sp.primerange(20)),
    }
