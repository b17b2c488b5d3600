# Everything sets itself up in a private .venv; only Python 3.11 or newer is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NAME ?= peers
ARGS ?=

# Tests in tiers; what is in none of these markers is `make test`.
TIERS := documents or platforms or statistics or slow
PYTEST := python -m pytest -n 2 --durations=25
DEFAULT := --dist worksteal tests -m "not ($(TIERS))"

.PHONY: demo test check documents platforms statistics slow oldest newest lint bench \
	accelerators docs clean

demo: $(VENV)/.installed
	$(BIN)/python -m probjax.apps.cli demo

test: $(VENV)/.installed
	$(BIN)/$(PYTEST) $(DEFAULT)

check: lint docs test documents platforms statistics slow

documents: $(VENV)/.installed
	$(BIN)/$(PYTEST) --dist worksteal tests probjax -m documents

platforms: $(VENV)/.installed
	$(BIN)/$(PYTEST) --dist loadfile tests -m platforms

# In programs as users have them: statistics take longer to run than to compile.
statistics: $(VENV)/.installed
	XLA_FLAGS= $(BIN)/$(PYTEST) --dist worksteal tests -m statistics

slow: $(VENV)/.installed
	XLA_FLAGS= $(BIN)/$(PYTEST) --dist loadfile tests -m slow

# `make test` with the lowest versions that pyproject.toml allows, and with the newest.
# In programs as users have them, because fits of jaxlib 0.9.0 can end early in programs
# that were not optimised. Old packages use what their new dependencies deprecate.
oldest: .venv-oldest/.installed
	XLA_FLAGS= .venv-oldest/bin/$(PYTEST) $(DEFAULT) -W ignore::DeprecationWarning

newest:
	test -d .venv-newest || $(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --upgrade pip
	.venv-newest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager \
		-e ".[all]" --group test
	.venv-newest/bin/$(PYTEST) $(DEFAULT)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(VENV)/.peers
	$(BIN)/python -m benchmarks $(NAME) $(ARGS) --json benchmarks/results/$(NAME).json
	$(BIN)/python -m benchmarks.report

# What the compilers of TPUs and GPUs make of the main programs. They are several
# gigabytes, in environments of their own, and need no device.
accelerators: $(VENV)/.installed .venv-tpu/.installed .venv-cuda/.installed
	$(BIN)/python -m benchmarks accelerators $(ARGS) \
		--json benchmarks/results/accelerators.json
	$(BIN)/python -m benchmarks.report

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f docs/mkdocs.yml

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest .venv-tpu .venv-cuda

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[plots,progress,data,sklearn,interop,checkpoint]" --group dev
	touch $@

.venv-oldest/.installed: pyproject.toml tests/floors.py
	rm -rf .venv-oldest
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --upgrade pip
	$(PYTHON) tests/floors.py > .venv-oldest/floors.txt
	.venv-oldest/bin/python -m pip install --quiet -c .venv-oldest/floors.txt \
		-e ".[all]" --group test
	touch $@

# What does not install is reported in the tables, and stops nothing.
$(VENV)/.peers: $(VENV)/.installed
	$(BIN)/python -m benchmarks.peer_packages
	touch $@

.venv-%/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --upgrade pip
	.venv-$*/bin/python -m pip install --quiet -e ".[$*,interop]"
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --group docs
	touch $@
