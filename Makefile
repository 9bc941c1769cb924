# Every target does its own set-up; a second run of it starts at once.
#
#   make demo     the whole circle on the retail extract, into ./demo
#   make test     the tests, one process more than cores (at most four); ten minutes on two cores;
#                 ARGS="-n 0 tests/core/installation -k jars" runs some of them, in one process
#   make test-long  what it leaves out: tests marked `long` (larger siblings of its own), the random
#                 tests with all their cases, and those of the native core without it
#   make test-changed  those of `make test` that the changes since origin/main (or main) can affect, by
#                 the import graph, with the working tree;  BASE=HEAD~1: since another commit
#   make test-fast  those of `make test` that need no engine and no server
#   make test-paused  the same while its processes are paused at random: fails what rests on measured time
#   make coverage   all tests with branch coverage, processes that they start included; the report in htmlcov/
#   make lint     style, types (of the public API also by pyright, where Node.js is), import layers
#   make notebooks  runs the notebooks of docs/, each in an empty folder;  ARGS="tutorial.ipynb": one
#   make docs     the documentation site, in site/; links and anchors are checked; notebooks with
#                 their outputs, if `make notebooks` has run them as they are now
#   make bench    the benchmarks;  ARGS=... picks some;  ARGS=--page: the commands of
#                 docs/internals/performance.md on an idle machine, into build/benchmarks (hours; continues)
#   make chaos    a hundred kills of the tile job and of ingest with its broker, the failure matrix
#                 of iterations and a hundred random failures in them, random views through real jobs,
#                 lost processes of clusters, faults around the feature server, the whole retail log,
#                 every cell of the matrix of windows, the loop on S3, application mode, train and
#                 retrain killed (two hours; with
#                 Go, which installs them, also against the S3 servers gofakes3 and versitygw);
#                 ARGS="-k random_faults": these alone
#   make fuzz     the random tests with fifty times the cases;  FUZZ_MINUTES=30 repeats them for that
#                 long with new seeds;  FUZZ_SEED=, FUZZ_EXAMPLES= repeat a round;
#                 FUZZ_REQUESTS=100000: the feature server alone (see tools/fuzz.py)
#   make ui-test  the web UI in Chromium with axe-core, which npm installs into build/axe
#   make mutants  faults in windows, merges, records, compare-and-set, restarts: each must fail a test
#   make feast-test  the Feast plugin, in an environment of its own with Feast, build/feast
#   make adapters-test  Ray and Hugging Face datasets over a table, likewise, build/adapters
#   make manifests  renders deploy/kubernetes/base, and checks it, the overlay and all options against
#                 the schemas of Kubernetes (needs Go);  ARGS="--crd FILE": the operator's, too
#   make alerts   when the alerts of docker/alerts.yml fire, by Prometheus' promtool (needs Go)
#   make images   builds the images of docker/ (docker, podman or buildah), checks their sizes, and starts
#                 the platform from them;  ARGS="--only serving": one image
#   make extras   the wheel with each extra in clean environments, for every Python of this machine;
#                 ARGS="--extra serve --python 3.13": these alone
#   make release  packages, bills of materials, licences and their hashes, in dist/
#   make lock     the lock files from pyproject.toml;  ARGS=--upgrade moves every pin
#   make clean    removes what the targets made, but not .venv and the cached jars
#
# PYTHON=/path/to/python3.11 names the interpreter for .venv.

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-changed test-fast test-paused coverage lint notebooks docs bench chaos fuzz ui-test mutants manifests alerts images extras release lock clean feast-test adapters-test \
	ui-test-tools feast-test-tools adapters-test-tools manifests-tools alerts-tools

# in `make test` a missing engine is an error; plain pytest skips what needs it, and says so
# (Flink's Python has no release for 3.13)
REQUIRED = PAIMON_FEATURES_REQUIRE=$$(.venv/bin/python -c "import sys; \
	print('flink,kafka,' * (sys.version_info < (3, 13)) + 'redis,tensorflow,torch')")

