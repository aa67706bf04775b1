# `make` lists what there is to do. Everything runs in a virtual environment of the project's own.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d%d" % sys.version_info[:2])' 2>/dev/null || echo -unknown)
PINS := requirements/py$(VERSION).txt
# Only files whose hashes are in the pins, and all that is needed is among them: nothing looks for more.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-deps
# uv, which is among the pins, takes a fraction of pip's time. Where it finds no files (it does not read
# pip's settings, such as a mirror), pip does the work.
UV := $(BIN)/uv pip install --quiet --no-deps --python $(BIN)/python
install_pins = { $(UV) --require-hashes --requirement $(1) 2> $(VENV)/uv.log || $(PIP) --require-hashes --requirement $(1); }
READY := $(VENV)/.ready
# They have a target of their own: in `make test`, an installed pyspark would run them once more.
SPARK_TESTS := tests/pipelines/prepare/test_spark.py

# TensorFlow Recommenders is built on Keras 2.
export TF_USE_LEGACY_KERAS := 1
export TF_CPP_MIN_LOG_LEVEL ?= 3
# Some virtual machines announce AMX and then fail on its instructions: TensorFlow does without it.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_FP16
# The tests start many processes: each would compile every module again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo test lint types check test-spark test-slow attack bench docs tutorials figures wheel pins clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(READY)  ## make the virtual environment with pinned versions

