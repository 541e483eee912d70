# One command for each thing. Everything runs in .venv/ of this checkout, made from uv.lock; the system's Python is never touched.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# The tests start hundreds of processes, which compile the same modules only once, also where Python is set to write no bytecode beside them.
export PYTHONPYCACHEPREFIX := $(CURDIR)/.bytecode
unexport PYTHONDONTWRITEBYTECODE

PYTHON := .venv/bin/python
PACKAGES := wal actors broadcaster examples benchmarks
SOURCES := $(PACKAGES) tests pyspark_wal.py
SYNCED := .venv/.synced
CLASSES := .venv/spark-home/classes.jsa
COMPILED := .bytecode/.compiled
PYTEST_ARGS ?=
PROCESSES ?= 3
DEMO_ARGS ?=
LOCATION ?= .demo
PORTABLE := actors api broadcaster channels client frame message node/retention read runtime storage timestamp write
BENCH ?=
BENCH_ARGS ?=

.PHONY: help setup prepare servers demo test portable pythons lint site format bench soak simulate release protos twins pictures clean

help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' Makefile

setup: $(SYNCED) ## .venv/ with everything in uv.lock (needs the network once); leaves what you added

$(SYNCED): pyproject.toml uv.lock
	@echo "setup: making .venv/ as uv.lock says"
	@uv="$$(.ci/ensure-uv)"; mkdir -p .uv/tmp; env -u VIRTUAL_ENV TMPDIR="$$PWD/.uv/tmp" UV_PROJECT_ENVIRONMENT=.venv "$$uv" sync --locked --inexact --all-extras
	@touch $@

demo: setup ## 336,776 flights through a log whose writer is killed once, then Spark; checked against the CSV; LOCATION=standalone: over the network; LOCATION=pulsar: on Pulsar and etcd; LOCATION=cluster: coordinators and nodes over both
	@$(if $(filter pulsar cluster,$(LOCATION)),$(PYTHON) -m tests.servers etcd pulsar -- )$(PYTHON) -m examples.flights --location $(LOCATION) $(DEMO_ARGS)

servers: setup ## etcd and Pulsar for the tests, into ~/.cache/wal/ (a few minutes, once; without one its tests are skipped)
	-@$(PYTHON) -m tests.servers etcd pulsar

$(CLASSES): $(SYNCED)
	@echo "test: writing down once which classes a session of Spark loads, so that the sessions of all tests start faster"
	-@timeout 300 $(PYTHON) -W ignore -m tests.spark.java

$(COMPILED): $(SYNCED)
	@echo "test: compiling the tests once for the processes that run them"
	-@$(PYTHON) -m pytest --collect-only -qq >/dev/null && touch $@

prepare: setup ## what tests need besides .venv/: servers, classes of Spark and compiled tests, side by side
	@$(MAKE) --jobs=3 servers $(CLASSES) $(COMPILED)

test: prepare ## all tests, in PROCESSES (3) side by side; PYTEST_ARGS="tests/storage/kv -k watch" for some of them
	@$(PYTHON) -m pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)

portable: setup ## the tests of everything that also runs on macOS, with every call made to fail that only Linux has (tests/portable)
	@PYTHONPATH=tests/portable $(PYTHON) -m pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder -k "not pulsar and not etcd" \
		$(addprefix tests/,$(PORTABLE)) $(PYTEST_ARGS)

pythons: setup ## the quick tests on every other Python that pyproject.toml claims and this machine has, each in a .venv-3.x/ of its own
	@$(PYTHON) -m tests.pythons

lint: setup ## ruff format --check, ruff check, mypy --strict, import-linter, type completeness, wording, links of the docs
	.venv/bin/ruff format --check $(SOURCES)
	.venv/bin/ruff check $(SOURCES)
	.venv/bin/mypy --strict $(addprefix -p ,$(PACKAGES)) -m pyspark_wal
	.venv/bin/mypy --strict --exclude 'tests/typing/wrong_uses\.py' tests
	.venv/bin/lint-imports --no-logo
	.ci/type-completeness 98
	$(PYTHON) .ci/wording
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet

site: setup ## the documentation as a site, in .site/; `.venv/bin/mkdocs serve` shows it while it is written
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet && echo "site: open .site/index.html"

format: setup ## ruff format, and ruff's safe fixes
	.venv/bin/ruff format $(SOURCES)
	.venv/bin/ruff check --fix $(SOURCES)

bench: setup ## beside the bare disk and SQLite, 25 minutes; BENCH="w1 w3" for some, BENCH_ARGS=--quick for 3 minutes
	@$(PYTHON) -m benchmarks $(BENCH) $(BENCH_ARGS)

soak: prepare ## all tests in their long form
	@SOAK=1 $(PYTHON) -m pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder -o faulthandler_exit_on_timeout=false $(PYTEST_ARGS)

simulate: setup ## a simulated cluster under faults, one seed after the other from SEED (1) on, for SECONDS (60)
	@$(PYTHON) -m tests.simulation --seed $(or $(SEED),1) --seconds $(or $(SECONDS),60)

release: setup ## sdist and wheel in dist/, checked in fresh environments: contents, metadata, types, each extra alone; publishes nothing
	@$(PYTHON) -m pytest -v tests/release.py

protos: ## the generated messages of all .proto files, by the version that wal/message/wire.proto explains
	@uv="$$(.ci/ensure-uv)"; mkdir -p .uv/tmp; env -u VIRTUAL_ENV TMPDIR="$$PWD/.uv/tmp" "$$uv" run --no-project --with grpcio-tools==1.72.1 --with 'setuptools<81' \
		python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $$(git ls-files '*.proto')
	@git ls-files '*_pb2.pyi' | xargs sed -i -E 's/\b_Mapping\]/_Mapping[str, object]]/g' # protoc leaves its types open

twins: setup ## the blocking classes, generated from the async ones
	@$(PYTHON) -m tests.twins

pictures: setup ## the pictures of the documentation, drawn from their descriptions in docs/pictures/
	@$(PYTHON) -m tests.pictures

clean: ## removes what the targets above create, except .venv/ and .venv-3.x/
	rm -rf .demo .bytecode .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .site dist build
