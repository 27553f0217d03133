# make demo | test | lint | bench | clean. Everything that is needed is installed into .venv by the targets themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# One compute thread a process: two that spin against a busy neighbour cost ten times the time.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint bench clean install

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

install: $(VENV)/.installed

demo: install
	$(BIN)/equipoise demo --out demo-output

test: install lint
	$(BIN)/pytest --numprocesses 2 --quiet

lint: install
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

# AIF360 needs older packages than the project, so it lives in an environment of its own.
.venv-bench/.installed: benchmarks/environment.sh constraints.txt pyproject.toml
	bash benchmarks/environment.sh $(PYTHON)

bench: install .venv-bench/.installed
	$(BIN)/python benchmarks/measures.py
	.venv-bench/bin/python benchmarks/postprocessing.py

clean:
	rm -rf $(VENV) .venv-bench demo-output build dist src/*.egg-info
