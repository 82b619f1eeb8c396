# Each target prepares what it needs by itself: .venv, the hashed requirements and the compiled extensions.

PYTHON ?= python3
VENV := .venv
export VENV
DEMO := .demo
# Runs a command and removes what it leaves, however it ends. `exec`, so that make signals it and not a shell.
RUN := exec scripts/supervise

.DEFAULT_GOAL := help
.PHONY: help servers runtime setup run tour test check golden fuzz sanitize oracle compat bench lint format clangd docs build lock clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/make \1\t\2/' | expand -t 14

servers: setup # also what tests and benchmarks start
	@$(RUN) scripts/servers

runtime: # only what the product needs; `make setup` adds the rest
	@$(RUN) scripts/setup $(VENV) "$(PYTHON)" runtime

setup: ## create .venv with everything and compile the extensions
	@$(RUN) scripts/setup $(VENV) "$(PYTHON)" development

run: runtime ## serve the console with the example extensions, and tell one story beside it (Ctrl-C ends it)
	@PYTHONPATH=examples $(RUN) $(VENV)/bin/python -m demo "$(DEMO)"

tour: runtime ## run a small example subject under the guard, the story of one approval, the example extensions, and the kernel's self-test
	@$(VENV)/bin/python examples/host.py
	@echo
	@$(VENV)/bin/python examples/approval_story.py
	@echo
	@$(VENV)/bin/python examples/runtime_story.py
	@echo
	@echo "Under the guard, what the kernel of this machine stops when it is turned on (docs/os-enforcement.md):"
	@$(VENV)/bin/democrai-sandbox doctor || echo "Not all of it is possible here: each line above says what is missing and how to get it."

test: servers ## lint, all tests, and the tests that depend on the interpreter on every other supported Python found
	@$(RUN) scripts/test $(TESTS)

check: servers ## lint, and the tests that the changed files affect (at most 90 seconds; for after each edit)
	@$(RUN) scripts/check $(FILES)

golden: servers ## write the golden files, error pages and the command reference again
	@$(RUN) $(VENV)/bin/python -m tests.services.golden

fuzz: servers ## run every property with many new examples, compare how a million odd URLs are read, and fuzz each parser in C for a minute
	@$(RUN) $(VENV)/bin/python -m pytest -q --workers "$$(nproc)" -m hypothesis --hypothesis-profile deep tests
	@$(RUN) $(VENV)/bin/python -m tests.policy.fuzz
	@$(RUN) $(VENV)/bin/python -m tests.fuzz --seconds 60

sanitize: servers ## compile the extensions with sanitizers, and run the guard's tests and attacks with them
	@$(RUN) scripts/sanitize $(TESTS)

oracle: setup ## compare what guarded code does, as the kernel sees it, with the policy, on every interpreter (tens of minutes)
	@$(RUN) scripts/oracle $(ORACLE)

compat: ## run typical programs for popular packages in every mode, and write docs/compatibility.md (about an hour)
	@PYTHON="$(PYTHON)" $(RUN) scripts/compat $(COMPAT)

bench: servers ## print the table of what the guard costs
	@$(RUN) $(VENV)/bin/python -m bench $(BENCH)

lint: setup ## ruff, mypy and the import contract
	@$(RUN) scripts/lint

format: setup ## let ruff rewrite what it can
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

clangd: setup ## write compile_commands.json, by which editors and clangd understand the C sources
	@$(VENV)/bin/python setup.py -q compile_commands

docs: setup ## make pages of docs/, in build/docs/site
	@scripts/docs

build: setup ## put a wheel for this interpreter into dist/
	@$(VENV)/bin/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .

lock: ## resolve requirements/*.in and compat/requirements.in again
	@PYTHON="$(PYTHON)" scripts/lock

clean: ## remove everything that make created
	rm -rf .venv .venv.lock .venvs .bench .demo build dist src/*.egg-info compile_commands.json
	rm -f src/democrai_sandbox/guard/_core.*.so src/democrai_sandbox/kernel/_native.*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests bench compat -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
