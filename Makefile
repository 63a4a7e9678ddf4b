# Two commands do everything in an environment of their own: `make demo` and `make test`.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PACKAGES := core plugins/cpu_ref
SOURCES := $(addsuffix /src,$(PACKAGES))

.PHONY: demo test check format lint types contracts docs bench clean

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n auto

check: format lint types contracts test

format: $(VENV)/.installed
	$(BIN)/ruff format --check .

lint: $(VENV)/.installed
	$(BIN)/ruff check .

types: $(VENV)/.installed
	$(BIN)/mypy $(SOURCES)
	$(BIN)/pyright --pythonpath $(BIN)/python $(SOURCES)

contracts: $(VENV)/.installed
	$(BIN)/lint-imports

docs: $(VENV)/.installed
	$(BIN)/backbay ops --markdown > docs/ops.md

bench: $(VENV)/.installed
	$(BIN)/python bench/core_costs.py
	$(BIN)/python bench/cpu_ref_mulmat.py
	$(BIN)/python bench/open_gguf.py

clean:
	rm -rf $(VENV)

$(VENV)/.installed: requirements-dev.txt $(addsuffix /pyproject.toml,$(PACKAGES))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(addprefix -e ./,$(PACKAGES)) -r requirements-dev.txt
	touch $@
