"""matplotlib: a PNG, a PDF and an SVG with the Agg backend."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    os.environ["MPLCONFIGDIR"] = os.path.join(folder, "mpl")
    os.makedirs(os.environ["MPLCONFIGDIR"])

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    x = np.linspace(0, 6, 50)
    figure, (left, right) = plt.subplots(1, 2, figsize=(6, 3))
    left.plot(x, np.sin(x), label="sin")
    left.set_title(r"$\alpha^2$ and text")
    left.legend()
    right.bar(["a", "b", "c"], [1, 3, 2])
    right.imshow(np.arange(9).reshape(3, 3), extent=(0, 1, 0, 1), aspect="auto")
    figure.tight_layout()

    heads = {}
    for kind in ("png", "pdf", "svg"):
        path = os.path.join(folder, "plot." + kind)
        figure.savefig(path)
        with open(path, "rb") as file:
            heads[kind] = file.read(4).hex()
        assert os.path.getsize(path) > 2000
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())
    plt.close(figure)
    assert heads["pdf"] == b"%PDF".hex()
    return {"heads": heads, "shape": list(pixels.shape), "backend": matplotlib.get_backend().lower()}