$(READY): setup.cfg $(PINS)
	@test -f $(PINS) || { echo "error: Python 3.10 to 3.13 is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -1). Set PYTHON, e.g. make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@awk '/^[^ ]/ {is_uv = /^uv==/} is_uv' $(PINS) > $(VENV)/uv.txt
	$(PIP) --require-hashes --requirement $(VENV)/uv.txt
	$(call install_pins,$(PINS))
	$(PIP) --no-build-isolation --editable .
	@$(BIN)/pip --disable-pip-version-check check > /dev/null || $(BIN)/pip check
	@touch $@

requirements/py%.txt: ;

DEMO := work/demo
STEP := $(BIN)/python -m pipelines
# ScaNN exists for Linux only. Expanded when the demo runs, and the packages are installed.
INDEX = $(shell $(BIN)/python -c 'import importlib.util as i; print("scann" if i.find_spec("scann") else "partitioned")')

demo: $(READY)  ## end to end on synthetic data: prepare, train, evaluate, export, query, serve
	@printf '\n--- 1. a synthetic log of interactions ---\n'
	$(STEP) synthesize --out $(DEMO)/events.csv --overwrite
	@printf '\n--- 2. prepare: filter, number, sort and split it ---\n'
	$(STEP) prepare --source csv --input $(DEMO)/events.csv --out $(DEMO)/prepared --overwrite
	@printf '\n--- 3. train two towers for Recall@N ---\n'
	$(STEP) train --data $(DEMO)/prepared --out $(DEMO)/run --rank-kernel sigmoid --kernel softplus --alpha 1.0 --overwrite
	@printf '\n--- 4. evaluate: exact Recall@N on users that training has not seen ---\n'
	$(STEP) evaluate --run $(DEMO)/run --cutoffs 50 100 200 500
	@printf '\n--- 5. export a SavedModel with exact search ---\n'
	$(STEP) export --run $(DEMO)/run --out saved_models/demo
	@printf '\n--- 6. export one with an approximate index ---\n'
	@test $(INDEX) = scann || printf 'ScaNN, which exists for Linux only, is not installed: the index is partitioned.\n'
	$(STEP) export --run $(DEMO)/run --out saved_models/demo-fast --index $(INDEX) --recall-target 0.95
	@printf '\n--- 7. query the exact one ---\n'
	$(STEP) query --model saved_models/demo --history item-00042,item-00007 --top-n 10
	@printf '\n--- 8. start a server with the other one, ask it over REST, and stop it ---\n'
	$(STEP) query --model saved_models/demo-fast --history item-00042,item-00007 --top-n 3 --rest
	@printf '\nDone. The log was synthetic. For a log of your own, begin with:\n'
	@printf '  $(STEP) prepare --source csv --input events.csv --out work/prepared\n'

test: $(READY)  ## lint, type-check and run the tests; prints the coverage
	$(MAKE) --no-print-directory lint types check

lint: $(READY)  ## check style, imports and formatting
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .

types: $(READY)  ## check the types
	$(BIN)/mypy

# Below Python 3.12, slipcover now and then exchanges functions that it has seen for ones without
# probes, and fails if a thread adds to a module meanwhile. No number of probes is above this one.
check: $(READY)  ## run the tests alone, and print the coverage
	@mkdir -p build
	$(BIN)/python -m slipcover --threshold 1000000000 --source tfrs_croloss,pipelines --json --out build/coverage.json \
	  -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m 'not slow' --ignore=$(SPARK_TESTS)
	@$(BIN)/python -c 'import json; print("coverage of tfrs_croloss and pipelines: %.1f %%" \
	  % json.load(open("build/coverage.json"))["summary"]["percent_covered"])'

test-spark: $(READY)  ## test the Spark engine of prepare; installs pyspark, needs Java 17
	$(call install_pins,$(PINS:.txt=-spark.txt))
	$(BIN)/pytest -q -p no:cacheprovider $(SPARK_TESTS)

test-slow: $(READY)  ## the tests that `make test` leaves out: killed workers, parameter servers, repeated cases
	$(call install_pins,$(PINS:.txt=-docs.txt))
	$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m slow --ignore=$(SPARK_TESTS)

attack: $(READY)  ## fuzz the server and the steps for ten minutes; SEED=7 repeats a run
	timeout --signal=INT --kill-after=20 600 \
	  $(BIN)/pytest -p no:cacheprovider -o python_files='attack_*.py' tests/attack

bench: $(READY)  ## measure speed and memory against other implementations, as ratios (half an hour)
	$(BIN)/python -m benchmarks

docs: $(READY)  ## build the documentation into build/docs, warnings as errors (no network once Sphinx is installed)
	@$(BIN)/python -c 'import furo, latex2mathml, myst_nb, sphinx_copybutton, sphinx_design' 2>/dev/null \
	  || $(call install_pins,$(PINS:.txt=-docs.txt))
	@$(BIN)/python -c 'import sphinx' 2>/dev/null \
	  || { echo "error: the documentation needs Python 3.11 or newer. Try: make PYTHON=python3.11 VENV=.venv-docs docs"; exit 2; }
	$(BIN)/python -m sphinx --nitpicky --fail-on-warning --keep-going --quiet -d build/doctrees docs build/docs
	@printf 'The documentation is in build/docs/index.html\n'

tutorials: $(READY)  ## run the notebooks of docs/tutorials, and write their outputs into them
	@$(BIN)/python -c 'import ipykernel, nbclient' 2>/dev/null \
	  || $(call install_pins,$(PINS:.txt=-docs.txt))
	$(BIN)/python docs/tutorials/execute.py

figures: $(READY)  ## draw the figures of the README and of the documentation
	$(BIN)/python docs/draw_figures.py

wheel: $(READY)  ## build the wheel, and import it in an empty environment
	rm -rf dist build/wheel-check
	$(BIN)/python -m build --quiet --no-isolation .
	$(PYTHON) -m venv build/wheel-check
	$(BIN)/uv pip install --quiet --python build/wheel-check/bin/python --constraint $(PINS) dist/*.whl
	cd build && wheel-check/bin/python -c 'import tfrs_croloss; print("tfrs_croloss", tfrs_croloss.__version__, "imports")'

pins: $(READY)  ## resolve requirements/*.txt again, with hashes; UPGRADE=--upgrade takes the newest versions
	$(BIN)/python requirements/resolve.py $(UPGRADE)

clean:  ## remove the virtual environment and what was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
