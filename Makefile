# Short names for the usual steps. `make` alone lists them.

PYTHON ?= python3
VENV ?= .venv
# A machine with a GPU gets JAX for CUDA 13, the CUDA that PyTorch's default wheel brings too; any other gets JAX for the CPU.
# Choose yourself with, for example, `make env EXTRAS=cuda13,torch` on a login node that has no GPU.
EXTRAS ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda13 || echo jax),torch,dev

# `:=`, so that the GPU is looked for once.
EXTRAS := $(EXTRAS)
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/installed-$(EXTRAS)

.DEFAULT_GOAL := help
.PHONY: help env demo test test-fast test-inputs gpu-check lint bench

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1 \t/p' Makefile | expand -t 20

env: $(INSTALLED)  ## make .venv with all dependencies (again only when pyproject.toml changes)

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Python 3.11 or later is needed; $(PYTHON) is: $$($(PYTHON) --version 2>&1)." >&2; \
	    echo "Name another one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

demo: env  ## a small run of both frameworks on this machine, with a live table and the comparison at its end
	$(RUN) main.py --benchmark mnist --use_case 1 --use_case 3 --data sample --quick \
	    --executor local --wait --results results/demo

test: env  ## run the tests
	$(RUN) -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

test-fast: env  ## run the tests that need no framework, Slurm, browser or LaTeX: a minute
	$(RUN) -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder \
	    -m "not slow and not slurm and not browser and not latex and not gpu"

SEED ?= 0
test-inputs: env  ## try thousands of odd files, command lines and values; SEED=random for new ones
	$(RUN) -m tests.bad_inputs --seed $(SEED)

gpu-check: env  ## on a machine with a GPU: try all that needs one, in ten minutes at most, and say what to send
	$(RUN) main.py gpu-check

lint: env  ## style, format and types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: env  ## measure the project itself: what its own machinery costs
	$(RUN) -m bench
