# `make demo` and `make test` set up all they need in .venv, given Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test lint format clean

demo: $(VENV)/installed
	$(BIN)/integrodiff demo --output demo.png --overwrite

test: $(VENV)/installed-dev lint
	$(BIN)/python -m pytest tests/parity/test_against_naive.py --quiet -k numpy --jaxtyping-packages=integrodiff.stages,beartype.beartype
	$(BIN)/python -m pytest --numprocesses=auto $(PYTEST_ARGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

$(VENV)/created:
	@$(PYTHON) -c 'import sys; v = sys.version_info; ok = v >= (3, 11); ok or print("integrodiff needs Python 3.11 or newer; this is", sys.version.split()[0], "- name another with: make PYTHON=python3.11 ..."); sys.exit(not ok)'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# Installed in place: Python sources are used as they are in the tree, the compiled engine is built.
NATIVE := CMakeLists.txt $(wildcard native/*)
$(VENV)/installed: $(VENV)/created pyproject.toml constraints.txt $(NATIVE)
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/created pyproject.toml constraints.txt $(NATIVE)
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis demo.png
