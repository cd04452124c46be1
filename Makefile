# Every target creates what it needs; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help venv clean-venv install lock build clean-build rebuild clean docs lint format test test-search test-matrix test-integration \
        test-integration-rebuild test-chaos simulate java browser axe pictures readers benchmark benchmark-aws benchmark-kills figures deploy-s3 demo demo-cdc \
        demo-service
# What is missing is to be found before anything is installed.
.NOTPARALLEL:
# Else every process that a test starts compiles all of its modules anew: four times the time to start.
unexport PYTHONDONTWRITEBYTECODE

# `make PYTHON=…` makes the virtual environment with that one; else the first that will do is taken.
FIND   := python="$(PYTHON)"; test -n "$$python" || python=$$(sh dev/find_python.sh) || exit 1
VENV   := venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-26s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/uv:
	@$(FIND); "$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r bootstrap-requirements.txt

$(STAMP): $(BIN)/uv dev-requirements.txt pyproject.toml
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip sync --quiet --require-hashes dev-requirements.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

venv: $(STAMP) ## Create the virtual environment with all developer requirements

clean-venv: ## Remove the virtual environment
	rm -rf $(VENV)

install: ## Install the developer requirements again into the virtual environment
	@rm -f $(STAMP)
	@$(MAKE) --no-print-directory venv

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
           --no-emit-index-url --no-emit-find-links

lock: $(BIN)/uv ## Pin the requirements anew from pyproject.toml, with hashes
	$(COMPILE) --upgrade --extra dev pyproject.toml -o dev-requirements.txt
	$(COMPILE) --upgrade -c dev-requirements.txt pyproject.toml -o requirements.txt
	echo uv | $(COMPILE) --upgrade -c dev-requirements.txt - -o bootstrap-requirements.txt

build: venv ## Build a wheel into build/, with its intermediate artifacts in dist/
	@mkdir -p build
	$(BIN)/python -m build --no-isolation --outdir dist .
	cp dist/*.whl build/

clean-build: ## Remove what `build` made
	rm -rf build dist src/*.egg-info

rebuild: clean-build build ## Build from nothing

clean: clean-build clean-venv ## Remove everything that make made
	rm -rf readers site node_modules .mypy_cache .ruff_cache .import_linter_cache .hypothesis

docs: venv ## Build the documentation into site/, and check every link in it
	$(BIN)/python -m dev.docs_site

lint: venv ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv ## Put the code into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test test-integration test-search simulate: export PYTHONHASHSEED = 0
# In memory, where there is room: every commit is synced to disk, and tests would mostly wait for that.
MEMORY := $(shell df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 >= 8192 {print "/dev/shm"}')
ifneq ($(MEMORY),)
test test-integration: export TMPDIR = $(MEMORY)
endif

test: java venv ## Run all tests but the integration tests, in two processes: the same values each time
	$(BIN)/python -m pytest -m "not integration" -n 2

test-search: venv ## Search at random for what the property tests rule out: make test-search ARGS="--minutes 10"
	$(BIN)/python -m dev.search $(ARGS)

test-matrix: java venv ## Test the wheel with other Pythons and Sparks, and over Spark Connect: make test-matrix ARGS="--python 3.12 --spark 4.2"
	$(BIN)/python -m dev.matrix $(ARGS)

simulate: venv ## Simulate wrong clocks, sleepers, deaths and bad stores, seed after seed: make simulate ARGS="--minutes 60"
	$(BIN)/python -m dev.simulate $(ARGS)

java:
	@if test -x $(BIN)/python; then python=$(BIN)/python; else $(FIND); fi; PYTHONPATH=src "$$python" -m dev.ensure_java

browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" != 0 && echo "The browser tests need chromium; install it as root"; } || \
		{ apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } >/dev/null 2>&1

# What the browser tests look for barriers with.
AXE := node_modules/axe-core/.is-4.14.0

$(AXE):
	npm install --silent --no-save --no-package-lock --no-audit --no-fund axe-core@4.14.0
	@touch $@

axe: $(AXE)

pictures: venv browser ## Take the pictures of the service's pages in docs/images anew
	$(BIN)/python -m dev.pictures $(ARGS)

readers: venv ## Set up readers of other projects, in environments of their own: DuckDB, Delta Lake and Iceberg on Spark
	$(BIN)/python -m dev.readers

test-integration: java venv browser axe readers ## Install wheels, start clusters, S3 and Glue servers, run all examples
	$(BIN)/python -m pytest -m integration

test-chaos: java venv ## Kill nodes of a service and drivers of streams, follow a table for ten minutes, crash PostgreSQL, capture 10,000 random steps
	SILTSTONE_CHAOS_ROUNDS=20 SILTSTONE_CHAOS_KILLS=100 $(BIN)/python -m pytest -s tests/integration/test_service_chaos.py \
		tests/integration/test_stream_kills.py
	SILTSTONE_CHAOS_MINUTES=10 $(BIN)/python -m pytest -s tests/integration/test_feed_soak.py
	SILTSTONE_CDC_STEPS=10000 $(BIN)/python -m pytest -s tests/integration/test_debezium.py

test-integration-rebuild: clean-venv test-integration ## The same, in an environment made from nothing

benchmark: java venv ## Measure, write the results to benchmarks/results, and print them beside the aims: make benchmark ARGS="--only growth"
	$(BIN)/python -m benchmarks $(ARGS)

benchmark-kills: java venv ## Let a table grow on a cluster while executors are killed: make benchmark-kills ARGS="--minutes 30"
	$(BIN)/python -m benchmarks.lost_executors $(ARGS)

figures: venv ## Put the results of the benchmarks into README.md, docs/numbers.md and docs/scale.md
	$(BIN)/python -m benchmarks.figures

benchmark-aws: venv ## Measure reads of Parquet files in S3: make benchmark-aws FILES=s3://bucket/file.parquet
	$(BIN)/python -m benchmarks.parquet_reads --aws $(FILES)

deploy-s3: venv ## Upload the workspace as a wheel to s3://siltstone-packages-{stage}, and say how to install it
	$(BIN)/python -m dev.deploy.aws.deploy_s3

demo: java venv ## Create a lake in a temporary folder and use it
	$(BIN)/python -m examples.demo

demo-service: java venv ## Serve a lake that is written to, and show its cycles: make demo-service ARGS="--seconds 60"
	$(BIN)/python -m examples.demo_service $(ARGS)

demo-cdc: java venv ## Capture a table of a PostgreSQL server with Debezium, and compact it (needs Maven and a JDK)
	$(BIN)/python -m examples.postgres_cdc $(ARGS)
