# Everything a person types. The environment in .venv is made and brought up to date by itself.
#
#   PYTHON=python3.12         which Python makes .venv (3.11 or newer)
#   TORCH_INDEX_URL=...       an index of torch builds, such as the one for CPUs; on Linux x86_64
#                             plain pip takes the CUDA build (about 3 GB) unless it is told otherwise
#   PYTEST_ARGS=...           passed on by `make test`

PYTHON ?= python3
TORCH_INDEX_URL ?=
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
pinned = $(shell grep -m1 '^$(1)==' requirements.txt)
TORCH := $(call pinned,torch)
UV := $(call pinned,uv)
AXE := axe-core@4.14.1
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
# What nbstripout leaves by default: papermill's traces, timings, and the Python that last saved.
NOISE := metadata.papermill cell.metadata.papermill cell.metadata.execution metadata.language_info.version

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup run site lab test browser check strip constraints clean
.DELETE_ON_ERROR:

help: ## This list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null || grep '## ' Makefile

setup: $(VENV)/.ready ## Make or update .venv (the others do so by themselves)

run: $(VENV)/.ready ## Run all notebooks and write results/index.html
	@$(BIN)/casebook capsule 0.5.11
	@$(BIN)/casebook run --out results

site: $(VENV)/.ready ## Write the pages in results/ anew, from the runs and cases there
	@$(BIN)/casebook site --out results

lab: $(VENV)/.ready ## Open the notebooks in JupyterLab
	@$(BIN)/jupyter trust $(NOTEBOOKS) >/dev/null
	@JUPYTER_CONFIG_PATH=lab $(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks/README.md

test: $(VENV)/.ready browser ## Run all tests, and every notebook with its defaults
	@CASEBOOK_VERDICT_STRICT=1 $(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile \
	  --nbmake --nbmake-timeout=300 --nbmake-kernel=python3 tests notebooks $(PYTEST_ARGS)

# As far as this machine and user allow; a test that misses something skips and says what.
browser: $(VENV)/.ready ## Install what the tests in a browser want (apt as root, pip, npm)
	@if ! command -v chromium >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing chromium"; { apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null || true; fi
	@$(BIN)/uv pip install -q --python $(BIN)/python -r requirements-browser.txt -c constraints.txt || true
	@if command -v npm >/dev/null && [ ! -d build/node_modules/axe-core ]; then \
	  npm install --silent --no-save --no-audit --no-fund --prefix build $(AXE) >/dev/null || true; fi

check: $(VENV)/.ready ## Formatting, lint, types, and notebooks stripped of outputs
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(if $(NOTEBOOKS),$(BIN)/nbstripout --verify --extra-keys "$(NOISE)" $(NOTEBOOKS))

strip: $(VENV)/.ready ## Strip outputs and other traces of a run from the notebooks
	@$(if $(NOTEBOOKS),$(BIN)/nbstripout --extra-keys "$(NOISE)" $(NOTEBOOKS))

constraints: $(VENV)/.ready ## Renew constraints.txt from .venv, after the tests pass
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/uv pip freeze --python $(BIN)/python --exclude-editable \
	  | grep -E '^[A-Za-z0-9_.-]+==' | grep -viE '^(triton|nvidia|cuda|pip==|setuptools==)' | sed 's/+.*//'; } > constraints.new
	@mv constraints.new constraints.txt

clean: ## Remove results and caches; .venv stays
	rm -rf results build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find lib tests notebooks -name __pycache__ -prune -exec rm -rf {} +

# --clear: what is left of an environment whose Python is gone must not be taken for a new one.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "$(PYTHON) is not Python 3.11 or newer: name one that is, as in 'make PYTHON=python3.12'." >&2; exit 1; }
	@echo "Making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv --clear $(VENV)

# With pip and not uv, for only pip reads the configuration that may offer a CPU build; without its
# dependencies, which come with the rest. The stamp carries the version, so a new pin makes a new one.
$(VENV)/.$(TORCH): | $(BIN)/python
	@echo "Installing $(TORCH)"
	@$(BIN)/python -m pip install --no-deps --disable-pip-version-check \
	  $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) $(TORCH)
	@touch $@

$(VENV)/.ready: requirements.txt constraints.txt pyproject.toml $(VENV)/.$(TORCH)
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(UV)
	@echo "Installing the other packages"
	@$(BIN)/uv pip install --python $(BIN)/python -r requirements.txt -c constraints.txt 2>&1 \
	  | sed '/^ [-+~] /d'
	@touch $@
