"""A gang: each worker trains on its share of the data and all average their gradients over gloo, on CPUs. Needs the extra
`torch`. Fairlead starts the workers; by hand, start each with these variables and a RANK of its own:

    export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511
    for rank in 0 1; do RANK=$rank python examples/jobs/gang_gloo.py & done; wait
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import fairlead


def main() -> None:
    options = argparse.ArgumentParser(description="fit a line together")
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--points", type=int, default=1024)
    options.add_argument("--log", type=Path, help="append each step's number to this file, with .RANK added to its name")
    chosen = options.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    places = torch.linspace(-1, 1, chosen.points).unsqueeze(1)
    data = TensorDataset(places, 3 * places + 1)
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, seed=0))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def save(folder: Path) -> None:
        torch.save(model.state_dict(), folder / "model.pt")

    def load(folder: Path) -> None:
        model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))

    lease = fairlead.lease(loader, load=load, save=save, epochs=chosen.epochs)
    for place, height in lease:
        loss = torch.nn.functional.mse_loss(model(place), height)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        fairlead.report(loss=loss.item())
        if chosen.log:
            with chosen.log.with_name(f"{chosen.log.name}.{dist.get_rank()}").open("a") as log:
                log.write(f"{lease.steps}\n")
    rank = dist.get_rank()
    dist.destroy_process_group()
    lease.exit_if_yielded()
    if rank == 0:
        slope, height = model.module.weight.item(), model.module.bias.item()
        print(f"{lease.steps} steps: y = {slope:.2f} x + {height:.2f}")


if __name__ == "__main__":
    main()
