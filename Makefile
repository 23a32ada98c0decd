# Every target sets up what it needs in .venv, given Python 3.11+ and make; `make help` lists them.
# Many tests start programs: without compiled modules each of them would compile all of its own.
export PYTHONDONTWRITEBYTECODE :=
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Modules are compiled when they are first imported: most never are.
INSTALL := $(PIP) install --no-compile
# One worker per processor, each with one thread of linear algebra.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --dist=worksteal

# Versions of Python for `make dist` and `make matrix`, which need each of them installed.
PYTHONS ?=
MATRIX_ARGS ?=

.PHONY: help demo page quick quick-tests test all-tests tools thorough shapes style lint format docs napari dist matrix clean

help:  ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

demo: $(VENV)/installed  ## denoise a sample image into demo.png
	$(BIN)/integrodiff demo --output demo.png --overwrite

page: $(VENV)/installed-page  ## build the page for the browser into page/dist
	$(BIN)/python page/build.py

quick: style quick-tests  ## ruff, and the tests that take less than a minute, without PyTorch

# Types are checked while the engine is compiled, and beside the tests: mypy has one thread.
test:  ## lint, types, shapes, and all tests but long ones
	$(MAKE) --no-print-directory --jobs=3 lint all-tests

quick-tests: $(VENV)/installed-dev
	HYPOTHESIS_PROFILE=quick QUICK_TESTS=1 $(PYTEST) --quiet -m "not slow and not long" \
	  tests/unit tests/parity tests/properties tests/io tests/cli tests/defects $(PYTEST_ARGS)

all-tests: shapes
	$(PYTEST) -m "not long" --ignore=tests/tools $(PYTEST_ARGS)

tools: $(VENV)/installed-dev  ## tests of benchmarks, experiments and tools, apart from the package's
	$(PYTEST) -m "not long" tests/tools $(PYTEST_ARGS)

thorough: $(VENV)/installed-dev  ## long tests, and all properties with more and other examples
	HYPOTHESIS_PROFILE=thorough $(PYTEST) -m "long or hypothesis" $(PYTEST_ARGS)

shapes: $(VENV)/installed-dev  ## check the shapes in the annotations of the stages
	QUICK_TESTS=1 $(BIN)/python -m pytest tests/parity/test_against_naive.py --quiet -k "numpy and every_model" \
	  --jaxtyping-packages=integrodiff.stages,beartype.beartype

style: $(VENV)/required-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

lint: style  ## ruff and mypy
	$(BIN)/mypy

format: $(VENV)/installed-dev  ## apply ruff's fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/installed-docs page  ## build the documentation, with the page in it, into docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -d docs/_build/doctrees docs docs/_build/html $(SPHINX_ARGS)

napari: $(VENV)/installed-napari  ## install napari and Qt, and draw the pictures of the plugin
	$(BIN)/python tools/napari_pictures.py docs/images

dist: $(VENV)/installed-release  ## build sdist and wheels, and try them in empty environments
	$(BIN)/python tools/dist.py $(PYTHONS)

matrix: $(VENV)/installed-release  ## quick tests on several Pythons, lowest and newest versions
	$(BIN)/python tools/matrix.py $(MATRIX_ARGS) $(PYTHONS)

$(VENV)/created:
	@$(PYTHON) -c 'import sys; v = sys.version_info; ok = v >= (3, 11); ok or print("integrodiff needs Python 3.11 or newer; this is", sys.version.split()[0], "- name another with: make PYTHON=python3.11 ..."); sys.exit(not ok)'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# Installed in place: Python sources are used as they are in the tree, the compiled engine is built.
NATIVE := CMakeLists.txt $(shell find native -type f)
$(VENV)/built: $(VENV)/created pyproject.toml $(NATIVE)
	$(INSTALL) --no-deps --editable .
	@touch $@

$(VENV)/required: $(VENV)/created pyproject.toml constraints.txt tools/requirements.py
	$(BIN)/python tools/requirements.py > $(VENV)/required.txt
	$(INSTALL) --constraint constraints.txt --requirement $(VENV)/required.txt
	@touch $@

$(VENV)/required-dev: $(VENV)/created pyproject.toml constraints.txt tools/requirements.py
	$(BIN)/python tools/requirements.py dev > $(VENV)/dev.txt
	$(INSTALL) --constraint constraints.txt --requirement $(VENV)/dev.txt
	@touch $@ $(VENV)/required

$(VENV)/installed: $(VENV)/built $(VENV)/required
	@touch $@

$(VENV)/installed-dev: $(VENV)/built $(VENV)/required-dev
	@touch $@ $(VENV)/installed

# The compiler to WebAssembly, pinned; the page takes models and samples from the package.
$(VENV)/installed-page: $(VENV)/installed constraints.txt
	$(INSTALL) --constraint constraints.txt ziglang
	@touch $@

$(VENV)/installed-docs: $(VENV)/installed tools/requirements.py
	$(BIN)/python tools/requirements.py docs > $(VENV)/docs.txt
	$(INSTALL) --constraint constraints.txt --requirement $(VENV)/docs.txt
	@touch $@

# napari and a binding of Qt, with which `make test` tries the plugin.
$(VENV)/installed-napari: $(VENV)/installed tools/requirements.py
	$(BIN)/python tools/requirements.py test-napari > $(VENV)/napari.txt
	$(INSTALL) --constraint constraints.txt --requirement $(VENV)/napari.txt
	@touch $@

# The group `release` of pyproject.toml, for any version of pip.
$(VENV)/installed-release: $(VENV)/created pyproject.toml
	$(BIN)/python -c 'import tomllib; file = open("pyproject.toml", "rb"); print(*tomllib.load(file)["dependency-groups"]["release"], sep="\n")' > $(VENV)/release.txt
	$(INSTALL) --requirement $(VENV)/release.txt
	@touch $@

clean:  ## remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis demo.png dist page/dist page/node_modules \
	  docs/_build docs/built docs/api/generated
