# Every target sets itself up in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
# Worker processes of the test run.
JOBS ?= 2

.PHONY: test check demo clean

test: .venv/installed check
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: .venv/installed
	$(BIN)/python scripts/demo.py

.venv/installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
