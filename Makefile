# make demo | test | light | lint | docs | pictures | bench | kills | fuzz | newest | lowest | clean. Everything that is needed is installed into .venv by the targets themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CHECKED := src tests benchmarks docs examples experiments scripts
# One compute thread a process: two that spin against a busy neighbour cost ten times the time.
export OMP_NUM_THREADS ?= 1
# Compiled files are kept, whatever is set outside: processes that the tests start would compile the package again and again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test tests light lint docs pictures bench clean install browser kills fuzz newest lowest

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

install: $(VENV)/.installed

demo: install
	$(BIN)/equipoise demo --out demo-output --overwrite

# The checks run next to the tests, since mypy keeps one core busy for half a minute.
test: install browser database
	$(MAKE) --no-print-directory --jobs 2 lint tests

tests: install
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --quiet --durations=20

# The wheel without torch in an empty environment: its size and time, and the page on repairing scores; about a minute.
light: install
	$(BIN)/python experiments/install/measure.py equipoise --check

# Chromium for the tests of the report in a browser; where it cannot be installed they are skipped, and say why.
browser:
	bash scripts/debian.sh chromium

# PostgreSQL for the audits inside a database, likewise.
database:
	bash scripts/debian.sh postgresql

lint: install
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache  # a cached import may name a module that has moved

# Fails on a warning, a dead link or a generated number that is older than its rows.
docs: install
	$(BIN)/python docs/_build/reproduction.py --check
	$(BIN)/python docs/_build/tables.py --check
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --builder html --doctree-dir build/doctrees docs site
	@echo "the site is in site/index.html"

# The pictures of the report and of simulated X-rays in README and docs.
pictures: install browser
	$(BIN)/python docs/_build/pictures.py

# AIF360 needs older packages than the project, so it lives in an environment of its own.
.venv-bench/.installed: experiments/peers/environment.sh constraints.txt pyproject.toml
	bash experiments/peers/environment.sh $(PYTHON)

bench: install .venv-bench/.installed
	$(BIN)/python benchmarks/measures.py
	.venv-bench/bin/python experiments/peers/postprocessing.py
	.venv-bench/bin/python experiments/peers/peers.py .bench-networks

# What is left of a folder when a run is killed at any moment; about ten minutes on two cores.
kills: install
	$(BIN)/python tests/robustness/kills.py

# 11,000 mutated inputs in two processes; what fails lies in fuzz-failures/ with the command that repeats it.
fuzz: install
	PYTHONPATH=tests/robustness $(BIN)/python -m fuzz --cases 11000 --workers 2

# A small job with the newest versions that the package index offers, and with the lowest that pyproject.toml states. Not part of CI: the
# newest torch is built for CUDA, 6 GB to install (six minutes on two busy cores); that either layout of torchvision can be imported is tested
# without it, in tests/models/test_torchvision_builds.py.
newest lowest:
	bash scripts/other_versions.sh $@ $(PYTHON)

clean:
	rm -rf $(VENV) .venv-bench .venv-newest .venv-lowest .bench-networks fuzz-failures demo-output example-output site build dist src/*.egg-info
