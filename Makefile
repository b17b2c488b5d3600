# Everything sets itself up in a private .venv; only Python 3.11 or newer is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NAME ?= peers
ARGS ?=

# Tests in tiers; what is in none of these markers is `make test`.
TIERS := documents or platforms or statistics or slow
PYTEST := $(BIN)/python -m pytest -n 2 --durations=25

.PHONY: demo test check documents platforms statistics slow lint bench docs clean

demo: $(VENV)/.installed
	$(BIN)/python -m probjax.apps.cli demo

test: $(VENV)/.installed
	$(PYTEST) --dist worksteal tests -m "not ($(TIERS))"

check: lint docs test documents platforms statistics slow

documents: $(VENV)/.installed
	$(PYTEST) --dist worksteal tests probjax -m documents

platforms: $(VENV)/.installed
	$(PYTEST) --dist loadfile tests -m platforms

# In programs as users have them: statistics take longer to run than to compile.
statistics: $(VENV)/.installed
	XLA_FLAGS= $(PYTEST) --dist worksteal tests -m statistics

slow: $(VENV)/.installed
	XLA_FLAGS= $(PYTEST) --dist loadfile tests -m slow

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
