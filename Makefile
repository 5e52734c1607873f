# The habits of the house. `make help` lists them.
# Everything runs in VENV, which is made on first use and left alone afterwards.

VENV ?= .venv
PY := $(VENV)/bin/python
ENV_READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready
DOCS_READY := $(VENV)/.docs-ready
# Most tests wait more than they compute, and those with hosts, clouds and Slurm even more.
TEST_PROCESSES ?= 8
ALL_PROCESSES ?= 10
N ?= 4

# More options for pip, such as: make env PIP_FLAGS="--find-links https://download.pytorch.org/whl/cpu/torch/"
# which takes torch without CUDA, a tenth of the size, on a Linux machine without a GPU.
PIP_FLAGS ?=
# The exact versions that everything here is tested with. `make lock UPGRADE=--upgrade` takes newer ones.
LOCK := requirements.lock
BENCH_LOCK := benchmarks/requirements.lock
UPGRADE ?=
LOCKING = $(VENV)/bin/uv pip compile --quiet pyproject.toml --universal --python-version 3.11 $(UPGRADE) \
	--no-emit-index-url --no-emit-package pip --no-emit-package setuptools --no-annotate --custom-compile-command 'make lock'

.DEFAULT_GOAL := help
.PHONY: help env train test test-all test-again test-bare test-hours crash attack attack-docs check format docs lock audit hosts hosts-shell hosts-down slurm slurm-shell slurm-down bench bench-docs gpu gpu-packages clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '%-18s %s\n' "$$name" "$$text"; done

env: $(ENV_READY) ## the environment in .venv, made if it is missing

train: $(ENV_READY) ## train on handwritten digits: 4 local nodes, 2 processes each
	@$(PY) examples/digits_ddp.py

test: $(ENV_READY) ## the tests that need nothing but Python; what is missing for the others is said at the end
	$(PY) -m pytest -n $(TEST_PROCESSES) --dist worksteal -m "not slow"

test-all: $(ENV_READY) ## all tests, on whatever components this machine has (as root, for test hosts, Slurm, Ceph ...)
	$(PY) -m pytest -n $(ALL_PROCESSES) --dist worksteal

test-again: $(ENV_READY) ## the tests that failed in the last run, eight at most, once more; for CI, which names them
	$(PY) -m tests.second_look

test-bare: ## what a newcomer does, `make train` and `make test`, on a bare Debian as an ordinary user (as root)
	.ci/bare-root make train test

test-hours: $(ENV_READY) ## what is too long for every time: Ray, stacks on hosts, more faults, 9,000 more seeds
	$(PY) -m pytest -n $(TEST_PROCESSES) --dist worksteal -m hours

# How many with real processes and machines, "all" takes hours; how many tasks are killed at random moments there, and how
# many on the simulated clock.
CRASHES ?= 60
REAL_KILLS ?= 200
KILLS ?= 2000
crash: $(ENV_READY) ## kill the client at every call it makes of a cloud, under every fault: simulated, and CRASHES for real (as root)
	FLOW_CRASH=$(CRASHES) FLOW_CRASH_REAL_KILLS=$(REAL_KILLS) FLOW_CRASH_KILLS=$(KILLS) FLOW_CRASH_ONE_IN=1 FLOW_TEST_REQUIRE=all $(PY) -m pytest -n $(TEST_PROCESSES) --dist worksteal tests/crash

# A run that found something says with which of these it is repeated.
CASES ?= 200
KIND ?= all
JOBS ?= 8
attack: $(ENV_READY) ## faults drawn at random on test hosts, CASES of a KIND from SEED on, JOBS at a time; 10,000 simulated (as root)
	$(PY) -m tests.attack $(if $(SEED),--seed $(SEED)) --cases $(CASES) --kind $(KIND) --jobs $(JOBS)

attack-docs: $(ENV_READY) ## the same, and write what was found into docs/reliability.md
	$(PY) -m tests.attack $(if $(SEED),--seed $(SEED)) --cases $(CASES) --kind $(KIND) --jobs $(JOBS) --write

check: $(ENV_READY) ## format, lint, types and the floors of the house
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo

format: $(ENV_READY) ## rewrite the code as `make check` wants it
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

docs: $(DOCS_READY) ## the documentation as a site, in site/; a broken link or a page outside the navigation is an error
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

