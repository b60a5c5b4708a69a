#!/usr/bin/env bash
# install.sh PYTHON VENV EXTRAS [LOCK]: makes the environment VENV if it is not there, and installs into it what these
# extras of pyproject.toml need. `make` calls it. With uv, which downloads in parallel and takes a fifth of pip's time:
# the one on PATH, or else one that pip installs into VENV first. Where uv fails, with pip.
#
# install.sh PYTHON VENV: only says whether VENV was made of another version of Python.
#
# LOCK is a kind of those in constraints/ (cpu, cuda12, cuda13), or `none` for the newest releases; without it the
# extras choose the kind. VENV/lock.txt is then a copy of the lock, by which records name it
# (harness/results/installed.py).
#
# The extra `jax` is JAX for the CPU. PyTorch then comes for the CPU too, from its own index: PyPI's wheel for Linux
# brings CUDA's libraries, 2.4 of the 3.2 GB that all of it takes (the sizes that PyPI listed in November 2026).
set -euo pipefail
cd "$(dirname "$0")"
python=$1 venv=$2 extras=${3:-} lock=${4:-}
uv_release=uv==0.13.9 # in no lock: records do not depend on it
wants() { [[ ",$extras," == *",$1,"* ]]; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "Python 3.11 or later is needed; $python is: $("$python" --version 2>&1)." >&2
    echo "Name another one: make PYTHON=/path/to/python3.12 ..." >&2
    exit 1
fi
own=$([ -x "$venv/bin/python" ] && echo "$venv/bin/python" || echo "$python")
version=$("$own" -c 'import sys; print(*sys.version_info[:2], sep="")')
if [ -z "$extras" ]; then
    asked=$("$python" -c 'import sys; print(*sys.version_info[:2], sep="")')
    [ "$asked" != "$version" ] || exit 0
    echo "PYTHON=$python is Python ${asked/3/3.}, and $venv was made of Python ${version/3/3.}, so it is left as it is." >&2
    echo "For the other Python, remove it first (rm -r $venv), or choose another folder (make env VENV=.venv-${asked/3/3.}" >&2
    echo "PYTHON=$python ...; later targets need the same VENV)." >&2
    exit 1
fi
if wants driver-too-old; then
    echo "This GPU's driver is older than CUDA 12: $(nvidia-smi | grep -o 'Driver Version: [0-9.]*' || true). No lock works" >&2
    echo "with it, as today's JAX and PyTorch need driver 525.60.13 for CUDA 12, or 580 for CUDA 13. Have the driver" >&2
    echo "updated. Until then, to measure the CPU: make env LOCK=cpu" >&2
    exit 1
fi
if wants driver-unknown; then
    echo "nvidia-smi does not say which CUDA this driver supports, so no lock is chosen. Name one: make env LOCK=cuda13" >&2
    echo "(driver 580 or later), LOCK=cuda12 (525.60.13 or later), or LOCK=cpu." >&2
    exit 1
fi
if [ "$version" = 311 ] && { wants cuda12 || wants cuda13; } && ! wants gpu-compile; then
    echo "JAX for CUDA is refused on Python 3.11 ($own): its last release there, 0.10.2, has a scatter-add on GPUs" >&2
    echo "that is hundreds of times slower (openxla/xla issue 46225), so its records are compared with nothing." >&2
    echo "Use Python 3.12, in a new environment: make env PYTHON=/path/to/python3.12 VENV=.venv-3.12 EXTRAS=$extras" >&2
    exit 1
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

if [ -z "$lock" ]; then
    case ",$extras," in *,cuda12,* | *,torch-cuda12,*) lock=cuda12 ;; *,jax,*) lock=cpu ;; *) lock=cuda13 ;; esac
fi
machine=$(uname -sm)
constraints=()
if [ "$lock" != none ]; then
    file=constraints/$lock-py$version-${machine#Linux }.txt
    if [ -f "$file" ]; then
        constraints=(--constraint "$file")
        sed "1s,^# ,Installs ,;q" "$file"
    elif ! compgen -G "constraints/$lock-py*.txt" >/dev/null; then
        kinds=$(cd constraints && printf '%s\n' *-py*.txt | sed 's,-py.*,,' | sort -u | paste -sd' ')
        echo "LOCK=$lock: there is no such lock. Valid: none $kinds" >&2
        exit 1
    else
        echo "No lock $file is there, so the newest releases are installed; valid: $(cd constraints && echo *.txt)"
    fi
fi

can_reach() { "$venv/bin/python" -c "import urllib.request; urllib.request.urlopen('$1/', timeout=5)" 2>/dev/null; }
has_torch_for_cpu() {
    "$venv/bin/python" -c 'import importlib.metadata as m, sys; sys.exit("+cpu" not in m.version("torch"))' 2>/dev/null
}
backend= # PyTorch's own index of wheels for it; without one, PyPI's are installed
if wants jax && wants torch && [[ $machine == Linux* ]]; then backend=cpu; fi
if wants torch-cuda12 && [ "$machine" = "Linux aarch64" ]; then backend=cu126; fi # PyPI has it for the CPU alone
index=https://download.pytorch.org/whl/$backend
if [ -n "$backend" ] && ! can_reach "$index"; then
    if [ "$backend" = cu126 ]; then
        echo "$index cannot be reached, and PyPI's PyTorch for aarch64 and CUDA 12 is one for the CPU." >&2
        exit 1
    fi
    backend=
fi
if [ "$backend" = cpu ]; then
    echo "Downloads JAX and PyTorch for the CPU, some hundred MB, into $venv. (With a GPU: make env LOCK=cuda13)"
elif wants cuda13 && ! wants torch; then
    echo "Downloads about 2.7 GB into $venv, which take 4.7 there: JAX for CUDA 13, and CUDA's libraries."
elif wants torch || wants torch-cuda12; then
    echo "Downloads about 3.2 GB into $venv, 2.4 of it CUDA's libraries, which PyTorch's wheel on PyPI brings."
fi
if ! wants jax && { wants torch || wants torch-cuda12; } && has_torch_for_cpu; then
    "$venv/bin/python" -m pip uninstall --yes torch torchvision # or it would count as installed
fi

rm -f "$venv/lock.txt"
with_pip() {
    local pip=("$venv/bin/python" -m pip install --disable-pip-version-check "${constraints[@]}")
    # Without what they need, of which PyTorch's index has other versions.
    if [ -n "$backend" ]; then "${pip[@]}" --index-url "$index" --no-deps torch torchvision || return; fi
    "${pip[@]}" --editable ".[$extras]"
}
uv=$(command -v uv || echo "$venv/bin/uv")
[ -x "$uv" ] || "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 "$uv_release" ||
    echo "uv could not be installed." >&2
if [ -x "$uv" ]; then
    # The certificates of the system, as pip has them: uv's own know no lab's proxy.
    UV_SYSTEM_CERTS=true SSL_CERT_FILE=${SSL_CERT_FILE:-${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}} \
        "$uv" pip install --python "$venv/bin/python" ${backend:+--torch-backend "$backend"} "${constraints[@]}" \
        --editable ".[$extras]" || { echo "uv could not; now with pip." >&2; with_pip; }
else
    with_pip
fi
if [ -n "${constraints[*]}" ]; then cp "$file" "$venv/lock.txt"; fi
