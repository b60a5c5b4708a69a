# Short names for the usual steps. `make` alone lists them.

PYTHON ?= python3
VENV ?= .venv
# LOCK=cuda13, cuda12 or cpu installs the versions of constraints/, and LOCK=none the newest; without it, the extras choose
# the lock. A machine with a GPU gets both for the CUDA of its driver, any other for the CPU; who names neither gets what
# $(VENV) was made of before.
EXTRAS_cuda13 := cuda13,torch
EXTRAS_cuda12 := cuda12,torch-cuda12
EXTRAS_cpu := jax,torch
EXTRAS_driver-too-old := driver-too-old
EXTRAS_driver-unknown := driver-unknown
MADE_OF := $(VENV)/made-of.mk
ifeq ($(LOCK)$(EXTRAS),)
-include $(MADE_OF)
endif
EXTRAS ?= $(or $(EXTRAS_$(LOCK)),$(EXTRAS_$(shell constraints/kind_of_driver.sh)))

# `:=`, so that the GPU is looked for once.
EXTRAS := $(EXTRAS)
comma := ,
WITH_TESTS := $(patsubst %$(comma)dev,%,$(EXTRAS)),dev
RUN := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help env env-dev demo test test-fast test-nightly test-inputs test-faults gpu-check gpu-compile gpu-compile-nightly
.PHONY: lint bench pin python-of-env test-mutations

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1 \t/p' Makefile | expand -t 22

# Who names a Python wants that one, whatever $(VENV) was made of.
ifeq ($(origin PYTHON),command line)
env env-dev: python-of-env
endif
python-of-env:
	@./install.sh $(PYTHON) $(VENV)

env: $(VENV)/installed-$(LOCK)-$(EXTRAS)  ## make .venv with what measurements need (again only when that changes)

env-dev: $(VENV)/installed-$(LOCK)-$(WITH_TESTS)  ## the same, with what tests and linters need

$(VENV)/installed-$(LOCK)-%: pyproject.toml install.sh $(wildcard constraints/*.txt)
	@./install.sh $(PYTHON) $(VENV) $* $(LOCK)
	@rm -f $(VENV)/installed-*
	@touch $@ $(VENV)/installed-$(LOCK)-$(patsubst %$(comma)dev,%,$*)
	@printf 'LOCK := $(LOCK)\nEXTRAS := $(patsubst %$(comma)dev,%,$*)\n' >$(MADE_OF)

pin:  ## make the locks of constraints/ anew, of today's releases
	@constraints/pin.sh

demo: env  ## two short pairs of both frameworks on this machine, in three minutes: the answers and the report's page
	$(RUN) main.py --preset demo --executor local --wait --results results/demo

# Tests start hundreds of Python processes. Each would compile our modules anew where the shell forbids to keep what is compiled.
test test-fast test-nightly test-faults gpu-compile gpu-compile-nightly: export PYTHONDONTWRITEBYTECODE :=

# Two processes for each core that is allowed, at most 8: a test waits a third of its time, and each process imports both
# frameworks (700 MB).
WORKERS ?= $(shell n=$$((2 * $$(nproc))); echo $$((n < 8 ? n : 8)))
PYTEST := $(RUN) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test: env-dev  ## run the tests
	$(PYTEST) -m "not faults and not nightly"

test-fast: env-dev  ## run the tests that need no framework, Slurm, browser or LaTeX: a minute
	$(PYTEST) -m "not slow and not slurm and not browser and not latex and not gpu and not nightly"

test-nightly: env-dev  ## what is left of the cross products: more models in more modes, real compilers
	$(PYTEST) -m nightly

test-inputs: env-dev  ## try thousands of odd files, command lines and values; SEED=7 for the same ones again
	$(RUN) -m pytest tests/bad_inputs --hypothesis-profile many $(if $(SEED),--hypothesis-seed $(SEED))

test-faults: env-dev  ## what a hostile cluster and a clumsy user could do: kills, full disks, lost answers; 15 minutes at most
	$(RUN) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder tests/faults

test-mutations: env-dev  ## remove lines where a mistake would cost most, one by one: each has a test that must fail
	$(RUN) -m tests.mutations

# It installs nothing, as a node may have no network: `make env-dev` comes first.
gpu-check:  ## on a machine with a GPU: try what needs one, in eight minutes, and name what to send; after make env-dev
	@tests/gpu/check.sh $(RUN) results/gpu-check

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

lint: env-dev  ## style, format, types and declared dependencies
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m deptry .
	$(RUN) -m deptry . --extend-exclude tests/ --optional-dependencies-dev-groups dev,gpu-compile

bench: env-dev  ## measure the project itself: what its own machinery costs
	$(RUN) -m bench
