# Two commands do everything, set-up included: `make demo` and `make test`.
# uv is used when it is there, otherwise venv and pip.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)
EXTRAS := text,graphs,molecules,detection,viz,onnx,bench,dev

ifdef UV
  MAKE_VENV = $(UV) venv --allow-existing $(VENV)
  INSTALL   = VIRTUAL_ENV=$(VENV) $(UV) pip install -c constraints.txt
else
  MAKE_VENV = $(PYTHON) -m venv $(VENV)
  INSTALL   = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
endif

.PHONY: help demo test lint types unit bench format clean

help:           ## this list
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */\1\t/' | expand -t 12

$(BIN)/python:
	$(MAKE_VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.base

demo: $(VENV)/.base  ## train on embedded digits with NT-Xent and with MACL, print both scores
	OMP_NUM_THREADS=1 $(BIN)/macl compare digits --vary loss=nt-xent,macl --seeds 1 --jobs 2 \
	  --out runs/demo --metrics "knn top1,linear top1,alignment,temperature,gradient_scale"

test: lint types unit  ## lint, types and tests

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

bench: $(VENV)/.dev  ## the loss benchmark against its peers
	$(BIN)/python benchmarks/losses.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) runs comparisons build dist src/*.egg-info
