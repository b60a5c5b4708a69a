#!/usr/bin/env bash
# `make gpu-check`: tries on this machine's GPU what needs one, within eight minutes and without a network. The same
# command resumes: tests that passed are not run again (tests/gpu/conftest.py), and finished measurements are kept.
#   tests/gpu/check.sh PYTHON FOLDER
set -uo pipefail
python=$1 folder=$2 failed=()

if ! nvidia-smi -L >/dev/null 2>&1; then
    echo "gpu-check: this machine has no NVIDIA GPU. With Slurm: srun --gres=gpu:1 --cpus-per-task=8 --time=15 make gpu-check" >&2
    exit 2
fi
if ! "$python" -c 'import pytest' 2>/dev/null; then
    echo "gpu-check: $python has no pytest. Run \`make env-dev\` first, on a machine with a network." >&2
    exit 2
fi
mkdir -p "$folder"
export GPU_CHECK=$folder REQUIRE_GPU=1 WANDB_MODE=disabled

step() { # NAME SECONDS COMMAND ...
    echo "== $1: ${*:3}"
    timeout --kill-after=10 "$2" "${@:3}" 2>&1 | tee "$folder/$1.log"
    [ "${PIPESTATUS[0]}" -eq 0 ] || failed+=("$1")
}

# SECONDS counts from the start of this script. A compilation that hangs in one step leaves time for the next.
step doctor 120 "$python" main.py doctor --compute --executor local
step tests $((320 - SECONDS)) "$python" -m pytest -m gpu tests/gpu -q -rfE --tb=short -p no:cacheprovider
step demo $((440 - SECONDS)) "$python" main.py --preset demo --executor local --wait --results "$folder"
case " ${failed[*]-} " in *" demo "*) timeout 20 "$python" main.py status --cancel --results "$folder" ;; esac

tar -czf "$folder.tar.gz" --exclude=caches -C "$(dirname "$folder")" "$(basename "$folder")"
echo
if [ ${#failed[@]} -eq 0 ]; then
    echo "All steps passed: doctor, tests, demo."
else
    echo "Not passed: ${failed[*]}. Run the same command again to resume."
fi
echo "Send $folder.tar.gz: logs, versions and records; they contain the name of this machine."
[ ${#failed[@]} -eq 0 ]
