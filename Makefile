# `make` lists what there is to do. Everything runs in a virtual environment of the project's own.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d%d" % sys.version_info[:2])' 2>/dev/null)
PINS := requirements/py$(VERSION).txt
READY := $(VENV)/.ready

# TensorFlow Recommenders is built on Keras 2.
export TF_USE_LEGACY_KERAS := 1
export TF_CPP_MIN_LOG_LEVEL ?= 2

.DEFAULT_GOAL := help
.PHONY: help install test lint types check figures wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(READY)  ## make the virtual environment with pinned versions

$(READY): setup.cfg $(PINS)
	@test -f $(PINS) || { echo "error: Python 3.10 to 3.13 is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Set PYTHON, e.g. make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint $(PINS) --editable '.[pipelines,dev]'
	@touch $@

requirements/py%.txt: ;

test: $(READY)  ## lint, type-check and run the tests
	$(MAKE) --no-print-directory lint types check

lint: $(READY)  ## check the style
	$(BIN)/flake8
	$(BIN)/isort --check-only --quiet .

types: $(READY)  ## check the types
	$(BIN)/mypy

check: $(READY)  ## run the tests alone
	$(BIN)/pytest -q -n 2 -m 'not slow'

figures: $(READY)  ## draw the README's figure again
	$(BIN)/python docs/draw_figures.py

wheel: $(READY)  ## build the wheel, and import it in an empty environment
	rm -rf dist build/wheel-check
	$(BIN)/python -m build --quiet .
	$(PYTHON) -m venv build/wheel-check
	build/wheel-check/bin/pip install --quiet --disable-pip-version-check --constraint $(PINS) dist/*.whl
	cd build && wheel-check/bin/python -c 'import tfrs_croloss; print("tfrs_croloss", tfrs_croloss.__version__, "imports")'

clean:  ## remove the virtual environment and what was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .hypothesis