# Not $(ENV_READY): after a change of dependencies it would be made anew first, from a lock that contradicts them.
lock: ## write requirements.lock anew, after a change of dependencies (UPGRADE=--upgrade: newest versions)
	@[ -x $(VENV)/bin/uv ] || $(MAKE) env
	$(LOCKING) --extra dev --extra docs -o $(LOCK)
	$(LOCKING) --extra dev --extra docs --extra bench -o $(BENCH_LOCK)

audit: $(ENV_READY) ## look for known vulnerabilities of what requirements.lock names (asks an advisory service)
	$(VENV)/bin/pip-audit --strict --requirement $(LOCK) --no-deps --disable-pip --progress-spinner off

hosts: $(ENV_READY) ## N test hosts with sshd on this machine, and a laptop beside them (as root): make hosts N=4
	@$(PY) -m flowlite.testing.hosts up $(N)

hosts-shell: $(ENV_READY) ## a shell on that laptop, where `flow` is set up to reach the hosts
	@$(PY) -m flowlite.testing.hosts shell

hosts-down: $(ENV_READY) ## take the hosts away, and all that runs on them
	@$(PY) -m flowlite.testing.hosts down

slurm: $(ENV_READY) ## a Slurm of N nodes on test hosts of this machine (as root): make slurm N=4
	@$(PY) -m flowlite.testing.slurm up $(N)

slurm-shell: $(ENV_READY) ## a shell on a laptop, where `flow` is set up to reach it through SSH
	@$(PY) -m flowlite.testing.slurm shell

slurm-down: $(ENV_READY) ## take the Slurm away, and all that runs on it
	@$(PY) -m flowlite.testing.slurm down

bench: $(BENCH_READY) ## every figure of docs/performance.md, beside its peer
	$(PY) -m benchmarks

bench-docs: $(BENCH_READY) ## the same, and write the table into docs/performance.md
	$(PY) -m benchmarks --write

# The Python of the machine, which has torch with CUDA. Nothing is installed.
GPU_PYTHON ?= python3
OUT ?= build/gpu
gpu: ## what only a GPU can show, in less than 8 minutes with the machine's own Python; OUT gets gpu.json and gpu.md
	@$(GPU_PYTHON) -m benchmarks.gpu $(OUT)

GPU_PYTHON_VERSION ?= 3.12
gpu-packages: $(ENV_READY) ## what `make gpu` needs beside torch, into build/gpu-packages, for a machine without a package index
	$(PY) -m pip install --quiet --upgrade --target build/gpu-packages/$(GPU_PYTHON_VERSION)/site-packages --only-binary=:all: \
		--python-version $(GPU_PYTHON_VERSION) --constraint $(LOCK) cloudpickle pydantic typer pytest pytest-xdist pytest-timeout hypothesis psutil
	# OpenCLIP's own requirements would bring torch again.
	$(PY) -m pip install --quiet --upgrade --target build/gpu-packages/$(GPU_PYTHON_VERSION)/site-packages --only-binary=:all: \
		--python-version $(GPU_PYTHON_VERSION) --no-deps open_clip_torch==3.3.0 ftfy wcwidth webdataset braceexpand

clean: ## remove the environment and all caches
	rm -rf .venv build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(ENV_READY): pyproject.toml $(LOCK)
	@set -e; found=; \
	for candidate in python3 python3.13 python3.12 python3.11 python3.14; do \
		if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			found=$$candidate; break; \
		fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "flowlite needs Python 3.11 or newer; python3 here is: $$(python3 --version 2>&1 || true)" >&2; \
		echo "Install one (apt install python3.11 python3.11-venv, brew install python@3.12) and run make again." >&2; \
		exit 1; \
	fi; \
	echo "Making $(VENV) with $$($$found --version). Once; one to five minutes, most of them for torch."; \
	[ -x $(VENV)/bin/pip ] || $$found -m venv $(VENV) || { \
		echo "$$found has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; \
	echo "pip installs flowlite and what its tests use, in the versions of $(LOCK):"; \
	$(PY) -m pip install $(PIP_FLAGS) --constraint $(LOCK) --editable '.[dev]'; \
	touch $@; \
	echo "$(VENV) is ready."

$(BENCH_READY): $(ENV_READY) $(BENCH_LOCK)
	@$(PY) -m pip install --quiet $(PIP_FLAGS) --constraint $(BENCH_LOCK) --editable '.[dev,bench]'
	@touch $@

$(DOCS_READY): $(ENV_READY)
	@$(PY) -m pip install --quiet $(PIP_FLAGS) --constraint $(LOCK) --editable '.[docs]'
	@touch $@
