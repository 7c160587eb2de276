# Every target makes what it needs: a virtual environment with pinned packages in .venv.
PYTHON ?= python3
VENV ?= .venv

BENCHMARK_FLAGS ?=
LESSONS_FLAGS ?=

# A target begins by saying what it does, and how long it takes on two cores: what stands after ##.
say = @sed -n 's/^$@:.*\#\# /$@: /p' $(firstword $(MAKEFILE_LIST))

.PHONY: help train test test-all benchmark lessons docs docs-serve docs-test lint format lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1	/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

$(VENV)/installed: pyproject.toml requirements.txt
	@echo "installing the packages that requirements.txt pins into $(VENV) (a minute)"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --requirement requirements.txt
	$(VENV)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# On the CPU, so that it is the same run on any machine; train.py itself takes GPUs.
TRAIN = CUDA_VISIBLE_DEVICES=-1 $(VENV)/bin/python train.py --recipe=shapes

train: $(VENV)/installed ## train on the embedded data set with two towers (a minute)
	$(say)
	$(TRAIN) --num_towers=2
	@echo "try next, to evaluate it, and to see that one tower ends with the same weights:"
	@echo "  $(VENV)/bin/python eval.py --train_dir=runs/shapes"
	@echo "  $(TRAIN) --num_towers=1 --train_dir=runs/one_tower"
	@echo "  $(VENV)/bin/towers-compare runs/shapes runs/one_tower"

# Three processes keep two cores busy: some tests wait for a clock or a socket.
test: $(VENV)/installed ## run the tests (three to nine minutes)
	$(say)
	$(VENV)/bin/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder -m "not long and not site"

test-all: $(VENV)/installed ## run the long ones, too (fifteen to forty minutes)
	$(say)
	$(VENV)/bin/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder -m "not site"

# PyTorch is among the peers where it is installed: .venv/bin/pip install torch
benchmark: $(VENV)/installed ## compare steps on towers with Keras and PyTorch
	$(say)
	$(VENV)/bin/python -m benchmarks.networks $(BENCHMARK_FLAGS)

lessons: $(VENV)/installed ## run all lessons and write their numbers, plots and code into docs (up to an hour)
	$(say)
	$(VENV)/bin/python -m lessons all --write $(LESSONS_FLAGS)
	$(VENV)/bin/python docs/drawings/pages.py

$(VENV)/installed-docs: $(VENV)/installed requirements-docs.txt
	$(VENV)/bin/python -m pip install --quiet --requirement requirements-docs.txt
	touch $@

# TOWERS_NOTEBOOKS=cache runs the notebooks, too, those that have changed since.
docs: $(VENV)/installed-docs ## build the site from the pages in docs, into build/site (half a minute)
	$(say)
	$(VENV)/bin/sphinx-build --quiet --fail-on-warning --keep-going -c docs/site docs build/site

docs-serve: docs ## build it and serve it on http://localhost:8000
	$(say)
	$(VENV)/bin/python -m http.server --directory build/site 8000

# CHROMIUM names a browser that is there; else Playwright fetches one.
docs-test: docs ## open its pages in a browser
	$(say)
	[ -n "$(CHROMIUM)" ] || $(VENV)/bin/playwright install chromium
	$(VENV)/bin/python -m pytest -m site tests/site

lint: $(VENV)/installed ## check style, imports, types and workflows (ten seconds)
	$(say)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports --no-logo --no-cache
	$(VENV)/bin/mypy
	$(VENV)/bin/zizmor --offline --quiet .

format: $(VENV)/installed ## fix style
	$(say)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

COMPILE = $(VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version=3.11 \
    --fork-strategy=fewest --generate-hashes --no-annotate --custom-compile-command="make lock"

lock: $(VENV)/installed ## renew the pins of packages and say which have changed
	$(say)
	$(VENV)/bin/python -m pip install --quiet uv==0.13.9
	$(COMPILE) pyproject.toml --group=dev --output-file=requirements.txt
	$(COMPILE) --group=docs --constraint=requirements.txt --output-file=requirements-docs.txt
	@git diff --unified=0 requirements.txt requirements-docs.txt | grep -o "^[-+][a-z].*==[^ ]*" || echo "none"

clean: ## remove the virtual environment and caches; runs stay
	$(say)
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache *.egg-info
