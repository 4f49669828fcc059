"""How processes share a GPU: time slicing, the default, or at once through NVIDIA's MPS, whose daemon runs as long as it is
needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum

from fairlead.core.errors import InputError

MPS_CONTROL = "nvidia-cuda-mps-control"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"


class SharingMode(StrEnum):
    """How processes share a GPU."""

    TIME_SLICING = "time-slicing"
    MPS = "mps"


@contextmanager
def in_sharing_mode(mode: SharingMode) -> Iterator[None]:
    """A context: processes that start in it share the GPU in this mode."""
    if mode is SharingMode.TIME_SLICING:
        yield
        return
    if shutil.which(MPS_CONTROL) is None:
        raise _unfit(f"there is no {MPS_CONTROL} on this machine")
    before = {name: os.environ.get(name) for name in (_PIPES, _LOGS)}
    with tempfile.TemporaryDirectory(prefix="fairlead-mps-", ignore_cleanup_errors=True) as folder:
        os.environ |= {_PIPES: folder, _LOGS: folder}
        try:
            try:
                subprocess.run([MPS_CONTROL, "-d"], check=True, timeout=30)
            except (OSError, subprocess.SubprocessError) as problem:
                raise _unfit(f"MPS does not start here: {problem}") from None
            try:
                yield
            finally:
                with suppress(subprocess.TimeoutExpired):  # an error inside the context is more important
                    subprocess.run([MPS_CONTROL], input=b"quit\n", check=False, timeout=30, stdout=subprocess.DEVNULL)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _unfit(why: str) -> InputError:
    return InputError("--sharing", f"{SharingMode.TIME_SLICING.value}: {why}", field="sharing", value=SharingMode.MPS.value)