# tests of what the native core computes, which also run by NumPy alone
WITH_A_CORE := tests/offline/joins tests/trainer_bridge/order tests/trainer_bridge/batches \
	tests/trainer_bridge/blocks $(wildcard tests/serving/test_*.py) tests/test_buckets.py

# a module stays in one process, because its tests share what is dear to start
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder
FAST = .venv/bin/python -m pytest --fast $(PARALLEL) --hypothesis-profile=sample -m "not long" $(ARGS)

export PYTHON ARGS
# compiled once: otherwise each of some thousand Python processes compiles all that it imports
unexport PYTHONDONTWRITEBYTECODE

help:
	@sed -n '3,/^$$/s/^# *//p' Makefile

demo:
	@tools/setup.sh demo
	.venv/bin/paimon-features demo --into demo $(ARGS)

test:
	@tools/setup.sh test
	$(REQUIRED) .venv/bin/python -m pytest --durations=15 $(PARALLEL) \
		--hypothesis-profile=sample -m "not long" $(ARGS)

test-long:
	@tools/setup.sh test
	$(REQUIRED) .venv/bin/python -m pytest --durations=15 $(PARALLEL) --long $(ARGS)
	$(if $(ARGS),,PAIMON_FEATURES_NATIVE=0 .venv/bin/python -m pytest $(PARALLEL) \
		--hypothesis-profile=sample -m "not long" $(WITH_A_CORE))

test-changed:
	@tools/setup.sh test
	@modules=$$(.venv/bin/python tools/changed_tests.py $(if $(BASE),--base $(BASE))) || exit; \
		if [ -z "$$modules" ]; then echo "no test depends on the changes"; exit; fi; \
		$(REQUIRED) .venv/bin/python -m pytest $(PARALLEL) --hypothesis-profile=sample \
		-m "not long" $(ARGS) $$modules

test-fast:
	@tools/setup.sh test
	$(FAST)

test-paused:
	@tools/setup.sh test
	.venv/bin/python tools/with_pauses.py $(FAST)

coverage:
	@tools/setup.sh test
	$(REQUIRED) .venv/bin/python -m pytest $(PARALLEL) --cov \
		--cov-report=term --cov-report=html $(ARGS)

lint:
	@tools/setup.sh test
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/python tools/public_types.py
	.venv/bin/lint-imports
	.venv/bin/python tools/house.py

notebooks:
	@tools/setup.sh test
	.venv/bin/python tools/notebooks.py $(ARGS)

docs:
	@tools/setup.sh docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet $(ARGS)

bench:
	@tools/setup.sh test
	.venv/bin/python -m benchmarks $(ARGS)

chaos:
	@tools/setup.sh test
	$(REQUIRED) PAIMON_FEATURES_KILLS=100 PAIMON_FEATURES_RANDOM_JOBS=40 \
		PAIMON_FEATURES_GO_PROGRAMS=$$(.venv/bin/python tools/go_programs.py) \
		PAIMON_FEATURES_LOOP_MINUTES=$(or $(PAIMON_FEATURES_LOOP_MINUTES),10) \
		PAIMON_FEATURES_WORLDS=$(or $(PAIMON_FEATURES_WORLDS),30) .venv/bin/python -m pytest \
		tests/project/outcomes/test_kills.py tests/flink/tiles/test_restart_killed_flink.py tests/flink/test_tiling_flink.py \
		tests/flink/ingest/test_kafka_killed_flink.py tests/flink/tiles/test_forget_flink.py \
		tests/flink/test_application_flink.py tests/test_retail_log.py tests/test_matrix.py \
		tests/test_tracking.py \
		tests/flink/iteration/test_failures_flink.py tests/serving/chaos \
		tests/flink/test_high_availability_flink.py tests/flink/test_rescaling_flink.py \
		tests/flink/test_object_store_flink.py tests/flink/test_loop_flink.py \
		tests/lake/test_object_store_faults.py \
		tests/flink/test_long_run_flink.py tests/flink/test_rest_catalog_flink.py \
		tests/flink/tiles/test_restart_detached_flink.py \
		tests/flink/test_cluster_flink.py tests/flink/test_matrix_flink.py \
		tests/flink/iteration/test_iterations_cluster_flink.py \
		tests/flink/iteration/test_job_flink.py \
		tests/trainer_bridge/adapters/test_torch_frameworks.py \
		tests/trainer_bridge/adapters/test_tensorflow_distributed.py \
		tests/trainer_bridge/feedback/test_writer.py tests/trainer_bridge/feedback/test_feedback_drain.py \
		tests/trainer_bridge/adapters/test_keras_feedback.py \
		tests/trainer_bridge/adapters/test_torch_workers.py \
		tests/trainer_bridge/training/test_killed.py tests/lake/test_models.py \
		--timeout=0 -rP $(ARGS)

