# The project's commands. `make help` lists them; CONTRIBUTING.md says when to use which.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Assertions state the store's invariants: nothing here runs with them switched off.
unexport PYTHONOPTIMIZE

PYTHON ?= python3
# Two more than there are cores: tests of daemons wait as long as they compute. The tests of `make quick` do not wait,
# and each worker collects all tests.
CORES := $(shell nproc 2>/dev/null || echo 2)
WORKERS ?= $(shell echo $$(( $(CORES) + 2 )))
QUICK_WORKERS ?= $(CORES)
SEED ?= 1
ARGS ?=

VENV := .venv
RUN := $(VENV)/bin/python
STAMP_RUN := $(VENV)/.setup-run-done
STAMP := $(VENV)/.setup-done
STAMP_DOCS := $(VENV)/.setup-docs-done
STAMP_AUDIT := $(VENV)/.setup-audit-done
# A trial is made from its number alone: the order of sets is the same in each run, too. Bytecode is kept, also where
# PYTHONDONTWRITEBYTECODE is set: compiling all tests takes longer than collecting them.
PYTEST := env -u PYTHONDONTWRITEBYTECODE PYTHONHASHSEED=$(SEED) $(RUN) -m pytest --numprocesses $(WORKERS) --dist worksteal
# `make quick` keeps its files in memory, where there are two gigabytes for them: a removal from a disk takes longer than
# many a test.
IN_MEMORY := $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 2000000 ] 2>/dev/null && echo TMPDIR=/dev/shm)
# `make check` has these, and `make quick` has not.
CHECKED := tests/unit/project/test_generated.py tests/unit/project/test_one_way.py tests/unit/project/test_tidy.py \
  tests/unit/project/test_words.py tests/durability/test_package_faults.py tests/durability/test_planted_bugs.py \
  tests/durability/test_track_record.py
PACKAGES := proto store rpc daemon nameserver broker clients/python console pipeline
TYPED := $(PACKAGES) deploy bench docs tools tests
PROJECTS := $(PACKAGES:%=%/pyproject.toml)
PROTO_OUT ?= proto
TESTS_OUT ?= .

.PHONY: help
help: ## List the commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name text; do \
	  printf '  make %-18s %s\n' "$$name" "$$text"; done

# --- the environment --------------------------------------------------------------------------------
# Two steps: what `make run` needs (daemons, SDK, command line, the demo's data), and on top of it the tools of
# everything else (tests, checks, benchmarks, Spark).
.PHONY: setup-run
setup-run: $(STAMP_RUN)

$(STAMP_RUN): locks/run.txt locks/demo.txt locks/build.txt $(PROJECTS)
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("TroveMQ needs Python 3.11 or newer, \
	and $(PYTHON) is %d.%d. Name another one: make setup PYTHON=python3.12" % (v[0], v[1]))'
	@$(PYTHON) tools/set_up.py run $(VENV)
	@touch $@

# Bytecode is compiled ahead, also where PYTHONDONTWRITEBYTECODE is set: daemons and command line start in half the time.
.PHONY: setup
setup: $(STAMP) ## Make .venv with everything in it (nothing to do when it is there)
	@$(RUN) -m compileall -q $(PACKAGES) deploy bench

$(STAMP): $(STAMP_RUN) locks/uv.txt locks/dev.txt locks/java.txt
	@$(PYTHON) tools/set_up.py all $(VENV)
	@touch $@

# --- running ----------------------------------------------------------------------------------------
.PHONY: run
run: setup-run ## Start nameserver and broker, load the demo data, answer five look-ups, serve until Ctrl-C
	@exec env -u PYTHONDONTWRITEBYTECODE $(RUN) -m deploy.demo $(ARGS)

.PHONY: bench
bench: setup ## Measure the store, both protocols and the trees; prints a table and writes JSON (ARGS="rocketmq": one part)
	@GRPC_VERBOSITY=ERROR exec $(RUN) -m bench.run $(ARGS)

.PHONY: pipeline-demo
pipeline-demo: setup ## The flights archived, searched by tail number, delays by carrier as a table and a picture
	@exec $(RUN) -m deploy.pipeline_demo $(ARGS)

