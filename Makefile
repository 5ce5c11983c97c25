# The only entry: every other script, and CI, calls these targets.
.DEFAULT_GOAL := help
.PHONY: help setup demo check test lint sim same-answers explore bench bench-protocol pack bench-recovery golden fixture docs format lock clean
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

# PYTHON=python3.12 chooses another interpreter for a new .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-build-isolation
# Inside .venv nothing may come from another environment.
unexport PYTHONPATH PYTHONHOME

QUICK_TESTS := $(wildcard tests/unit tests/architecture tests/simulation)

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Make .venv with everything pinned (does nothing when it is up to date)

# PySpark is built from its source archive, so what builds it is installed first, pinned as well.
$(STAMP): pyproject.toml requirements.lock requirements-build.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Tidegate needs Python 3.11 or newer, and '$(PYTHON)' is missing or older: run for example  make setup PYTHON=python3.12"; exit 1; }
	@echo "setup: $(VENV) with $$($(PYTHON) --version); the first time downloads about 600 MB, most of it Spark"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "Python's venv module does not work here: on Debian or Ubuntu run  apt install python3-venv"; exit 1; }
	@$(PIP) --require-hashes -r requirements-build.lock
	@$(PIP) --require-hashes --use-pep517 -r requirements.lock
	@$(PIP) --no-deps --editable .
	@touch $@
	@echo "setup: done"

demo: setup ## See a checkpoint complete under backpressure
	@$(BIN)/tidegate demo

check: lint ## Format, lint, types, layers, quick tests
	@$(BIN)/python -m pytest -q -m "not slow" $(QUICK_TESTS)

test: lint ## Everything
	@$(BIN)/python -m pytest -q --numprocesses 2 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder tests

lint: setup
	@$(BIN)/ruff format --quiet --check . || { echo "Some files are not formatted: run  make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@report=$$($(BIN)/lint-imports) || { echo "$$report"; exit 1; }

sim: setup ## Simulate 3,000 whole jobs with faults; SEED=7 replays one, STATE=heap with its state there, SEEDS=500 plays so many
	@$(BIN)/python -m tidegate.testing.simulation $(if $(STATE),--state $(STATE)) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),3000) --processes 2)

golden: setup ## Kill processes of real Spark jobs, case by case; CASES=300 plays so many, PLACE=local there, RESCALED=1 restores at other slots, CASE=... SEED=7 replays one
	@$(BIN)/python -m tests.golden $(if $(CASE),--case $(CASE)) $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES)) $(if $(PLACE),--place $(PLACE)) $(if $(RESCALED),--rescaled)

fixture: setup ## Make the kept checkpoints and savepoints that are missing below tests/fixtures; what is there stays
	@$(BIN)/python -m tests.fixtures.upgrade_job

same-answers: setup ## Compare every pipeline with Spark, undisturbed and with a fall midway
	@TIDEGATE_EVERY_PIPELINE_FALLS=1 $(BIN)/python -m pytest -q tests/spark/same_answers

explore: setup ## Try properties, and expressions beside Spark, on examples that no run has had before
	@TIDEGATE_EXPLORE=1 $(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile -m hypothesis tests
	@TIDEGATE_EXPLORE=1 $(BIN)/python -m pytest -q tests/spark/test_every_expression.py

bench: setup ## Measure beside Flink and Spark, into benchmarks/RESULTS.md; QUICK=1 is shorter, ONLY="slow-operator peak" chooses, ADD=1 adds a repetition
	@$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(SYSTEMS),--systems $(SYSTEMS)) $(if $(VARIANTS),--variants $(VARIANTS)) $(if $(REPETITIONS),--repetitions $(REPETITIONS)) $(if $(WRITE_PART),--write-part) $(if $(ADD),--add)

bench-protocol: setup ## Measure how the protocol's cost grows with the job; ARGS=--json prints numbers
	@$(BIN)/python -m benchmarks.protocol $(ARGS)

pack: setup ## Pack Python and Tidegate into one archive for spark-submit; WITH=polars takes more packages along
	@$(BIN)/python scripts/pack_environment.py $(if $(WITH),--with $(WITH))

bench-recovery: setup ## Measure the time from a failure to the next committed row; ARGS="--times 3" strikes less often
	@$(BIN)/python -m benchmarks.recovery $(ARGS)

docs: setup ## Check that the documents say what the code does and every link leads somewhere
	@$(BIN)/python -m pytest -q tests/architecture/test_docs_links.py tests/architecture/test_reference.py

format: setup ## Format and fix what can be fixed
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

# Needs uv; the lock names neither an index nor a host, so that it installs from wherever pip is told to look.
COMPILE := uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --python-version 3.11
lock: ## Pin the newest versions that pyproject.toml allows (needs uv)
	@$(COMPILE) --upgrade --group pyproject.toml:build --output-file requirements-build.lock
	@$(COMPILE) --upgrade --extra java --extra rocksdb --group dev --output-file requirements.lock pyproject.toml

clean: ## Remove .venv and every cache
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .bench build dist
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
