"""One training that can be stepped: forward, loss, backward, update, on data that lies on the device already, as a loader that
keeps up would have it. What is measured is the accelerator and the host that feeds it kernels, not a disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fairlead.profiling.configurations import Configuration
from fairlead.profiling.networks import make


class Training:
    """SGD with momentum, in single precision, cuDNN as PyTorch sets it up."""

    def __init__(self, configuration: Configuration, device: str) -> None:
        self.configuration, self.device = configuration, device
        self.model, self.inputs, self.targets = make(configuration, device)
        self.model.train()
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()

    def finish(self) -> None:
        """Return when the device has done all that was asked of it."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def mark(self) -> Callable[[], None]:
        """A wait for all that was asked of the device until now, and no further."""
        if not self.device.startswith("cuda"):
            return _nothing
        event = torch.cuda.Event()
        event.record()
        wait: Callable[[], None] = event.synchronize
        return wait

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def about(self) -> dict[str, Any]:
        one = self.configuration
        return {
            "name": one.name,
            "family": one.family,
            "model": one.model,
            "input": one.input,
            "batch_size": one.batch_size,
            "parameters": self.parameters,
        }


def _nothing() -> None:
    """A CPU has done what it was asked when the call returns."""
