# Short names for the usual steps. `make` alone lists them.

PYTHON ?= python3
VENV ?= .venv
# A machine with a GPU gets JAX for CUDA 13, the CUDA that PyTorch's default wheel brings too; any other gets both for the
# CPU. Choose yourself with, for example, `make env EXTRAS=cuda13,torch` on a login node that has no GPU.
EXTRAS ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda13 || echo jax),torch

# `:=`, so that the GPU is looked for once.
EXTRAS := $(EXTRAS)
comma := ,
WITH_TESTS := $(patsubst %$(comma)dev,%,$(EXTRAS)),dev
RUN := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help env env-dev demo test test-fast test-nightly test-inputs test-faults gpu-check gpu-compile gpu-compile-nightly
.PHONY: lint bench

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1 \t/p' Makefile | expand -t 22

env: $(VENV)/installed-$(EXTRAS)  ## make .venv with what measurements need (again only when pyproject.toml changes)

env-dev: $(VENV)/installed-$(WITH_TESTS)  ## the same, with what tests and linters need

$(VENV)/installed-%: pyproject.toml install.sh
	@./install.sh $(PYTHON) $(VENV) $*
	@touch $@ $(VENV)/installed-$(patsubst %$(comma)dev,%,$*)

demo: env  ## two short pairs of both frameworks on this machine: a live table, the comparison, the report's page
	$(RUN) main.py --preset demo --executor local --wait --results results/demo

# Tests start hundreds of Python processes. Each would compile our modules anew where the shell forbids to keep what is compiled.
test test-fast test-nightly test-faults gpu-compile gpu-compile-nightly: export PYTHONDONTWRITEBYTECODE :=

test: env-dev  ## run the tests
	$(RUN) -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder -m "not faults and not nightly"

test-fast: env-dev  ## run the tests that need no framework, Slurm, browser or LaTeX: a minute
	$(RUN) -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder \
	    -m "not slow and not slurm and not browser and not latex and not gpu and not nightly"

test-nightly: env-dev  ## what is left of the cross products: more models in more modes, real compilers
	$(RUN) -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder -m nightly

SEED ?= 0
test-inputs: env-dev  ## try thousands of odd files, command lines and values; SEED=random for new ones
	$(RUN) -m tests.bad_inputs --seed $(SEED)

test-faults: env-dev  ## what a hostile cluster and a clumsy user could do: kills, full disks, lost answers; 15 minutes at most
	$(RUN) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder tests/faults

gpu-check: env-dev  ## on a machine with a GPU: try all that needs one, in ten minutes at most, and say what to send
	$(RUN) main.py gpu-check

# JAX with its CUDA plugin, in an environment of its own: the plugin compiles for GPUs, and none is needed.
GPU_PYTHON ?= $(shell tests/gpu_compile/find_python.sh)
GPU_COMPILE := .venv-gpu-compile

gpu-compile: $(GPU_COMPILE)/installed  ## without a GPU: compile steps of JAX for five cards, and hold rules over what XLA makes
	$(GPU_COMPILE)/bin/python -m pytest tests/gpu_compile -m "not nightly"

gpu-compile-nightly: $(GPU_COMPILE)/installed  ## the same for each formulation on two cards; build each declared variant
	$(GPU_COMPILE)/bin/python -m pytest --numprocesses 2 --dist load --maxschedchunk 1 tests/gpu_compile -m nightly

$(GPU_COMPILE)/installed: pyproject.toml install.sh
	@./install.sh "$(GPU_PYTHON)" $(GPU_COMPILE) cuda13,gpu-compile
	@touch $@

lint: env-dev  ## style, format and types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: env-dev  ## measure the project itself: what its own machinery costs
	$(RUN) -m bench
