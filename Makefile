# make setup    the virtual environment, with everything that the rest needs
# make test     formatting, lint, types, and the test suite     (TESTS=tests/benchmarks for a part of it; WORKERS=2)
# make test-install  installs the package into a fresh environment as its users do, and uses it there: three minutes
# make test-ops every operator of torch's sample databases, and docs/operators.md: hours   (OPS="--only 'linalg.*'")
# make test-models  a training step of each of the ten models is one program, and they and ten of transformers are
#                packaged and loaded: most of an hour
# make test-gradients  forty models of torchvision, timm and transformers in float64 by each road: most of an hour
# make test-faults  ranks are killed in the middle of a step, a collective, a save, ten times each: minutes
# make test-libraries  programs of accelerate, transformers, Lightning, diffusers and others as they are, and
#                docs/libraries.md: half an hour
# make test-threads threads record, sync and read at random against each other: ten minutes
# make test-hostile  interrupts, forks, threads, a full disk, a corrupted cache, a locale of decimal commas, too little
#                    memory, warnings that are errors: most of an hour
# make sanitize the native part by gcc and clang at -O1 to -O3, and under ASan, UBSan and TSan: an hour   (VARIANTS=address)
# make cross    the native part compiled for other processors, aarch64: ten minutes
# make versions  the package beside other versions of torch, jax and Python, and a part of the tests there: gigabytes to
#                download, some minutes each (VERSIONS="--torch 2.14.1 --python 3.12")
# make bench    the ten models in modes eager, lazy and openxla (BENCH="--models resnet18 --modes inductor,openxla")
# make compare  ... in all tests and modes, inductor's best among them, kept in benchmarks/results/: hours   (COMPARE=...)
# make gate     six small models against an earlier commit, as CI does: whether they became slower   (GATE=REV)
# make check    formatting, lint and types alone
# make clean    removes the environment and what was built
#
# Each does all the set-up that it needs, and nothing twice: the stamps say what has been done.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
# Python compiles a module at its first import: of ten thousand installed ones a tenth is ever imported. So no target
# forbids it to keep what it compiled; every process would compile the package again.
PIP := $(BIN)/python -m pip install --no-compile --constraint requirements/constraints.txt
unexport PYTHONDONTWRITEBYTECODE

RESULTS := benchmarks/results/latest.jsonl
PACKAGES := lazy_runtime openxla_backend benchmarks
NATIVE := $(wildcard lazy_runtime/native/*.cpp lazy_runtime/native/*.h) lazy_runtime/native/build.py
BENCH ?=
COMPARE ?=
TESTS ?=
WORKERS ?= 2
OPS ?=
VARIANTS ?=
VERSIONS ?=
# whose speed is to be kept: a newer one where something became slower for a reason
GATE ?= fcb4e5b

.PHONY: setup test test-install test-ops test-models test-gradients test-libraries test-faults test-threads test-hostile \
  sanitize cross versions bench compare gate check clean
.DELETE_ON_ERROR:

setup: $(STAMPS)/native $(STAMPS)/models

test: check setup
	env -u LAZY_RUNTIME_BUILDS $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(TESTS)

# Where builds are kept, those of the set-up are taken.
test-install: $(if $(LAZY_RUNTIME_BUILDS),setup)
	.ci/install $(PYTHON)

test-ops: setup
	$(BIN)/python -m tests.operators run $(OPS); status=$$?; \
	  $(if $(OPS),,$(BIN)/python -m tests.operators report &&) exit $$status

test-models: setup
	$(BIN)/python -m pytest -m long tests/openxla_backend/dynamo/test_step_models.py \
	  tests/openxla_backend/packaging/test_saving.py $(TESTS)

test-gradients: setup
	$(BIN)/python -m pytest -m "long or not long" tests/gradients $(TESTS)

test-libraries: setup $(STAMPS)/libraries
	$(BIN)/python -m pytest -m "long or not long" --junit-xml=$(STAMPS)/libraries.xml tests/libraries $(TESTS); \
	  status=$$?; $(BIN)/python -m tests.libraries.table $(STAMPS)/libraries.xml && exit $$status

test-faults: setup
	$(BIN)/python -m pytest -m long tests/lazy_runtime/processes/test_faults.py $(TESTS)

test-threads: setup
	CPU_NUM_DEVICES=4 $(BIN)/python -m pytest -m long tests/lazy_runtime/test_threads.py $(TESTS)

test-hostile: setup
	$(BIN)/python -m pytest -m "long or not long" tests/hostile tests/lazy_runtime/common/test_interrupts.py \
	  tests/lazy_runtime/common/test_forking.py tests/lazy_runtime/dispatcher/test_queues.py \
	  tests/lazy_runtime/compilation/test_capacity.py tests/lazy_runtime/execution/test_execute.py $(TESTS)
	$(BIN)/python -m pytest tests/lazy_runtime/lowering/test_aten_bridge.py -k locale
	CPU_NUM_DEVICES=4 $(BIN)/python -m pytest -m "long or not long" tests/lazy_runtime/test_threads.py $(TESTS)

sanitize: setup
	$(BIN)/python -m tests.sanitize $(addprefix --variants=,$(VARIANTS))

cross: setup $(STAMPS)/cross
	$(BIN)/python -m tests.cross

versions: setup
	$(BIN)/python -m tests.versions $(VERSIONS); status=$$?; \
	  $(BIN)/python -m lazy_runtime.compat > docs/versions.md && exit $$status

bench: setup
	$(BIN)/python -m benchmarks run --output $(RESULTS) $(BENCH)

compare: setup
	$(BIN)/python -m benchmarks compare $(COMPARE)

gate: setup
	$(BIN)/python -m benchmarks gate --against $(GATE)

check: $(STAMPS)/models
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python $(PACKAGES)

clean:
	rm -rf $(VENV) build dist *.egg-info lazy_runtime/native/*.so

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@

# torch goes first: the build of it that is found now is the one that everything else has to fit. After it the native
# part can be built beside what installs the rest (`make --jobs=2`).
$(STAMPS)/torch: requirements/torch.txt requirements/constraints.txt $(STAMPS)/venv
	$(PIP) --requirement requirements/torch.txt
	@touch $@

$(STAMPS)/dev: requirements/dev.txt $(STAMPS)/torch
	$(PIP) --requirement requirements/dev.txt
	@touch $@

$(STAMPS)/models: requirements/models.txt $(STAMPS)/dev
	$(PIP) --no-deps --requirement requirements/models.txt
	@touch $@

$(STAMPS)/libraries: requirements/libraries.txt $(STAMPS)/torch
	$(PIP) --no-deps --requirement requirements/libraries.txt
	@touch $@

$(STAMPS)/cross: requirements/cross.txt $(STAMPS)/dev
	$(PIP) --requirement requirements/cross.txt
	@touch $@

# Installing the package builds its native part too.
$(STAMPS)/package: setup.py setup.cfg pyproject.toml $(STAMPS)/torch
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@ $(STAMPS)/native

# Edited native sources are built without installing the package again; right after an install nothing is left to do.
$(STAMPS)/native: $(NATIVE) | $(STAMPS)/package
	@test -e $@ -a -z "$$(find $(NATIVE) -newer $@)" || $(BIN)/python -I lazy_runtime/native/build.py
	@touch $@
