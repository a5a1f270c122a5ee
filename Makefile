# Two commands matter: `make dry-run` runs the main job, `make test` passes the tests. Both set up .venv by themselves.
#   make dry-run ARGS="--headless --json"     make test ARGS="tests/domain -k threshold"     make PYTHON=python3.13 test

VENV := .venv
BIN := $(VENV)/bin
PRODUCT := domain simulator collectors actuators agent trainer
ARGS ?=
# Without it each process compiles the tree anew: a third of the time of all tests.
unexport PYTHONDONTWRITEBYTECODE

# The first interpreter that is new enough; PYTHON=... on the command line or in the environment overrides it.
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
ifeq ($(PYTHON),)
PYTHON := python3
endif
endif
PYTHON_VERSION := $(shell "$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo none)

# A stamp says what is installed, so that a second run installs nothing. It is older than its inputs when they change.
MADE := $(VENV)/.made-with-python-$(PYTHON_VERSION)
DRY_RUN_READY := $(VENV)/.ready-for-dry-run
LEARNING_READY := $(VENV)/.ready-for-learning
TEST_READY := $(VENV)/.ready-for-test
KERNELS_READY := $(VENV)/.ready-kernels
MODULES_READY := $(VENV)/.ready-modules
EXTRAS := $(shell sed -n '/^\[project.optional-dependencies\]/,/^\[project.scripts\]/s/^\([a-z-]*\) = .*/\1/p' pyproject.toml | paste -sd, -)
# Not compiled: most of what is installed is never imported, and what is compiles itself once.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup graphite dry-run dry-run-learning docs test test-real test-slice test-exhaustive check format bench lock clean mutants mutants-seeded

help:
	@echo 'make setup                               make the environment and say what to do next; the others do it themselves'
	@echo 'make dry-run [ARGS="--headless --json"]  scale a fleet on a local AWS look-alike; needs neither account nor torch'
	@echo 'make dry-run-learning                    36 simulated hours: the default rule is tuned and watched (torch)'
	@echo 'make test    [ARGS="tests/domain -x"]    lint, types, import rules and the tests, those of the trainer too (torch)'
	@echo 'make test-real                           what needs real surroundings: systemd, PostgreSQL, file systems, Chromium'
	@echo 'make test-slice [SEED=...]               six minutes of the exhaustive tests, chosen by the seed'
	@echo 'make test-exhaustive                     all of them: every crash point, long histories, 50 examples and more, mutants'
	@echo 'make mutants [ARGS="--only fence"]       break the code by hand, one known way at a time: a test must fail each time'
	@echo 'make mutants-seeded [ARGS="--sample 60"] the same with a seeded sample of all the ways that cosmic-ray knows'
	@echo 'make check                               lint, types and import rules only'
	@echo 'make format                              sort imports and format the code'
	@echo 'make bench   [ARGS="tick --json"]        run one benchmark, or list them'
	@echo 'make docs                                the documentation as a site in build/site; every link and anchor is checked'
	@echo 'make lock    [ARGS=--upgrade]            resolve constraints.txt again'
	@echo 'make clean                               remove both environments, caches and build output'

$(MADE):
	@case "$(PYTHON_VERSION)" in \
	none) echo "error: '$(PYTHON)' is not a Python that runs; name one of 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1;; \
	2.*|3.?|3.10) echo "error: '$(PYTHON)' is Python $(PYTHON_VERSION), Trimtab needs 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1;; \
	esac
	@if [ -x $(BIN)/python ]; then \
		found=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' || echo broken); \
		if [ "$$found" != "$(PYTHON_VERSION)" ]; then \
			echo "error: $(VENV) holds Python $$found, asked for is $(PYTHON_VERSION): run 'make clean' first" >&2; exit 1; \
		fi; \
	fi
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "making $(VENV) with Python $(PYTHON_VERSION)"; "$(PYTHON)" -m venv $(VENV); }
	@touch $@

