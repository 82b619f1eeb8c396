"""torch: tensors, autograd, a tiny training loop, save and load, and a script module."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, "inductor")

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    y = 3 * x + 0.5
    leaf = torch.tensor([2.0, 3.0], requires_grad=True)
    (leaf**2).sum().backward()
    assert leaf.grad.tolist() == [4.0, 6.0]

    model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, num_workers=0)
    losses = []
    for _ in range(30):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10

    path = os.path.join(folder, "model.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    other = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    other.load_state_dict(torch.load(path, weights_only=True)["model"])
    whole = os.path.join(folder, "whole.pt")
    torch.save(model, whole)
    again = torch.load(whole, weights_only=False)
    with torch.no_grad():
        assert torch.equal(other(x), model(x)) and torch.equal(again(x), model(x))

    traced = torch.jit.trace(model.eval(), x[:1])
    traced.save(os.path.join(folder, "traced.pt"))
    loaded = torch.jit.load(os.path.join(folder, "traced.pt"))
    image = nn.Conv2d(1, 2, 3)(torch.ones(1, 1, 5, 5))
    attention, _ = nn.MultiheadAttention(8, 2, batch_first=True)(*[torch.ones(1, 4, 8)] * 3)
    return {
        "loss": losses[-1] < 0.01,
        "traced": bool(torch.allclose(loaded(x), model(x))),
        "shapes": [list(image.shape), list(attention.shape)],
        "einsum": torch.einsum("ij,jk->ik", torch.eye(2), torch.full((2, 2), 2.0)).tolist(),
        "numpy": torch.from_numpy(x.numpy().copy()).sum().abs().item() < 1e-4,
        "sorted": torch.tensor([3, 1, 2]).sort().indices.tolist(),
    }
