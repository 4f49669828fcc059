"""A real training job, small enough for a CPU: a two-layer network learns to separate two spirals. Needs the extra `torch`.

python examples/jobs/train_torch.py --epochs 20
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import fairlead


def spirals(points: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    arm = torch.arange(points) % 2
    turn = torch.rand(points, generator=generator) * 2
    angle = turn * math.pi + arm * math.pi
    places = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1)
    return TensorDataset(places + 0.05 * torch.randn(points, 2, generator=generator), arm)


def main() -> None:
    options = argparse.ArgumentParser(description="train a small network on the CPU")
    options.add_argument("--epochs", type=int, default=20)
    options.add_argument("--points", type=int, default=2048)
    options.add_argument("--batch-size", type=int, default=64)
    options.add_argument("--save-every-s", type=float, default=30.0)
    options.add_argument("--log", type=Path, help="append each step's loss to this file")
    options.add_argument("--directory", type=Path, help="where checkpoints go outside Fairlead")
    chosen = options.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = spirals(chosen.points)
    # Its order depends on the seed and the epoch alone, so a later launch finds the same batches. The lease sets the epoch.
    sampler = DistributedSampler(data, num_replicas=1, rank=0, seed=0)
    loader = DataLoader(data, batch_size=chosen.batch_size, sampler=sampler)
    model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def save(folder: Path) -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "model.pt")

    def load(folder: Path) -> None:
        state = torch.load(folder / "model.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    lease = fairlead.lease(
        loader, load=load, save=save, epochs=chosen.epochs, every_s=chosen.save_every_s, directory=chosen.directory
    )
    for places, arm in lease:
        loss = torch.nn.functional.cross_entropy(model(places), arm)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        fairlead.report(loss=loss.item())
        if chosen.log:
            with chosen.log.open("a") as log:
                log.write(f"{lease.steps} {loss.item()!r}\n")
    lease.exit_if_yielded()
    places, arm = data.tensors
    right = (model(places).argmax(dim=1) == arm).float().mean().item()
    fairlead.report(accuracy=right)
    print(f"{lease.steps} steps, {right:.1%} of the points on the right spiral")


if __name__ == "__main__":
    main()