# what PART needs besides .venv: where it cannot be had, .ci/run goes on without that target
ui-test-tools:
	@tools/setup.sh test
	@command -v chromium || command -v chromium-browser || { echo "no chromium on the PATH"; exit 1; }
	npm install --silent --no-save --ignore-scripts --prefix build/axe axe-core@4.14.1

feast-test-tools:
	@tools/setup.sh test
	test -x build/feast/bin/python || .venv/bin/python -m venv build/feast
	.venv/bin/python -m uv pip install --quiet --python build/feast/bin/python \
		"$(FEAST)" --editable ".[client,lake,local,serve]"

adapters-test-tools:
	@tools/setup.sh test
	test -x build/adapters/bin/python || .venv/bin/python -m venv build/adapters
	.venv/bin/python -m uv pip install --quiet --python build/adapters/bin/python \
		"datasets>=4" "ray[data,train]>=2.60" "transformers>=5" "accelerate>=1.10" \
		--editable ".[lake,torch]"

manifests-tools:
	@tools/setup.sh test
	.venv/bin/python tools/check_manifests.py

alerts-tools:
	@tools/setup.sh test
	.venv/bin/python tools/check_alerts.py --tools

fuzz:
	@tools/setup.sh test
	.venv/bin/python tools/fuzz.py $(ARGS)

ui-test: ui-test-tools
	PAIMON_FEATURES_AXE=build/axe/node_modules/axe-core/axe.min.js \
		.venv/bin/python -m pytest -n 0 tests/project/web tests/serving/ui $(ARGS)

mutants:
	@tools/setup.sh test
	.venv/bin/python tools/mutants.py $(ARGS)

FEAST = feast[redis,duckdb]==0.67.0
feast-test: feast-test-tools
	PAIMON_FEATURES_FEAST_PYTHON=$(CURDIR)/build/feast/bin/python .venv/bin/python -m pytest \
		tests/integrations/feast $(ARGS)

adapters-test: adapters-test-tools
	PAIMON_FEATURES_ADAPTERS_PYTHON=$(CURDIR)/build/adapters/bin/python .venv/bin/python -m pytest \
		tests/trainer_bridge/adapters/test_ray_and_datasets.py --timeout=0 $(ARGS)

manifests: manifests-tools
	rm -rf build/manifests && mkdir -p build/manifests
	.venv/bin/python -m tests.project.deploy.projects build/manifests
	.venv/bin/python tools/check_manifests.py --excerpt tests/project/deploy/kubernetes_schemas.json $(ARGS) \
		deploy/kubernetes/base deploy/kubernetes/overlays/example build/manifests/full

alerts: alerts-tools
	.venv/bin/python tools/check_alerts.py

images:
	@tools/setup.sh test
	.venv/bin/python tools/images.py $(ARGS)

extras:
	@tools/setup.sh test
	.venv/bin/python tools/try_extras.py $(ARGS)

release:
	@tools/setup.sh test
	.venv/bin/python tools/release.py

lock:
	@tools/setup.sh test
	tools/lock.sh $(ARGS)

clean:
	rm -rf demo build dist site htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
