# Tasks of this repository. `make demo` and `make test` create the environment if needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOWEST := .venv-lowest
ENV = $(VENV)
PARTS := .[extract,report,dvc,lora,storage,dev]
export PATH := $(CURDIR)/$(BIN):$(PATH)
export SAM2_BUILD_CUDA := 0
# every stage is a separate process, and importing torch without bytecode takes 15 seconds longer
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo study flickr docs test test-slow test-lowest release lint bench bench-gpu setup lock clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## Create the environment (.venv) from the lock

$(READY): pyproject.toml requirements.lock requirements-sam2.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade uv
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip uninstall --quiet sightline # its name before
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --constraint requirements.lock --editable '$(PARTS)' hydra-core iopath
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-build-isolation --no-deps --require-hashes --requirement requirements-sam2.txt
	@touch $(READY)

# The demo and the studies are projects in folders of their own: they leave params.yaml, dvc.lock and
# the results of this clone alone. A project is made once, and has the newest graph.
%/dvc.yaml: dvc.yaml | $(READY)
	@$(BIN)/sightline init $* > /dev/null
	@cp dvc.yaml $@

CONFIGURATIONS := $(wildcard configs/*.yaml configs/parts/*.yaml configs/parts/*/*.yaml)

demo/params.yaml: $(CONFIGURATIONS) | demo/dvc.yaml
	@cd demo && sightline configure scenes

# `make study STUDY=margin` runs the study `margin` on scenes in study-margin/; some have a part for scenes
STUDY ?=
STUDY_FOLDER := study$(addprefix -,$(STUDY))
STUDY_PART := $(addprefix studies/,$(if $(wildcard configs/parts/studies/$(STUDY)-scenes.yaml),$(STUDY)-scenes,$(STUDY)))

$(STUDY_FOLDER)/params.yaml: $(CONFIGURATIONS) | $(STUDY_FOLDER)/dvc.yaml
	@cd $(STUDY_FOLDER) && sightline configure $(if $(STUDY),scenes three-seeds $(STUDY_PART),study)

demo: demo/params.yaml ## Draw scenes, fill a cache, train on it, print how much grounding helped
	@echo "The demo draws pictures, caches features of frozen models, trains seven systems and compares"
	@echo "them, all in demo/: about 4 minutes on two CPU cores, seconds if nothing changed. If killed, it resumes."
	@cd demo && sightline repro report
	@cat demo/report/report.txt
	@echo "Plots, parameters and where every feature came from: demo/report/report.html"
	@echo "Next: docs/start.md, for your own images or the papers' data."

study: $(STUDY_FOLDER)/params.yaml ## Run the demo with five seeds and all controls, or STUDY=NAME (docs/papers.md)
	@cd $(STUDY_FOLDER) && sightline repro report
	@cat $(STUDY_FOLDER)/report/report.txt
	@echo "Plots, parameters and where every feature came from: $(STUDY_FOLDER)/report/report.html"

# real photographs: this clone's data/ (docs/papers.md), in a project of its own as well
flickr/params.yaml: $(CONFIGURATIONS) | flickr/dvc.yaml
	@mkdir -p flickr/data
	@ln -sfn ../../data/raw ../../data/senteval flickr/data/
	@cd flickr && sightline configure flickr8k

flickr: flickr/params.yaml ## Train on Flickr8k from data/ with small real models (docs/papers.md)
	@$(BIN)/python examples/flickr8k_models.py data/raw/models data/raw/flickr8k
	@cd flickr && sightline repro report
	@cat flickr/report/report.txt

# one process per core, each with one thread and whole test files: takes half the time
PYTEST = HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(ENV)/bin/python -m pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

test: $(READY) ## Run the tests
	$(PYTEST) -m "not slow"

test-slow: $(READY) ## Run the slow tests as well
	$(PYTEST)

# what sam2 1.1.0 asks for, and what builds it, is not resolved by its own rule
$(LOWEST)/.ready: $(READY) pyproject.toml requirements-sam2.txt
	$(BIN)/uv venv --quiet --clear --python 3.11 $(LOWEST)
	VIRTUAL_ENV=$(CURDIR)/$(LOWEST) $(BIN)/uv pip install --quiet --resolution lowest-direct --editable '$(PARTS)' 'hydra-core>=1.3.2' 'iopath>=0.1.10' 'setuptools>=77'
	VIRTUAL_ENV=$(CURDIR)/$(LOWEST) $(BIN)/uv pip install --quiet --no-build-isolation --no-deps --require-hashes --requirement requirements-sam2.txt
	@touch $@

test-lowest: ENV = $(LOWEST)
test-lowest: export PATH := $(CURDIR)/$(LOWEST)/bin:$(PATH)
test-lowest: $(LOWEST)/.ready ## Run the tests with the oldest supported versions
	$(PYTEST) -m "not slow"

# the wheel is built from the sdist, and installed with the extras of the demo alone
release: $(READY) ## Build wheel and sdist in dist/, check them, run the demo from the wheel; upload nothing
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist
	$(BIN)/uvx --quiet twine check --strict dist/*.whl dist/*.tar.gz
	$(PYTEST) tests/test_package.py tests/pipeline/test_init.py
	$(BIN)/uv venv --quiet --python $(PYTHON) dist/venv
	VIRTUAL_ENV=$(CURDIR)/dist/venv $(BIN)/uv pip install --quiet --constraint requirements.lock "$$(ls dist/*.whl)[extract,report,dvc]"
	cd dist && . venv/bin/activate && sightline init "a demo" scenes && cd "a demo" && sightline repro report
	@cat "dist/a demo/report/report.txt"

lint: $(READY) ## Run ruff, pyright and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/lint-imports --config cycles.toml

# those that need nothing but this checkout (bench/README.md)
BENCHES := cache_read scale incremental extract training grounding transfer

bench: $(READY) ## Run the benchmarks for a CPU; each prints its ratios
	@for b in $(BENCHES); do echo "== bench/$$b.py"; $(BIN)/python bench/$$b.py || exit 1; done

# not in the environment of the lock: a GPU machine has a PyTorch of its own (bench/README.md)
bench-gpu: ## Measure all that needs a GPU, in under 8 minutes, with PYTHON=python3
	$(PYTHON) bench/gpu.py

docs: $(READY) ## Regenerate docs/reference.md and docs/papers.md
	$(BIN)/python docs/reference.py > docs/reference.md
	$(BIN)/python docs/papers.py > docs/papers.md

lock: ## Regenerate requirements.lock (without index URLs)
	$(BIN)/uv pip compile --quiet --universal --all-extras --no-header --output-file requirements.lock pyproject.toml

clean: ## Remove the environments
	rm -rf $(VENV) $(LOWEST)
