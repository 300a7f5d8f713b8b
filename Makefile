# Every target sets itself up in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Worker processes of a test run.
JOBS ?= 2
# A file goes to one process whole; tests/conftest.py puts the files that take long first.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: test test-stacks test-nightly test-faults check loops demo clean

# Everything but what needs training frameworks, servers or Ray.
test: .venv/installed
	@# The types are checked on one core; the loops compile on another.
	$(MAKE) --jobs 2 check loops
	$(PYTEST) -m "not stacks and not nightly"

# Training frameworks, S3 and HTTP servers, Ray.
test-stacks: .venv/installed
	$(PYTEST) -m "stacks and not nightly"

# What takes long, and what it holds seldom changes.
test-nightly: .venv/installed
	$(PYTEST) -m nightly

# Seeds a fault for each claim, one after the other, and sees that a test fails: some ten minutes.
test-faults: .venv/installed
	$(BIN)/python -m tests.faults --jobs $(JOBS)

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Compiles the loops into the cache, once: processes of the tests that start together would each compile them all.
loops: .venv/installed
	grep -rl --include '*.py' '^@compiled' pipeline filters | sed 's|/|.|g; s|.py$$||; s|^|import |' | $(BIN)/python -

demo: .venv/package
	$(BIN)/python scripts/demo.py

# The package alone: a demo needs no frameworks.
.venv/package: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/installed: .venv/package
	$(PIP) -e '.[dev]'
	@# On all cores, which pip does not do. Tests start hundreds of processes: each would compile what is not kept.
	@# Some packages hold files that are wrong on purpose.
	-$(BIN)/python -m compileall -qq -j 0 $$(echo .venv/lib/python*/site-packages) pipeline filters scripts
	touch $@

clean:
	rm -rf .venv demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
