"""One training that can be stepped: forward, loss, backward, update, on data that lies on the device already, as a loader that
keeps up would have it. What is measured is the accelerator and the host that feeds it kernels, not a disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fairlead.profiling.configurations import Configuration
from fairlead.profiling.networks import build_model


class TrainingLoop:
    """SGD with momentum, in single precision, cuDNN as PyTorch sets it up."""

    def __init__(self, model: Any, inputs: Any, targets: Any, device: str, loss: Any = None) -> None:
        """All of it on the device already; `loss` of what the model makes and of the targets, else cross entropy."""
        self.model, self.inputs, self.targets, self.device = model, inputs, targets, device
        if device.startswith("cuda:"):
            torch.cuda.set_device(device)  # whose work is waited for and whose memory is counted, where none is named
        self.model.train()
        self.loss = loss or nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    @classmethod
    def of(cls, configuration: Configuration, device: str) -> TrainingLoop:
        return cls(*build_model(configuration, device), device)

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


def _nothing() -> None:
    """A CPU has done what it was asked when the call returns."""
