"""Write an OCI archive with one layer: oci_archive.py LAYER.tar OUTPUT.tar NAME:TAG. It needs no package."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_archive(layer: Path, output: Path, name: str) -> None:
    """Write the archive of a layer."""
    with tempfile.TemporaryFile() as packed:
        with open(layer, "rb") as plain:
            with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as target:
                shutil.copyfileobj(plain, target, 1 << 20)
            plain_digest = _digest_of(plain)
        size = packed.seek(0, io.SEEK_END)
        variables = ["PATH=/opt/fairlead/bin:/usr/local/bin:/usr/bin:/bin"]
        config = {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Env": variables, "User": "10001:10001", "Cmd": ["fairlead"]},
            "rootfs": {"type": "layers", "diff_ids": [plain_digest]},
        }
        blobs: dict[str, bytes] = {}
        kind = "application/vnd.oci.image"
        layers = [{"mediaType": f"{kind}.layer.v1.tar+gzip", "digest": _digest_of(packed), "size": size}]
        described = {"schemaVersion": 2, "mediaType": f"{kind}.manifest.v1+json", "layers": layers}
        manifest = {**described, "config": _add(blobs, config, f"{kind}.config.v1+json")}
        entry = _add(blobs, manifest, f"{kind}.manifest.v1+json")
        entry["annotations"] = {"org.opencontainers.image.ref.name": name.rpartition(":")[2], "io.containerd.image.name": name}
        index = {"schemaVersion": 2, "mediaType": f"{kind}.index.v1+json", "manifests": [entry]}
        with tarfile.open(output, "w") as archive:
            _put(archive, "oci-layout", io.BytesIO(b'{"imageLayoutVersion":"1.0.0"}'), 30)
            text = json.dumps(index).encode()
            _put(archive, "index.json", io.BytesIO(text), len(text))
            for digest, data in blobs.items():
                _put(archive, f"blobs/sha256/{digest}", io.BytesIO(data), len(data))
            packed.seek(0)
            _put(archive, f"blobs/{layers[0]['digest'].replace(':', '/')}", packed, size)


def _digest_of(file: BinaryIO | Any) -> str:
    file.seek(0)
    return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _add(blobs: dict[str, bytes], content: dict[str, Any], kind: str) -> dict[str, Any]:
    data = json.dumps(content, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    blobs[digest] = data
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


def _put(archive: tarfile.TarFile, name: str, data: BinaryIO | Any, size: int) -> None:
    about = tarfile.TarInfo(name)
    about.size = size
    archive.addfile(about, data)


if __name__ == "__main__":
    write_archive(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
