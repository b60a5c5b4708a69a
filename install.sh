#!/usr/bin/env bash
# install.sh PYTHON VENV EXTRAS: makes the environment VENV if it is not there, and installs into it what these extras
# of pyproject.toml need. `make` calls it. With uv where it is on PATH (it downloads in parallel), else with pip.
#
# The extra `jax` is JAX for the CPU. PyTorch then comes for the CPU too, from its own index: PyPI's wheel for Linux brings
# CUDA's libraries, which are 2.4 of the 3.2 GB that all of it takes (the sizes that PyPI listed in November 2026).
set -euo pipefail
cd "$(dirname "$0")"
python=$1 venv=$2 extras=$3
cpu_index=https://download.pytorch.org/whl/cpu

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "Python 3.11 or later is needed; $python is: $("$python" --version 2>&1)." >&2
    echo "Name another one: make PYTHON=/path/to/python3.12 ..." >&2
    exit 1
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

wants() { [[ ",$extras," == *",$1,"* ]]; }
can_reach() { "$venv/bin/python" -c "import urllib.request; urllib.request.urlopen('$1/', timeout=5)" 2>/dev/null; }
has_torch_for_cpu() {
    "$venv/bin/python" -c 'import importlib.metadata as m, sys; sys.exit("+cpu" not in m.version("torch"))' 2>/dev/null
}

for_cpu=no
if wants jax && wants torch && [ "$(uname -sm)" = "Linux x86_64" ]; then
    if can_reach "$cpu_index"; then for_cpu=yes; fi
fi
if [ "$for_cpu" = yes ]; then
    echo "Downloads JAX and PyTorch for the CPU, some hundred MB, into $venv. (With a GPU: make env EXTRAS=cuda13,torch)"
elif wants cuda13 && ! wants torch; then
    echo "Downloads about 2.7 GB into $venv, which take 4.7 there: JAX with its plugin for CUDA 13, and CUDA's libraries."
elif wants torch; then
    echo "Downloads about 3.2 GB into $venv, 2.4 of it CUDA's libraries, which PyTorch's wheel on PyPI brings."
fi
if ! wants jax && wants torch && has_torch_for_cpu; then
    "$venv/bin/python" -m pip uninstall --yes torch torchvision # or it would count as installed
fi

if command -v uv >/dev/null; then
    backend=()
    if [ "$for_cpu" = yes ]; then backend=(--torch-backend cpu); fi
    if uv pip install --python "$venv/bin/python" "${backend[@]}" --editable ".[$extras]"; then exit 0; fi
    echo "uv could not; now with pip." >&2
fi
pip=("$venv/bin/python" -m pip install --disable-pip-version-check)
if [ "$for_cpu" = yes ]; then "${pip[@]}" --index-url "$cpu_index" torch torchvision; fi
"${pip[@]}" --editable ".[$extras]"
