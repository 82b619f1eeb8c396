"""numba: compiled functions, a ufunc, typed containers and a guarded error."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    os.environ["NUMBA_CACHE_DIR"] = os.path.join(folder, "cache")

    import numpy as np
    from numba import njit, typed, vectorize

    @njit
    def primes(limit: int) -> int:
        count = 0
        for number in range(2, limit):
            prime = True
            for divisor in range(2, int(number**0.5) + 1):
                if number % divisor == 0:
                    prime = False
                    break
            if prime:
                count += 1
        return count

    @vectorize(["float64(float64, float64)"])
    def clipped(a: float, b: float) -> float:
        return a if a < b else b

    @njit
    def total(values: list) -> float:
        result = 0.0
        for value in values:
            result += value
        return result

    @njit
    def dot(a: object, b: object) -> object:
        return a @ b

    @njit
    def strict(x: float) -> float:
        if x < 0:
            raise ValueError("negative")
        return np.sqrt(x)

    numbers = typed.List([1.5, 2.5, 3.0])
    matrix = np.arange(4.0).reshape(2, 2)
    try:
        strict(-1.0)
        error = ""
    except ValueError as problem:
        error = str(problem)
    assert primes(1000) == primes.py_func(1000) == 168
    return {
        "primes": primes(1000),
        "clipped": clipped(np.array([1.0, 5.0]), 3.0).tolist(),
        "total": total(numbers),
        "dot": dot(matrix, matrix).tolist(),
        "error": error,
        "signatures": [str(s) for s in primes.signatures],
    }