$(DRY_RUN_READY): pyproject.toml constraints.txt | $(MADE)
	@echo "installing trimtab[dry-run] into $(VENV) (only when its requirements have changed)"
	@$(PIP_INSTALL) --editable '.[dry-run]'
	@touch $@

$(LEARNING_READY): pyproject.toml constraints.txt | $(MADE)
	@echo "installing trimtab[dry-run,train] into $(VENV) (only when its requirements have changed)"
	@$(PIP_INSTALL) --editable '.[dry-run,train]'
	@touch $(DRY_RUN_READY) $@

$(TEST_READY): pyproject.toml constraints.txt | $(MADE)
	@echo "installing trimtab[$(EXTRAS)] into $(VENV) (only when its requirements have changed)"
	@echo "a fresh environment downloads some GB, torch among them: minutes, and once"
	@$(PIP_INSTALL) --editable '.[$(EXTRAS)]'
	@touch $(DRY_RUN_READY) $(LEARNING_READY) $@

# Once here, and not by each process that runs tests: in a new clone that is a minute and a half of a core each. mypy
# takes as long for the libraries as for our own modules.
$(MODULES_READY): $(TEST_READY) tests/library_types.py
	@echo "compiling modules and tests, and reading the types of the libraries: minutes (only when the libraries have changed)"
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null 2>&1 & collected=$$!; \
	$(BIN)/python -m tests.library_types; types=$$?; wait $$collected; exit $$types
	@touch $@

# Compiled once here, and not by each process that runs tests. After a change `make test ARGS=...` leaves it to the tests.
COMPILED := simulator domain/rules domain/observations trainer/admission/fitting trainer/autoscaling
$(KERNELS_READY): $(TEST_READY) tests/kernels.py $(shell find $(COMPILED) -name '*.py')
	@echo "compiling the kernels of simulators and trainer: minutes (only when one of their sources has changed)"
	@$(BIN)/python -m tests.kernels
	@touch $@

setup: $(TEST_READY) $(KERNELS_READY) $(MODULES_READY)
	@echo "$(VENV) is ready: $$($(BIN)/python --version), trimtab with its extras, and the compiled kernels"
	@echo 'what to do next:'
	@echo '  make dry-run             scale a fleet on a local AWS look-alike'
	@echo '  make test                lint, types, import rules and the tests'
	@echo '  $(BIN)/trimtab init      write a checked file of settings for a fleet of yours'

dry-run: $(DRY_RUN_READY)
	@$(BIN)/trimtab dry-run $(ARGS)

dry-run-learning: $(LEARNING_READY)
	@$(BIN)/trimtab rehearse-learning $(ARGS)

