# Each target makes .venv and installs what it needs the first time; after that it starts at once.
#   make demo         the main job on real data: nearest neighbours of handwritten digits
#   make test         all tests; TESTS=tests/test_plan.py for some
#   make lab          the quickstart notebook in JupyterLab
#   make lint         ruff and mypy
#   make bench        the benchmarks, written to benchmarks/results/
#   make screenshots  the panel's tabs in Chromium, light and dark, written to screenshots/

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# What memscope knows of JAX was measured with this version; the compile-only GPU plugin must match it.
JAX    := jax==0.10.2 jaxlib==0.10.2 jax-cuda13-pjrt==0.10.2 jax-cuda13-plugin==0.10.2

# The browser tests time what a person waits for, and so run alone.
TWO_AT_A_TIME = $(BIN)/python -m pytest -n 2 --dist worksteal --ignore=tests/browser tests

.PHONY: demo test lab lint bench screenshots constraints system clean

demo: $(VENV)/.with-demo
	@$(BIN)/memscope demo

test: $(VENV)/.with-test $(if $(wildcard tests/browser),system)
	$(if $(TESTS),$(BIN)/python -m pytest $(TESTS),$(TWO_AT_A_TIME) && $(BIN)/python -m pytest tests/browser)

lab: $(VENV)/.with-demo $(VENV)/.with-notebook
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_FLAGS) notebooks/quickstart.ipynb

lint: $(VENV)/.with-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.with-test
	$(BIN)/python -m benchmarks

screenshots: $(VENV)/.with-test system
	$(BIN)/python -m tests.browser.screenshots

# One stamp for each extra of pyproject.toml: pip runs again only when a file it reads has changed.
$(VENV)/.with-%: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Setting up $(VENV) for $* (a minute or two, the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*]' -c constraints.txt
	@touch $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	  "memscope needs Python 3.11 or newer, and $(PYTHON) is %d.%d: try make PYTHON=python3.12" % sys.version_info[:2])'
	@$(PYTHON) -m venv $(VENV)

# What the browser tests need beside Python: installed where we may, named where we may not.
system:
	@command -v chromium >/dev/null && command -v dot >/dev/null && exit 0; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium graphviz >/dev/null; \
	else \
	  echo "chromium or graphviz is missing and can't be installed from here: the browser tests will be skipped."; \
	fi

# Exact versions for every Python and platform at once, without the address of any index.
constraints: | $(BIN)/pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@printf '%s\n' $(JAX) > $(VENV)/jax.txt
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --upgrade --no-header --no-annotate \
	  -c $(VENV)/jax.txt pyproject.toml -o $(VENV)/constraints.txt
	@{ echo '# Exact versions that memscope is tested with, for Python 3.11 to 3.14. Made by `make constraints`.'; \
	  cat $(VENV)/constraints.txt; } > constraints.txt

clean:
	rm -rf $(VENV) memscope-demo dist build
