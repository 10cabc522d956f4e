# Every recipe is one readable line. Every command first installs what it needs into .venv; stamp
# files there record each finished installation, so that a second run starts immediately.

VENV    := .venv
PYTHON  := $(VENV)/bin/python
PACKAGES := streams tasks state_stores rebalance
EVERYTHING := tidewheel $(PACKAGES) tests benchmarks examples checks
FOUND_PYTHON = $(shell for p in $(PYTHON3) python3.11 python3.12 python3.13 python3; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.DEFAULT_GOAL := help
.NOTPARALLEL: # one pip at a time
.PHONY: help env demo test faults soak simulate mutants check lint format types imports duplicates docs site repository dist matrix bench map lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

env: $(VENV)/.check $(VENV)/.broker ## install this project, all tools and a Kafka into .venv

demo: $(VENV)/.run $(VENV)/.broker ## start a Kafka, run a topology on real records, check the result
	$(VENV)/bin/tidewheel demo

test: $(VENV)/.check $(VENV)/.docs $(VENV)/.spark $(VENV)/.broker $(VENV)/.browser $(VENV)/.postgres ## run all tests, also those with a real Kafka (make test ARGS="-k word")
	$(PYTHON) -m checks.run_tests $(ARGS)

faults: $(VENV)/.check $(VENV)/.spark $(VENV)/.broker $(VENV)/.postgres ## nightly: survive every fault, and write docs/reliability.md (make faults ARGS="-k disk")
	$(PYTHON) -m tests.faults $(ARGS)

soak: $(VENV)/.test $(VENV)/.broker ## survive half an hour of random faults, with three brokers (make soak ARGS="--minutes 5 --seed 42")
	$(PYTHON) -m tests.faults.soak --results tests/faults/soak/soaks.jsonl $(ARGS)

simulate: $(VENV)/.test ## nightly: run 6,000 simulated lifetimes of groups, and every mutant
	$(PYTHON) -m tests.simulation --nightly

mutants: $(VENV)/.check $(VENV)/.spark $(VENV)/.broker $(VENV)/.browser $(VENV)/.postgres ## break guarded places in copies of the code, and see a test fail for each
	$(PYTHON) -m tests.faults.mutants $(ARGS)

check: lint types imports duplicates docs site repository dist ## all checks that need no Kafka

lint: $(VENV)/.check ## check style and format of the code
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .

format: $(VENV)/.check ## format the code
	$(VENV)/bin/ruff check --fix . ; $(VENV)/bin/ruff format .

types: $(VENV)/.check $(VENV)/.docs $(VENV)/.spark ## check types: mypy strict and pyright strict
	$(VENV)/bin/mypy && for p in . checks/pyright-basic.json; do $(VENV)/bin/pyright --pythonpath $(PYTHON) -p $$p || exit 1; done

imports: $(VENV)/.check ## check the import contracts
	$(VENV)/bin/lint-imports

duplicates: $(VENV)/.check ## check for duplicated code
	$(VENV)/bin/pylint $(EVERYTHING)

docs: $(VENV)/.check $(VENV)/.spark ## run every example in docstrings, README and docs
	$(PYTHON) -m pytest --quiet --doctest-modules tidewheel && $(PYTHON) -m checks.markdown_examples

site: $(VENV)/.check $(VENV)/.docs $(VENV)/.spark ## build the documentation site strictly, into build/site
	$(PYTHON) -m checks.site

repository: $(VENV)/.check ## check requirements, forbidden texts and installed packages
	$(PYTHON) -m checks.requirements_table && $(PYTHON) -m checks.forbidden_text && $(PYTHON) -m pip check

dist: $(VENV)/.check ## build the wheel and the sdist into dist/, and check both
	$(PYTHON) -m checks.release.distribution

matrix: $(VENV)/.check ## try the built wheel in a clean environment of each Python that is here (make matrix ARGS="--only 3.12")
	$(PYTHON) -m checks.release.matrix $(ARGS)

bench: $(VENV)/.test $(VENV)/.broker ## measure throughput in ten minutes (make bench ARGS="latency --quick")
	$(PYTHON) -m benchmarks $(or $(ARGS),throughput --quick)

map: $(VENV)/.run ## list every module with its purpose
	@$(PYTHON) -m checks.file_map

lock: $(VENV)/.lock ## resolve constraints.txt again (make lock ARGS=--upgrade: newest versions)
	$(PYTHON) -m checks.lock $(ARGS)

clean: ## remove the environment and the caches of all tools
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

# The environment, in layers: a demo does not wait for a type checker.

$(PYTHON):
	$(or $(FOUND_PYTHON),$(error no Python 3.11 or newer found: install one, or run make PYTHON3=/path/to/python3)) -m venv $(VENV)

$(VENV)/.build: constraints.txt | $(PYTHON)
	$(PYTHON) -m checks.install build && touch $@

$(VENV)/.run: constraints.txt pyproject.toml | $(VENV)/.build
	$(PYTHON) -m checks.install run && $(PYTHON) -m checks.install --project && touch $@

$(VENV)/.test: constraints.txt | $(VENV)/.run
	$(PYTHON) -m checks.install test arrow avro files http iceberg jsonschema opentelemetry postgres protobuf web && touch $@

$(VENV)/.check: constraints.txt | $(VENV)/.test
	$(PYTHON) -m checks.install check release && touch $@

$(VENV)/.docs: constraints.txt | $(VENV)/.run
	$(PYTHON) -m checks.install docs && touch $@

$(VENV)/.spark: constraints.txt | $(VENV)/.run
	$(PYTHON) -m checks.install spark && touch $@

$(VENV)/.broker: constraints.txt | $(VENV)/.run
	$(PYTHON) -m checks.install --broker && touch $@

$(VENV)/.browser: | $(VENV)/.run
	$(PYTHON) -m checks.browser --stamp $@

$(VENV)/.postgres: | $(VENV)/.run
	$(PYTHON) -m checks.postgres --stamp $@

$(VENV)/.lock: | $(VENV)/.build
	$(PYTHON) -m checks.install lock && touch $@
