# Few verbs. `make serve` and `make test` each set up a fresh machine on their own.
PYTHON ?= python3
VENV ?= .venv
BIN ?= $(VENV)/bin
ARGS ?=
FOLDERS := hookspecs ops engine server plugins_builtin
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check

.PHONY: help serve test check lint fast parity mutants bench clients schemathesis
help:
	@echo "make serve [ARGS='MODEL --port 8000']  install into $(VENV) and run the server"
	@echo "make test                             what CI runs: build the wheel, test that wheel"
	@echo "make check                            the quick one: lint, then the fast tests (a minute)"
	@echo "make lint                             ruff, mypy, import-linter"
	@echo "make parity                           tokens and logits against transformers (minutes)"
	@echo "make mutants                          named breakages, each of which must turn a test red"
	@echo "make clients                          real client packages, each in an environment of its own"
	@echo "make schemathesis                     three minutes of made-up requests to every route"
	@echo "make bench                            the load generator against a server started for it"

$(VENV)/.runtime: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/.develop: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e '.[test,dev]'
	touch $@ $(VENV)/.runtime

serve: $(VENV)/.runtime
	@exec $(VENV)/bin/server run $(ARGS)

test:
	@PYTHON=$(PYTHON) .ci/test $(ARGS)

check: lint fast

# BIN lets another environment do it (CI's), so that nothing is installed twice.
lint: $(if $(filter $(VENV)/bin,$(BIN)),$(VENV)/.develop)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p hookserve
	PYTHONPATH=.typing $(BIN)/lint-imports

fast: $(VENV)/.develop
	PYTHONSAFEPATH=1 $(VENV)/bin/python -m pytest -q -x -m 'not e2e and not slow' tests $(ARGS)

parity: $(VENV)/.develop
	PYTHONSAFEPATH=1 $(VENV)/bin/python -m pytest -s -q tests/parity --parity-fraction=1 $(ARGS)

mutants: $(VENV)/.develop
	$(VENV)/bin/python tests/mutants/run.py $(ARGS)

bench: $(VENV)/.develop
	$(VENV)/bin/python bench/compare.py $(ARGS)

clients: $(VENV)/.develop
	PYTHONPATH=tests/support $(VENV)/bin/python -P tests/clients/run.py $(ARGS)

schemathesis: $(VENV)/.develop
	PYTHONPATH=tests/support $(VENV)/bin/python -P tests/clients/run.py schemathesis $(ARGS)
