# Every target sets itself up in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
# Setuptools warns of every editable installation.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Worker processes of a test run.
JOBS ?= 2
# A file goes to one process whole; tests/conftest.py puts the rooms whose tests are fast first. A process that dies ends the
# run: one in its place would run the same test again, and one that has a single test left waits for ever.
PROCESSES := -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
PYTEST := $(BIN)/python -m pytest $(PROCESSES)

.PHONY: test test-stacks test-nightly test-lowest test-faults check loops demo docs clean

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
	$(PYTEST) -m "nightly or (hypothesis and not stacks)" --hypothesis-profile thorough

# On the lowest versions that setup.cfg allows; torch is the pinned one, since earlier wheels bring gigabytes of CUDA.
LOWEST := .venv-lowest
test-lowest: .venv/installed
	$(PYTHON) -m venv --clear $(LOWEST)
	grep '^torch==' constraints.txt > $(LOWEST)/torch.txt
	$(BIN)/uv pip compile --quiet --python $(LOWEST) --resolution lowest-direct --override $(LOWEST)/torch.txt \
		--extra s3 --extra warc --extra ray --extra datatrove setup.cfg --output-file $(LOWEST)/lowest.txt
	$(BIN)/uv pip install --quiet --python $(LOWEST) --requirement $(LOWEST)/lowest.txt
	$(BIN)/uv pip install --quiet --python $(LOWEST) --constraint $(LOWEST)/lowest.txt --editable . \
		pytest pytest-timeout pytest-xdist hypothesis webdataset fasttext-langdetect datasets pandas polars trafilatura lxml_html_clean
	$(LOWEST)/bin/python -m pytest $(PROCESSES) -m "not stacks and not nightly"

# Seeds a fault for each claim, and sees that a test fails: some 25 minutes on two cores.
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

# The pages as a site. A link that leads nowhere is an error.
docs: .venv/package
	$(PIP) -e '.[docs]'
	$(BIN)/python -m sphinx -q -W --keep-going -n -c docs . build/docs
	@# A server shows index.html.
	cp build/docs/README.html build/docs/index.html

# The package alone: a demo needs no frameworks.
.venv/package: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	@# An earlier pip misreads the names of extras, and warns that lxml has no html_clean.
	$(PIP) 'pip>=23.3'
	$(PIP) -e .
	touch $@

.venv/installed: .venv/package
	$(PIP) -e '.[dev]'
	@# On all cores, which pip does not do. Tests start hundreds of processes: each would compile what is not kept.
	@# Some packages hold files that are wrong on purpose.
	$(BIN)/python -m compileall -qq -j 0 $$(echo .venv/lib/python*/site-packages) || true
	$(BIN)/python -m compileall -qq -j 0 pipeline filters scripts
	touch $@

clean:
	rm -rf .venv $(LOWEST) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
