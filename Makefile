# Two commands do all the set-up on a machine with Python (3.10 or newer) and make:
#
#   make run     convert a real photograph, from nhwc bytes to nChw16c floats and back
#   make test    run the tests
#
# The environment is built in .venv the first time and whenever pyproject.toml changes.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# How many of its random cases each property tries: new ones every time. 1: all, all combinations of parameters
# and all cases of slow tests, which take turns otherwise (tests/covering.py); 20: for a night.
THOROUGH ?= 0.3

.PHONY: run test lint bench docs clean help

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Relayout needs Python 3.10 or newer; set PYTHON=..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[image,test]'
	@touch $@

$(VENV)/.ready-%: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

run: $(READY) ## convert a real photograph to nChw16c floats and back, explained
	@$(BIN)/python examples/photograph.py

# Bytecode is written, whatever the environment says: hundreds of tests start a process of their own, and each
# would spend a third of a second or more on compiling the sources again.
test: $(READY) ## run the tests
	PYTHONDONTWRITEBYTECODE= RELAYOUT_THOROUGH=$(THOROUGH) $(BIN)/python -m pytest -n auto --dist worksteal --durations 60 --durations-min 4

lint: $(VENV)/.ready-lint ## check style and types
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.ready-bench ## measure the speed of description and of reorders, beside others (out/)
	$(BIN)/python bench/description.py
	@mkdir -p out
	$(BIN)/relayout bench reorder --json out/bench-reorder.json --plot out/bench-reorder.svg $(BENCH)

docs: $(VENV)/.ready-docs ## draw the pictures and build the pages into site/
	$(BIN)/python docs/draw.py
	$(BIN)/mkdocs build --strict

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) site out dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