.PHONY: delta-jars
delta-jars: ## Fetch Delta Lake's jars with Maven into build/delta-jars (trovemq-pipeline stream --set format=delta)
	@mvn -q -B -f pipeline/delta/pom.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/build/delta-jars

.PHONY: bench-pipeline
bench-pipeline: setup ## Measure the pipeline beside plain Python and Spark's own parts (ARGS="--quick")
	@exec $(RUN) -m bench.run pipeline $(ARGS)

# --- tests ------------------------------------------------------------------------------------------
# A run of everything also says how much of the engine it went through, and fails where that is too little.
.PHONY: test
test: setup ## Every test (ARGS="-k name" chooses)
ifeq ($(ARGS),)
	@WHOLE=1 $(PYTEST) --cov --cov-report=
	@$(RUN) -m tests.support.engine_coverage
else
	@$(PYTEST) $(ARGS)
endif

# Order is chance's: modules, and tests within them. `make repeat` is 20 such runs, every second beside two busy loops.
.PHONY: test-random
test-random: setup ## Every test in random order (SEED=n)
	@WHOLE=1 $(PYTEST) -p randomly --randomly-seed=$(SEED) --randomly-dont-reset-seed

.PHONY: repeat
repeat: setup ## 20 runs in random order, continues where it stopped (ARGS="--runs 5"); writes docs/reports/repeat.md
	@$(RUN) -m tests.support.repeat $(ARGS)

.PHONY: durations
durations: setup ## Record how long the tests of the last `make test` took: docs/reports/tests.md, tests/durations.json
	@$(RUN) -m tests.support.durations

.PHONY: quick
quick: setup ## The fast tests, about a minute; without those of `make check`
	@$(IN_MEMORY) QUICK=1 $(PYTEST) --numprocesses $(QUICK_WORKERS) -m "not slow and not untraced" \
	  $(CHECKED:%=--ignore=%) $(ARGS)

.PHONY: test-pythons
test-pythons: setup ## The fast tests on each Python from 3.11 to 3.14 of this machine, pyenv's too
	@$(RUN) -m tools.pythons $(ARGS)

