# Everything a clone needs: each target does its own set-up and needs only make, git and Python >= 3.11 with venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit bench conformance docs lock clean

help: ## What there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/.runtime: requirements.lock pyproject.toml scripts/environment.py
	@sh scripts/check-python $(PYTHON)
	@$(PYTHON) scripts/environment.py $(VENV)
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@touch $@

demo: $(VENV)/.runtime ## Watch a real Codex agent answer from inside a Sandbox
	@$(BIN)/occ demo

test: $(VENV)/.dev ## Lint, types, import rules and every test; nothing is skipped silently
	@sh scripts/system-packages
	@$(BIN)/ruff check src tests benchmarks scripts
	@$(BIN)/ruff format --check src tests benchmarks scripts
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.dev ## Lint alone
	@$(BIN)/ruff check src tests benchmarks scripts

types: $(VENV)/.dev ## Types alone
	@$(BIN)/mypy

unit: $(VENV)/.dev ## The tests that need nothing
	@$(BIN)/python -m pytest tests/unit tests/architecture

conformance: $(VENV)/.dev ## The Driver suites alone, and what they showed: members by cases
	@sh scripts/system-packages
	@$(BIN)/python -m pytest -q -p oce.testing.conformance_table tests/conformance $(PYTEST_ARGS)

bench: $(VENV)/.dev ## Print the benchmark tables, peers in the same run
	@$(BIN)/python -m benchmarks

docs: $(VENV)/.dev ## Write the generated reference pages again
	@$(BIN)/python scripts/reference.py

lock: $(VENV)/.dev ## Resolve the dependencies again
	@$(BIN)/pip-compile -q --extra codex --extra machine --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-header --allow-unsafe -o requirements.lock pyproject.toml
	@$(BIN)/pip-compile -q --all-extras --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-header --allow-unsafe -c requirements.lock -o requirements-dev.lock pyproject.toml

clean: ## Remove what make made
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
