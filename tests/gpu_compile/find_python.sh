#!/usr/bin/env bash
# Prints the newest Python that can have JAX with its CUDA plugin and that really starts, on PATH or among pyenv's: of
# pyenv's commands on PATH only those of its current version do. 3.11 comes last: it gets JAX 0.10.2, which leaves
# convolutions outside of CUDA graphs (docs/known-issues.md).
set -euo pipefail

starts() { "$1" -c "import sys, ensurepip, venv; sys.exit(sys.version_info[:2] != (3, $2))" >/dev/null 2>&1; }

for minor in 14 13 12 11; do
    for python in $(type -ap "python3.$minor") "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python; do
        if starts "$python" "$minor"; then
            if [ "$minor" = 11 ]; then
                echo "Only Python 3.11 is here, for which JAX ends with 0.10.2. It leaves convolutions outside of CUDA" >&2
                echo "graphs; rules that it is known to break only warn. Or: make gpu-compile GPU_PYTHON=/path/to/python3.12" >&2
            fi
            echo "$python"
            exit
        fi
    done
done
echo "No Python from 3.11 on starts here. Name one: make gpu-compile GPU_PYTHON=/path/to/python3.12" >&2
exit 1
