# Every target makes what it needs: a virtual environment with pinned packages in .venv.
PYTHON ?= python3
VENV ?= .venv

BENCHMARK_FLAGS ?=
LESSONS_FLAGS ?=

.PHONY: help train test test-all benchmark lessons docs docs-serve docs-test lint format clean

help:
	@echo "make train   train on the embedded data set with two towers (about a minute, once installed)"
	@echo "make test    run the tests"
	@echo "make test-all  run the long ones, too"
	@echo "make benchmark  compare steps on towers with Keras and PyTorch"
	@echo "make lessons  run all lessons and write their numbers, plots and code into docs"
	@echo "make docs    build the site from the pages in docs, into build/site"
	@echo "make docs-serve  build it and serve it on http://localhost:8000"
	@echo "make docs-test  open its pages in a browser"
	@echo "make lint    check style"
	@echo "make format  fix style"
	@echo "make clean   remove the virtual environment and caches; runs stay"

$(VENV)/installed: pyproject.toml requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --requirement requirements.txt
	$(VENV)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

# Two towers on the CPU, so that it is the same run on any machine; train.py itself takes GPUs.
train: $(VENV)/installed
	CUDA_VISIBLE_DEVICES=-1 $(VENV)/bin/python train.py --recipe=shapes --num_towers=2

# Four processes keep two cores busy: some tests wait for a clock or a socket.
test: $(VENV)/installed
	$(VENV)/bin/python -m pytest --numprocesses=4 --dist=loadfile --no-loadscope-reorder -m "not long and not site"

test-all: $(VENV)/installed
	$(VENV)/bin/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder -m "not site"

# PyTorch is among the peers where it is installed: .venv/bin/pip install torch
benchmark: $(VENV)/installed
	$(VENV)/bin/python -m benchmarks.networks $(BENCHMARK_FLAGS)

lessons: $(VENV)/installed
	$(VENV)/bin/python -m lessons all --write $(LESSONS_FLAGS)
	$(VENV)/bin/python docs/drawings/pages.py

$(VENV)/installed-docs: $(VENV)/installed requirements-docs.txt
	$(VENV)/bin/python -m pip install --quiet --requirement requirements-docs.txt
	touch $@

# TOWERS_NOTEBOOKS=cache runs the notebooks, too, those that have changed since.
docs: $(VENV)/installed-docs
	$(VENV)/bin/sphinx-build --quiet --fail-on-warning --keep-going -c docs/site docs build/site

docs-serve: docs
	$(VENV)/bin/python -m http.server --directory build/site 8000

# CHROMIUM names a browser that is there; else Playwright fetches one.
docs-test: docs
	$(VENV)/bin/python -m pip install --quiet playwright==1.65.2 axe-playwright-python==0.1.8
	[ -n "$(CHROMIUM)" ] || $(VENV)/bin/playwright install chromium
	$(VENV)/bin/python -m pytest -m site tests/site

lint: $(VENV)/installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports --no-logo --no-cache

format: $(VENV)/installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache *.egg-info
