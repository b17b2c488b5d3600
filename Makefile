# Everything sets itself up in a private .venv; only Python 3.11 or newer is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NAME ?= peers
ARGS ?=

.PHONY: demo test slow lint bench docs clean

demo: $(VENV)/.installed
	$(BIN)/python -m probjax.cli demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

slow: $(VENV)/.installed
	XLA_FLAGS= $(BIN)/python -m pytest -n 2 --dist loadfile -m slow

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(VENV)/.peers
	$(BIN)/python -m benchmarks $(NAME) $(ARGS) --json benchmarks/results/$(NAME).json
	$(BIN)/python -m benchmarks.report

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f docs/mkdocs.yml

clean:
	rm -rf $(VENV)

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[plots,progress,data,sklearn,interop,checkpoint]" --group dev
	touch $@

# What does not install is reported in the tables, and stops nothing.
$(VENV)/.peers: $(VENV)/.installed
	$(BIN)/python -m benchmarks.peer_packages
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --group docs
	touch $@
