#!/bin/bash
# Build a container image with Fairlead: build.sh OUTPUT.tar [PACKAGE ...]
#
# The system is Debian 12 with python3, made by mmdebstrap; further Debian packages can be named. Fairlead and the Python packages that
# it needs are downloaded by pip here, with its settings, and installed in /opt/fairlead. The output is an OCI archive, which
# `skopeo copy oci-archive:OUTPUT.tar docker://...`, `podman load`, `ctr images import` and `docker load` (25 or newer) read. Needs
# root (or newuidmap), mmdebstrap and python3 with pip. PYTHON and EXTRAS (default: cluster,nvml,postgres) are used if they are set.
set -euo pipefail
output=$(realpath -m "${1:?usage: build.sh OUTPUT.tar [PACKAGE ...]}")
shift
source=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
extras=${EXTRAS:-cluster,nvml,postgres}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$source/pyproject.toml" | head -1)
command -v mmdebstrap >/dev/null || { echo "mmdebstrap is missing (Debian: apt-get install mmdebstrap)" >&2; exit 3; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/source" "$work/wheels"
tar -C "$source" -c --exclude=__pycache__ LICENSE README.md pyproject.toml src | tar -C "$work/source" -x
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/wheels" "$work/source"
wheel=$(ls "$work"/wheels/fairlead-*.whl)
"$python" -m pip download --quiet --only-binary=:all: --python-version 3.11 --dest "$work/wheels" \
    "fairlead[$extras] @ file://$wheel"

packages=$(IFS=,; echo "python3,python3-venv,ca-certificates${*:+,}$*")
mmdebstrap --variant=minbase --include="$packages" \
    --customize-hook="copy-in $work/wheels /opt" \
    --customize-hook='chroot "$1" python3 -m venv /opt/fairlead' \
    --customize-hook="chroot \"\$1\" /opt/fairlead/bin/pip install --quiet --no-cache-dir --no-index --find-links /opt/wheels 'fairlead[$extras]'" \
    --customize-hook='rm -rf "$1"/opt/wheels' \
    --customize-hook='chroot "$1" ln -s /opt/fairlead/bin/fairlead /opt/fairlead/bin/python /usr/local/bin/' \
    --customize-hook='chroot "$1" useradd --uid 10001 --user-group --home-dir /var/lib/fairlead --create-home fairlead' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/* "$1"/usr/share/doc/* "$1"/usr/share/man/*' \
    bookworm "$work/layer.tar"

python3 "$source/deploy/image/oci_archive.py" "$work/layer.tar" "$output" "fairlead:$version"
ls -lh "$output"
