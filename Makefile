# `make demo` and `make test` set everything up by themselves, in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check fmt smoke gpu setup clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(READY)

# VBench's packages, which the tests call; one of them is not for commercial use.
$(VENV)/.vbench: $(READY)
	XDG_CONFIG_HOME=$(abspath $(VENV)) $(BIN)/mxbench vbench setup --no-weights  # leaves the user's own settings alone
	touch $(VENV)/.vbench

# Render and compare eight methods on the built-in model; resumes where it was stopped.
demo: setup
	$(BIN)/mxbench run --recipe recipes/demo.yaml --out results/demo

# What CI runs: style, types, tests, and every method rendered once.
test: check smoke $(VENV)/.vbench
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Tests that need a CUDA device, which CI has not.
gpu: setup
	$(BIN)/python -m pytest -m gpu -n 8 --dist worksteal

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

smoke: setup
	rm -rf results/smoke
	$(BIN)/mxbench run --recipe recipes/smoke.yaml --out results/smoke

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) results/smoke results/demo/cells results/demo/plans results/demo/errors results/demo/previews