.PHONY: test-etcd
test-etcd: setup ## The tests with a real etcd, by one that Go builds from its modules: VERSION=3.6.16, 3.5.35 (minutes at first)
	@$(RUN) -m tools.etcd build/etcd-$(VERSION) $(VERSION)
	@PATH="$(CURDIR)/build/etcd-$(VERSION):$$PATH" $(PYTEST) $$(grep -l needs_etcd tests/integration/*.py)

.PHONY: soak
soak: setup ## Every trial of durability, all flights, each Python; about an hour; writes docs/reports/soak.md
	@SOAK=1 WHOLE=1 $(PYTEST) --timeout 3600 tests/durability tests/integration tests/unit tests/world
	@$(MAKE) test-pythons

.PHONY: soak-rpc
soak-rpc: setup ## The gRPC transport's part of soak, some minutes; writes docs/reports/soak-rpc.md
	@SOAK=1 SOAK_NAME=soak-rpc $(PYTEST) --timeout 3600 tests/unit/rpc

.PHONY: test-pipeline-long
test-pipeline-long: setup ## The tests of the Spark pipeline in full: every kill, all flights
	@PIPELINE_LONG=1 $(PYTEST) --timeout 1800 tests/pipeline tests/unit/pipeline $(ARGS)

.PHONY: mutants
mutants: setup ## Does a new suite of tests kill the mutants of a module that the old one killed? (MODULE= OLD= NEW= ARGS=)
	@$(RUN) -m tools.mutants $(MODULE) --old "$(OLD)" --new "$(NEW)" $(ARGS)

.PHONY: conformance
conformance: setup ## The official RocketMQ 5 clients against one broker and two (ARGS="python": one language, one broker)
ifeq ($(ARGS),)
	@$(RUN) -m tests.conformance.run
	@$(RUN) -m tests.conformance.run --brokers 2 --tls
	@$(RUN) -m tests.conformance.changes --tls
	@$(RUN) -m tests.conformance.failover --tls
	@$(RUN) -m tests.conformance.beside_rocketmq
	@$(RUN) -m tests.conformance.kills
	@$(RUN) -m tests.conformance.tools_compared
else
	@$(RUN) -m tests.conformance.run $(ARGS)
endif

.PHONY: interop-grpc
interop-grpc: setup ## gRPC's interoperability cases and h2spec with our transport; writes docs/reports/rpc-interop.md
	@$(RUN) -m tests.interop_grpc.run $(ARGS)

# --- checks -----------------------------------------------------------------------------------------
.PHONY: check
check: lint types imports generated ## Everything below: lint, types, imports, generated

.PHONY: lint
lint: setup ## ruff: rules and format
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

.PHONY: types
types: setup ## mypy --strict
	@$(RUN) -m mypy --strict $(TYPED)

.PHONY: imports
imports: setup ## import-linter: imports point inwards, the engine knows no event loop
	@$(VENV)/bin/lint-imports

.PHONY: generated
generated: setup ## Generated code and pages are as their sources give them; planted bugs fit; the rules of the tree and its words
	@$(RUN) -m pytest -q -m "not slow" $(CHECKED)

# --- generated files ---------------------------------------------------------------------------
# The messages only: services are registered from their descriptors (daemon/trovemq_daemon/grpc_services.py).
.PHONY: proto
proto: setup ## Generate the protocol's Python code from the .proto files
	@$(RUN) -m grpc_tools.protoc -I proto --python_out=$(PROTO_OUT) --pyi_out=$(PROTO_OUT) \
	  proto/trovemq_proto/v1/*.proto proto/trovemq_proto/rocketmq/v2/*.proto proto/trovemq_proto/etcd/v3/*.proto
	@$(RUN) -m grpc_tools.protoc -I . --python_out=$(TESTS_OUT) --pyi_out=$(TESTS_OUT) \
	  tests/interop_grpc/programs/interop.proto

.PHONY: docs
docs: setup ## Generate the pages of reference, dashboards and alert rules
	@$(RUN) docs/generate.py
	@$(RUN) -m deploy.monitoring

.PHONY: news
news: setup ## Collect the fragments in news/ into CHANGELOG.md (VERSION=0.2.0); without VERSION it prints them
	@$(RUN) -m towncrier build $(if $(VERSION),--yes --version $(VERSION),--draft --version next)

.PHONY: format
format: setup ## Format the code and sort the imports
	@$(RUN) -m ruff check --select I --fix --quiet .
	@$(RUN) -m ruff format .

.PHONY: walks
walks: setup ## Trace five calls and draw their way through the packages: docs/internals/walks.md
	@PYTHONHASHSEED=1 $(RUN) -m tests.support.walks

# Into build/site, from the pages in docs/ and the docstrings, which are read and not imported. Its distributions are
# installed at its first run; the build itself takes nothing from a network.
.PHONY: docs-site
docs-site: $(STAMP_DOCS) ## Build the pages and the API reference as a site: build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict $(ARGS)

$(STAMP_DOCS): $(STAMP) locks/docs.txt
	@$(PYTHON) tools/set_up.py docs $(VENV)
	@touch $@

.PHONY: dist
dist: setup ## Build a release: wheels, source distributions, bill of materials, pinned requirements, sums: dist/
	@$(RUN) -m tools.dist dist $(PACKAGES)

.PHONY: sbom
sbom: setup ## The bill of materials in CycloneDX, of the lock files: build/sbom.cdx.json
	@$(RUN) -m deploy.sbom build/sbom.cdx.json

# Its distributions are installed at its first run.
.PHONY: audit
audit: $(STAMP_AUDIT) ## Known vulnerabilities of the pinned distributions, from the package index (needs a network)
	@$(RUN) -m deploy.audit

$(STAMP_AUDIT): $(STAMP) locks/audit.txt
	@$(PYTHON) tools/set_up.py audit $(VENV)
	@touch $@

.PHONY: lock
lock: setup ## Rewrite the lock files from the pyproject files (UPGRADE=1: newest versions)
	@$(RUN) -m tools.locks $(if $(UPGRADE),--upgrade) $(PROJECTS)

.PHONY: clean
clean: ## Remove caches and build output (not .venv, not the store in data/)
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -path './.venv*' -prune -o -type d \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +
