#!/usr/bin/env bash
# `make pin`: makes each lock of this folder anew, of the releases on PyPI that go together today. A lock is a plain file
# of pip's constraints, for the project with tests and linters: an environment has a part of it.
set -euo pipefail
cd "$(dirname "$0")/.."
name=$(date -u +%Y-%m)
uv=$(command -v uv || echo .venv-pin/bin/uv)
if [ ! -x "$uv" ]; then
    python3 -m venv .venv-pin
    .venv-pin/bin/python -m pip install --quiet --disable-pip-version-check uv
fi

pin() { # KIND PYTHON MACHINE EXTRA EXTRA
    local lock=$1-py${2/./}-$3
    {
        echo "# lock $name $lock"
        echo "# Made by \`make pin\`, for: pip install --constraint constraints/$lock.txt --editable .[$4,$5]"
        "$uv" pip compile pyproject.toml --extra "$4" --extra "$5" --extra dev --quiet --no-header \
            --no-annotate --only-binary :all: --python-version "$2" --python-platform "$3-unknown-linux-gnu"
    } >"constraints/$lock.new"
    mv "constraints/$lock.new" "constraints/$lock.txt"
    echo "constraints/$lock.txt: $(grep --count == "constraints/$lock.txt") packages"
}

for machine in x86_64 aarch64; do
    pin cuda13 3.12 "$machine" cuda13 torch
    pin cpu 3.12 "$machine" jax torch
    pin cpu 3.11 "$machine" jax torch
done
pin cuda12 3.12 x86_64 cuda12 torch-cuda12 # PyPI's PyTorch of that time is for the CPU on aarch64
