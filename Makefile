# `make` lists what there is to do. Everything runs in a virtual environment of the project's own.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d%d" % sys.version_info[:2])' 2>/dev/null)
PINS := requirements/py$(VERSION).txt
READY := $(VENV)/.ready

# TensorFlow Recommenders is built on Keras 2.
export TF_USE_LEGACY_KERAS := 1
export TF_CPP_MIN_LOG_LEVEL ?= 3

.DEFAULT_GOAL := help
.PHONY: help install demo test lint types check test-spark test-slow bench docs figures wheel pins clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(READY)  ## make the virtual environment with pinned versions

$(READY): setup.cfg $(PINS)
	@test -f $(PINS) || { echo "error: Python 3.10 to 3.13 is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Set PYTHON, e.g. make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint $(PINS) --editable '.[pipelines,tune,dev]'
	@touch $@

requirements/py%.txt: ;

DEMO := work/demo
STEP := $(BIN)/python -m pipelines

demo: $(READY)  ## end to end on synthetic data: prepare, train, evaluate, export, query
	@printf '\n--- 1. a synthetic log of interactions ---\n'
	$(STEP) synthesize --out $(DEMO)/events.csv --overwrite
	@printf '\n--- 2. prepare: filter, number, sort and split it ---\n'
	$(STEP) prepare --source csv --input $(DEMO)/events.csv --out $(DEMO)/prepared --overwrite
	@printf '\n--- 3. train two towers for Recall@N ---\n'
	$(STEP) train --data $(DEMO)/prepared --out $(DEMO)/run --rank-kernel sigmoid --kernel softplus --alpha 1.0 --overwrite
	@printf '\n--- 4. evaluate: exact Recall@N on users that training has not seen ---\n'
	$(STEP) evaluate --run $(DEMO)/run --cutoffs 50 100 200 500
	@printf '\n--- 5. export a SavedModel ---\n'
	$(STEP) export --run $(DEMO)/run --out saved_models/demo
	@printf '\n--- 6. query it ---\n'
	$(STEP) query --model saved_models/demo --history item-00042,item-00007 --top-n 10
	@printf '\nDone. The log was synthetic. For a log of your own, begin with:\n'
	@printf '  $(STEP) prepare --source csv --input events.csv --out work/prepared\n'

test: $(READY)  ## lint, type-check and run the tests; prints the coverage
	$(MAKE) --no-print-directory lint types check

lint: $(READY)  ## check style, imports and formatting
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .

types: $(READY)  ## check the types
	$(BIN)/mypy

check: $(READY)  ## run the tests alone, and print the coverage
	$(BIN)/pytest -q -n 3 --dist loadfile -m 'not slow' --cov --cov-report=
	@printf 'coverage of tfrs_croloss and pipelines: %s %%\n' "$$($(BIN)/coverage report --format=total)"

test-spark: $(READY)  ## test the Spark engine of prepare; installs pyspark, needs Java 17
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint $(PINS) --editable '.[spark]'
	$(BIN)/pytest -q -p no:cacheprovider tests/pipelines/prepare/test_spark.py

test-slow: $(READY)  ## the tests that `make test` leaves out: killed workers, parameter servers, repeated cases
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint $(PINS) --editable '.[docs]'
	$(BIN)/pytest -q -n 2 --dist loadfile -m slow --ignore=tests/pipelines/prepare/test_spark.py

bench: $(READY)  ## measure speed and memory against other implementations, as ratios (half an hour)
	$(BIN)/python -m benchmarks

docs: $(READY)  ## build the documentation into build/docs, warnings as errors (no network once Sphinx is installed)
	@$(BIN)/python -c 'import furo, latex2mathml, myst_parser, sphinx_copybutton, sphinx_design' 2>/dev/null \
	  || $(BIN)/pip install --quiet --disable-pip-version-check --constraint $(PINS) --editable '.[docs]'
	@$(BIN)/python -c 'import sphinx' 2>/dev/null \
	  || { echo "error: the documentation needs Python 3.11 or newer. Try: make PYTHON=python3.11 VENV=.venv-docs docs"; exit 2; }
	$(BIN)/python -m sphinx --nitpicky --fail-on-warning --keep-going --quiet -d build/doctrees docs build/docs
	@printf 'The documentation is in build/docs/index.html\n'

figures: $(READY)  ## draw the figures of the README and of the documentation
	$(BIN)/python docs/draw_figures.py

wheel: $(READY)  ## build the wheel, and import it in an empty environment
	rm -rf dist build/wheel-check
	$(BIN)/python -m build --quiet .
	$(PYTHON) -m venv build/wheel-check
	build/wheel-check/bin/pip install --quiet --disable-pip-version-check --constraint $(PINS) dist/*.whl
	cd build && wheel-check/bin/python -c 'import tfrs_croloss; print("tfrs_croloss", tfrs_croloss.__version__, "imports")'

pins: $(READY)  ## resolve requirements/*.txt again, for every Python version
	for version in 10 11 12 13; do \
	  { echo "# The versions that the tests pass with, for Python 3.$$version. \`make\` installs these."; \
	    $(BIN)/uv pip compile setup.cfg --quiet --no-header --no-annotate --no-python-downloads \
	      --python-version 3.$$version --extra pipelines --extra spark --extra tune --extra docs --extra dev; \
	  } > requirements/.new && mv requirements/.new requirements/py3$$version.txt || exit 1; \
	done

clean:  ## remove the virtual environment and what was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
