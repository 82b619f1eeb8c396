# Each target prepares what it needs by itself: .venv, the hashed requirements and the compiled extensions.

PYTHON ?= python3
VENV := .venv
export VENV
# Runs a command and removes what it leaves, however it ends. `exec`, so that make signals it and not a shell.
RUN := exec scripts/supervise

.DEFAULT_GOAL := help
.PHONY: help servers setup run tour test fuzz bench lint format docs build lock clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/make \1\t\2/' | expand -t 14

servers: # what tests and benchmarks need beside it
	@$(RUN) scripts/setup $(VENV) "$(PYTHON)" servers

setup: ## create .venv and compile the extensions
	@$(RUN) scripts/setup $(VENV) "$(PYTHON)"

run: setup ## serve the console with the example extensions, and tell one story beside it (Ctrl-C ends it)
	@PYTHONPATH=examples $(RUN) $(VENV)/bin/python -m demo

tour: setup ## run a small example subject under the guard, the story of one approval, the example extensions, and the kernel's self-test
	@$(VENV)/bin/python examples/host.py
	@echo
	@$(VENV)/bin/python examples/approval_story.py
	@echo
	@$(VENV)/bin/python examples/runtime_story.py
	@echo
	@echo "Under the guard, what the kernel of this machine stops when it is turned on (docs/os-enforcement.md):"
	@$(VENV)/bin/democrai-sandbox doctor || echo "Not all of it is possible here: each line above says what is missing and how to get it."

test: servers lint ## lint, all tests, and the guard's tests on every other supported Python found
	@$(RUN) scripts/test $(TESTS)

fuzz: setup ## compare how a million odd URLs are read, by us and by others (minutes)
	@$(VENV)/bin/python -m tests.policy.fuzz

bench: servers ## print the table of what the guard costs
	@$(RUN) $(VENV)/bin/python -m bench $(BENCH)

lint: setup ## ruff, mypy and the import contract
	@$(RUN) scripts/lint

format: setup ## let ruff rewrite what it can
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

docs: setup ## make pages of docs/, in build/docs/site
	@scripts/docs

build: setup ## put a wheel for this interpreter into dist/
	@$(VENV)/bin/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .

lock: ## resolve requirements/*.in again
	@PYTHON="$(PYTHON)" scripts/lock

clean: ## remove everything that make created
	rm -rf .venv .venv.lock .venvs .bench .demo build dist src/*.egg-info
	rm -f src/democrai_sandbox/guard/_core.*.so src/democrai_sandbox/kernel/_native.*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
