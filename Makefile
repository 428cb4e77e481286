# Every target prepares what it needs (scripts/setup.sh); nothing but a C++20 compiler and Python 3.11 is expected.
# Variables: PYTHON (interpreter for .venv), OUTCROP_JOBS, OUTCROP_PIP_ARGS, ARGS (passed on: make test ARGS="-k pack").
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test lint lock bounds format build slow torture sanitize sanitize-python fuzz fuzz-fixed stress soak gpu bench docs clean
export PYTHON

VENV := $(or $(OUTCROP_VENV),.venv)
QUICK := not slow and not torture and not gpu
EXPERIMENT ?= epoch

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-15s %s\n", $$1, $$2}'

demo: build ## the main job on a small made-up graph: prepare, train under a memory budget, compare; two minutes
	@$(VENV)/bin/outcrop demo $(ARGS)

build: ## .venv with outcrop in it, editable; builds again when C++ changed
	@scripts/setup.sh build

test: ## quick tests, C++ and Python
	@scripts/setup.sh test
	@status=0; \
	scripts/cpp-tests.sh plain || status=1; \
	scripts/py-tests.sh quick -m "$(QUICK)" $(ARGS) || status=1; \
	exit $$status

slow: ## the tests that take longer than a few seconds
	@scripts/setup.sh test
	@OUTCROP_ALLOW_EMPTY=1 scripts/py-tests.sh slow -m "slow and not gpu" --timeout 600 $(ARGS)

torture: ## the suite again: pread backend, tiny requests and budgets, random short reads
	@scripts/setup.sh test
	@scripts/torture.sh $(ARGS)

soak: ## long searches whole, an hour of random disturbed sequences of commands, every call of commands on their files and for large memory failing, kills at each of them, 20,000 damaged files, a billion rows compared, every request of theirs to io_uring failing, signals at lines of Python, the power going at every flush, 200 kills of what several processes work for, and GPU tests on the fake GPU in the orders of 1000 seeds: hours; the latter go on where they were stopped
	@scripts/setup.sh test
	@scripts/py-tests.sh soak -m "soak and not gpu" --timeout 7200
	@scripts/setup.sh fuzz
	@scripts/fuzz.sh 600
	@$(VENV)/bin/python -m tests.soak --hours 1 --seed $$(date +%F)
	@$(VENV)/bin/python scripts/fail_calls.py
	@$(VENV)/bin/python scripts/fail_calls.py --kill
	@$(VENV)/bin/python scripts/damage_files.py
	@$(VENV)/bin/python scripts/compare_rows.py
	@$(VENV)/bin/python scripts/fail_rings.py
	@$(VENV)/bin/python scripts/signal_lines.py
	@$(VENV)/bin/python scripts/power_cuts.py
	@$(VENV)/bin/python scripts/kills.py
	@$(VENV)/bin/python scripts/soak.py $(ARGS)

fuzz: ## changes files at random, guided by coverage, for a minute each (ARGS=3600: an hour): what reads them in C++ and Python
	@scripts/setup.sh fuzz
	@scripts/fuzz.sh $(ARGS)

fuzz-fixed: ## tries a fixed number of inputs, the same each time, in a minute: what CI does
	@scripts/setup.sh fuzz
	@scripts/fuzz.sh --fixed $(ARGS)

sanitize: ## C++ tests under AddressSanitizer + UBSan, and under ThreadSanitizer
	@scripts/setup.sh test
	@status=0; \
	scripts/cpp-tests.sh asan || status=1; \
	scripts/cpp-tests.sh tsan || status=1; \
	exit $$status

sanitize-python: ## Python tests with an extension that was built with these sanitizers: hours; make sanitize-python ARGS=tests/unit/rows
	@scripts/setup.sh test
	@status=0; \
	scripts/sanitized-python.sh asan $(ARGS) || status=1; \
	scripts/sanitized-python.sh tsan $(ARGS) || status=1; \
	exit $$status

stress: ## a hundred random sequences of commands, disturbed: the same each time; five minutes
	@scripts/setup.sh test
	@scripts/stress.sh $(ARGS)

lint: ## formatting, ruff, pyright, import layers, rules of the house, clang-format
	@scripts/setup.sh lint
	@scripts/lint.sh

lock: ## resolves the versions that set-up installs anew: requirements/*.lock, with checksums; needs a network
	@scripts/setup.sh test
	@$(VENV)/bin/python scripts/lock.py $(ARGS)

bounds: ## the quick tests that use other libraries, with the oldest and the newest versions that pyproject.toml admits; needs a network
	@scripts/setup.sh test
	@$(VENV)/bin/python scripts/bounds.py $(ARGS)

format: ## formats the Python and C++ sources in place
	@scripts/setup.sh lint
	@scripts/lint.sh --fix

gpu: ## what needs a CUDA device, in phases, recorded; works offline: make gpu ARGS=tests
	@scripts/gpu-check.sh $(ARGS)

bench: ## one comparison: make bench EXPERIMENT=epoch
	@scripts/setup.sh bench
	@$(VENV)/bin/outcrop bench $(EXPERIMENT) $(ARGS)

docs: ## runs the code in README and docs
	@scripts/setup.sh test
	@OUTCROP_ALLOW_EMPTY=1 scripts/py-tests.sh docs tests/docs $(ARGS)

clean: ## removes .venv, builds and caches
	rm -rf $(VENV) .venv-gpu build dist .hypothesis src/outcrop/_core*.so src/outcrop/_core.pyi
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