check: $(MODULES_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.architecture.words

docs: $(TEST_READY)
	$(BIN)/mkdocs build --strict

# A real Graphite for the tests and `make bench ARGS=ingest`, in an environment of its own; the tests make it too.
graphite: $(TEST_READY)
	@$(BIN)/python -m tests.collectors.graphite.installation

# A worker whose test takes too long ends with it and is replaced (tests/isolation.py).
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --max-worker-restart 9 -o timeout_method=thread \
	-o tmp_path_retention_policy=failed --durations 10 --durations-min 1
# Each stage ends with the time that it took; TESTS_NOT_RUN names a file that lists the real parts that did not run.
test test-real test-slice test-exhaustive: SHELL := /bin/bash
# A worker more than cores where tests wait for sockets and processes; elsewhere it costs more than it gains.
test test-slice: WORKERS ?= 2
test-real test-exhaustive: WORKERS ?= 3
# Ledgers sync each write: on a disk, half of the time of these tests would go by in waiting for it.
IN_MEMORY := $(shell [ "$$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)" -ge 4194304 ] 2>/dev/null && echo /dev/shm)
test test-slice: export TMPDIR := $(or $(IN_MEMORY),$(TMPDIR))
test test-real test-slice test-exhaustive: export TIMEFORMAT = $@: %R s of wall-clock time, %U s + %S s of CPU time

# Types and import rules are checked beside the tests, which leave a core idle now and then; lint comes first.
test: $(TEST_READY) $(if $(ARGS),,$(KERNELS_READY) $(MODULES_READY))
	@time { $(BIN)/ruff check . && $(BIN)/ruff format --check . || exit; \
	{ $(BIN)/mypy && $(BIN)/lint-imports; } >$(VENV)/checked.log 2>&1 & checks=$$!; \
	$(PYTEST) -m "not real and not exhaustive" $(ARGS); tested=$$?; \
	wait $$checks; checked=$$?; cat $(VENV)/checked.log; (exit $$((tested > checked ? tested : checked))); }

# A file stays in one worker, for the machine that it boots; those of tests/real are the longest and come first.
test-real: $(TEST_READY) $(if $(ARGS),,$(KERNELS_READY))
	@time $(PYTEST) --dist loadfile --no-loadscope-reorder -m "real and not exhaustive" $(or $(ARGS),tests/real tests)

# Long histories, every crash point, each property with 50 examples and more, all mutants: more than an hour.
test-exhaustive: $(TEST_READY) $(if $(ARGS),,$(KERNELS_READY))
	@time TRIMTAB_EXAMPLES=thorough $(PYTEST) -o timeout=1800 -m "exhaustive or hypothesis" $(ARGS)

# What CI runs of them: another slice, and another day of faults in virtual time, for each commit.
SEED ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo none)
test-slice: $(TEST_READY) $(if $(ARGS),,$(KERNELS_READY))
	@time { TRIMTAB_EXAMPLES=thorough TESTS_SLICE=$(SEED) $(PYTEST) -m "exhaustive or hypothesis" $(ARGS); tested=$$?; \
	$(if $(ARGS),,$(BIN)/python -m benchmarks.soak --hours 24 --seed $$(echo $(SEED) | cksum | cut -d' ' -f1) || tested=1;) \
	(exit $$tested); }

# Goes on where it was interrupted. `make test` only looks whether each mutant still applies.
mutants: $(TEST_READY)
	@$(BIN)/python -m tests.mutants.run $(ARGS)

mutants-seeded: $(TEST_READY)
	@$(BIN)/python -m tests.mutants.seeded $(ARGS)

format: $(TEST_READY)
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

bench: $(DRY_RUN_READY)
	@if [ -n "$(ARGS)" ]; then $(BIN)/python -m benchmarks.$(ARGS); else \
		echo 'name one, for example: make bench ARGS="tick --json". There are:'; \
		ls benchmarks | sed -n 's/^\([a-z][a-z_]*\)\.py$$/  \1/p'; \
	fi

# One resolution for every Python from 3.11 on and every platform. torch pins its own CUDA packages exactly, so
# they are left out: the lock then fits its CPU build as well.
lock: $(MADE)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --annotation-style line \
		--custom-compile-command 'make lock' --output-file constraints.txt $(ARGS) pyproject.toml
	@grep -vE '^(nvidia|cuda|triton)' constraints.txt > constraints.txt.new && mv constraints.txt.new constraints.txt
	@echo "constraints.txt: $$(grep -c '==' constraints.txt) packages"
	@{ echo '# What install.sh and the Dockerfile install, each file known by its hash. Written by `make lock`;' \
		'versions as in constraints.txt.'; \
	echo 'setuptools>=77' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra postgres \
		--annotation-style line --no-header --generate-hashes --constraint constraints.txt pyproject.toml -; \
	} > deploy/requirements.txt.new && mv deploy/requirements.txt.new deploy/requirements.txt
	@echo "deploy/requirements.txt: $$(grep -c '==' deploy/requirements.txt) packages with hashes"

clean:
	rm -rf $(VENV) .venv-graphite .real build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(PRODUCT) tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
