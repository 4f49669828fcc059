"""Memory of each worker of DDP and FSDP, measured with several processes on one GPU, which talk through Gloo.

python -m fairlead_papers.prediction.measure_workers --out workers.jsonl

Memory per worker does not depend on the transport, apart from its own buffers; speeds do, and are not measured. With FSDP
(fully_shard), a block is a member of an outermost list of alike modules, as in predictions."""

from __future__ import annotations

import argparse
import json
import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing

from fairlead_papers.prediction.measure_steps import DeviceStep

TRAININGS = (
    "bert-base@128:8/fp32",
    "bert-large@256:16/bf16",
    "gpt2@512:8/bf16",
    "llama-150m@512:8/bf16",
    "llama-1b@512:2/bf16",
    "qwen3-100m@512:8/bf16",
    "t5-small@256:16/bf16",
)
_MB = 2**20


def main() -> None:
    """Measure each training with each number of workers, and write one line each."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--trainings", default=",".join(TRAININGS))
    options.add_argument("--workers", default="2,4")
    chosen = options.parse_args()
    for name in chosen.trainings.split(","):
        for sharding in ("ddp", "fsdp"):
            for workers in (int(one) for one in chosen.workers.split(",")):
                row = {"name": name, "sharding": sharding, "workers": workers, **measure_workers(name, sharding, workers)}
                with chosen.out.open("a") as out:
                    out.write(json.dumps(row) + "\n")
                print(row, flush=True)


def measure_workers(name: str, sharding: str, workers: int) -> dict[str, Any]:
    """Peaks of the first worker in the steady state, or the error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    processes = [
        context.Process(target=_worker, args=(rank, workers, port, name, sharding, answers), daemon=True)
        for rank in range(workers)
    ]
    for one in processes:
        one.start()
    for one in processes:
        one.join(120.0)
        one.kill()
    return answers.get() if not answers.empty() else {"error": "no answer"}


def _worker(rank: int, workers: int, port: int, name: str, sharding: str, answers: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(workers)}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    try:
        distributed.init_process_group("gloo")
        running = DeviceStep(name, "cuda")
        step = running.running
        if sharding == "ddp":
            step.model = torch.nn.parallel.DistributedDataParallel(step.model)
        else:
            from torch.distributed.fsdp import fully_shard

            for block in list(_blocks(step.model)):
                fully_shard(block)
            fully_shard(step.model)
            step.__init__(running.training, "cuda")  # type: ignore[misc]  # its optimizer takes the sharded parameters
        for turn in range(5):
            if turn == 3:
                running.finish()
                torch.cuda.reset_peak_memory_stats()
            running.step()
        running.finish()
        found = {
            "allocated_mb": torch.cuda.max_memory_allocated() / _MB,
            "reserved_mb": torch.cuda.max_memory_reserved() / _MB,
        }
    except Exception as problem:
        found = {"error": f"{type(problem).__name__}: {problem}"[:300]}
    if rank == 0:
        answers.put(found)
    if "error" not in found:
        distributed.barrier()


def _blocks(module: Any) -> Iterator[Any]:
    children = list(module.children())
    kinds = Counter(type(one) for one in children)
    for child in children:
        listed = isinstance(module, torch.nn.ModuleList | torch.nn.Sequential)
        if listed and kinds[type(child)] > 1 and any(child.children()):
            yield child
        else:
            yield from _blocks(child)


if __name__ == "__main__":
    main()
