# The commands of this project. `make` alone lists them.
SHELL := /bin/sh
.DEFAULT_GOAL := help

PYTHON ?= python3
PORT ?= 8501
# tests at a time; files of tests at a time that start engines, each with a worker for every core, or a browser
JOBS ?= 2
HEAVY_JOBS ?= 2
# least share of lines of tier, dashboard and pages that the quick tests run, in percent
COVERAGE ?= 85

VENV := .venv
BIN := $(VENV)/bin
REQUIREMENTS := requirements.txt requirements-dev.txt
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Quick tests run side by side. Those that start engines or a browser wait more than they compute, and run a file at a
# time each. Those that have a bar in seconds run alone, after the others.
QUICK := not slow and not browser and not engine and not timed
HEAVY := (browser or engine) and not slow and not timed
TIMED := timed and not slow

# Open a browser where there is a screen.
HEADLESS := $(if $(or $(DISPLAY),$(WAYLAND_DISPLAY),$(filter Darwin,$(shell uname -s))),false,true)

.PHONY: help setup run test test-quick test-slow check lint types architecture coverage format bench chromium clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## make .venv with everything that running and testing need (about 6 GB with torch for CUDA)

$(STAMP): $(REQUIREMENTS)
	@command -v $(PYTHON) >/dev/null || { echo "Python is missing: install Python 3.11 or newer," \
		"or name it: make setup PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$$($(PYTHON) --version) is too old:" \
		"Python 3.11 or newer is needed. Install it, or name it: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module." \
		"On Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }
	@# an environment that still works is completed, anything else (moved, half made, too old) is made anew
	@$(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing packages into $(VENV); the first time this takes several minutes."
	$(PIP) install -r requirements-dev.txt $(if $(CI),--quiet)
	@touch $@

run: setup  ## open the dashboard (PORT=8501)
	$(BIN)/streamlit run dashboard/app.py --server.port $(PORT) --server.headless $(HEADLESS) --server.showEmailPrompt false

# QUICK_DONE=1 where the quick tests have just passed under coverage.
test: setup chromium  ## every test but the slow ones, in a browser too
ifndef QUICK_DONE
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "$(QUICK)"
endif
	$(BIN)/python -m pytest -n $(HEAVY_JOBS) --dist loadfile -m "$(HEAVY)"
	$(BIN)/python -m pytest -m "$(TIMED)"

test-quick: setup  ## the tests that start neither an engine nor a browser, and have no bar in seconds
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "$(QUICK)"

test-slow: setup  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow --timeout 3600

check: lint types architecture coverage  ## format, lint, types, architecture, coverage (`make -k check` goes on after a failure)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy tier dashboard pages

architecture: setup
	$(BIN)/lint-imports

# Measured over the quick tests.
coverage: setup
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m "$(QUICK)" \
		--cov --cov-report=term --cov-fail-under=$(COVERAGE)

format: setup  ## format the code and repair what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## the benchmarks, one after another (bench/gpu_paper.sh, which needs a GPU, by itself)
	@set -e; for script in $(filter-out bench/gpu_paper.py,$(wildcard bench/*.py)); do echo "== $$script"; $(BIN)/python "$$script"; done

# The browser tests drive the Chromium that the system's package manager installs.
chromium:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		if command -v $$name >/dev/null; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null \
			&& command -v chromium >/dev/null && exit 0; \
	fi; \
	echo "The browser tests need Chromium or Google Chrome on the PATH." \
		"On Debian: sudo apt-get install chromium. On Ubuntu: sudo snap install chromium." \
		"Without one, run the others: make test-quick" >&2; exit 1

clean:  ## remove caches, keep the environment and all results
	rm -rf .coverage .coverage.* htmlcov .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build *.egg-info
	find tier dashboard pages tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
