# Two commands do everything, set-up included: `make demo` and `make test`; `make test-slow` is the rest.
# The virtual environment gets uv first, which then installs the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
EXTRAS := text,graphs,molecules,detection,adapt,search,tune,cluster,remote,viz,onnx,wandb,mlflow,bench,dev
JOBS   := 2
PYTEST  = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations 30

# uv reads its own settings and not pip's: where a machine has set up pip alone, pip installs.
INSTALL = install() { \
            $(BIN)/uv pip install --quiet --python $(BIN)/python --constraints constraints.txt "$$@" || \
            $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$@"; \
          }; install

# Tests that answer within a minute, of every layer.
QUICK := tests/losses/test_losses_identities.py tests/losses/test_losses_errors.py \
         tests/losses/test_losses_temperature.py tests/losses/test_meta.py \
         tests/losses/test_temperatures_errors.py tests/methods tests/evaluation \
         tests/experiments/test_statistics.py tests/experiments/test_tables.py \
         tests/training/test_optimizers.py tests/training/test_schedules.py \
         tests/training/test_loader.py tests/modalities/test_sections.py tests/test_batching.py \
         tests/test_geometry.py tests/test_hostile_pickle.py tests/test_import.py \
         tests/test_runs.py tests/test_vectors.py tests/test_weights.py

.PHONY: help demo test test-slow quick lint types unit kernels compile docs docs-serve docs-publish publish-check publish bench format clean

help:           ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 14

$(BIN)/uv: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	@touch $@

$(VENV)/.base: pyproject.toml constraints.txt $(BIN)/uv
	$(INSTALL) -e '.[train]'
	@touch $@

# Tests start hundreds of processes: modules are compiled once, as pip does and uv does on request.
$(VENV)/.dev: pyproject.toml constraints.txt $(BIN)/uv
	export UV_COMPILE_BYTECODE=1; $(INSTALL) -e '.[$(EXTRAS)]'
	@touch $(VENV)/.base $@

demo: $(VENV)/.base  ## train on embedded digits, print the scores before and after, write a report
	$(BIN)/python examples/demo.py runs/demo

test: lint types unit  ## lint, types and every test that is not slow

test-slow: $(VENV)/.dev  ## the slow tests: kill -9, several processes, compilation, wheels, exports, browser
	$(PYTEST) -m "slow and not docs"

quick: lint types  ## lint, types and the fast tests: an answer in under 90 seconds
	$(PYTEST) -m "not slow and not docs" $(QUICK)

lint: $(VENV)/.dev  ## ruff, and the order of the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.dev  ## mypy
	$(BIN)/mypy

unit: $(VENV)/.dev  ## every test that is not slow
	$(PYTEST) -m "not slow and not docs"

kernels: $(VENV)/.dev  ## compile the Triton configurations that changed for sm_80, sm_90 and sm_100 (no GPU needed), and record what they use
	$(BIN)/python benchmarks/gpu_compile.py --jobs $(JOBS) 

compile: $(VENV)/.dev  ## torch.compile with inductor, every loss, static and dynamic shapes (eight minutes)
	MACL_COMPILE_ALL=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) tests/losses/test_compile.py -k inductor

# The notice is about a successor of the site generator, which reads the same files.
docs: $(VENV)/.dev  ## build the site into build/site, look at it in a browser, run the code and commands of every page; a broken link is an error
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/mkdocs build --strict
	MACL_SITE=build/site $(PYTEST) -m docs tests/docs

docs-serve: $(VENV)/.dev  ## show the site on http://127.0.0.1:8000 and rebuild it as you edit
	NO_MKDOCS_2_WARNING=1 DOCS_REUSE_TUTORIALS=1 $(BIN)/mkdocs serve

docs-publish: $(VENV)/.dev  ## publish the site of this version on the branch gh-pages, as "latest"
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mike deploy --push --update-aliases \
	  "$$($(BIN)/python -c 'import macl; print(".".join(macl.__version__.split(".")[:2]))')" latest

publish-check: $(VENV)/.dev  ## build the archives into build/dist and check them; uploads nothing
	rm -rf build/dist
	$(BIN)/python -m build --outdir build/dist
	$(BIN)/twine check --strict build/dist/*

publish: publish-check  ## upload build/dist to the package index, with twine's own login; a tag v… does it in the workflow
	$(BIN)/twine upload build/dist/*

bench: $(VENV)/.dev  ## the loss benchmark against its peers
	$(BIN)/python benchmarks/losses.py

format: $(VENV)/.dev  ## fix and format with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:          ## remove the environment and everything made
	rm -rf $(VENV) runs comparisons build dist src/*.egg-info
