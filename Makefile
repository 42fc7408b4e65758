# Every target does its own set-up: a virtual environment in .venv from requirements.lock, by uv if it is there, else pip.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)
ONCE   ?=
# The tests wait as much as they compute.
WORKERS ?= 6
SECONDS ?= 180
SEEDS   ?= 2000
B       ?= launch plan placement storm steady restart startup quota reservations returning absorb rollout overlap starve page \
           oncall forecast scheduler

# What a process compiled, the next one finds, wherever the shell would have each of them compile it anew.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/pycache

.DEFAULT_GOAL := help

$(VENV)/.installed: requirements.lock pyproject.toml local/pyproject.toml
	@echo "Installing the packages of requirements.lock into $(VENV), once: about a minute."
ifdef UV
	@test -x $(BIN)/python || uv venv --quiet --python $(PYTHON) $(VENV)
	uv pip sync --quiet --python $(BIN)/python requirements.lock
	uv pip install --quiet --python $(BIN)/python --no-deps --editable . --editable local
else
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { \
	  echo "No virtual environment could be made: install python3-venv (apt-get install python3-venv) or uv."; exit 1; }
	@{ $(BIN)/pip install --require-hashes --requirement requirements.lock || echo FAILED; } | awk \
	  '/^Collecting/ && ++n % 10 == 0 {print "  " n " packages"; fflush()} $$0 == "FAILED" {failed = 1} END {exit failed}'
	$(BIN)/pip install --quiet --no-deps --editable . --editable local
endif
	@touch $@

.PHONY: help fuzz demo teams-demo room-demo rollout-demo kueue-demo karpenter-demo test real bench simulate soak moto-suite screenshots release unit lint types contracts generated acceptance controlplane peers koordinator lock clean

help: ## What there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## Local AWS, an API server and the broker on this machine (ONCE=1 ends by itself)
	@$(BIN)/capacity-broker demo $(if $(ONCE),--once)

teams-demo: $(VENV)/.installed ## One team borrows another's idle reserved GPUs and gives one back (ONCE=1 ends by itself)
	@$(BIN)/capacity-broker demo --teams $(if $(ONCE),--once)

room-demo: $(VENV)/.installed ## Room kept on nodes while pods are away, and a quota borrowed and reclaimed (ONCE=1 ends by itself)
	@$(BIN)/capacity-broker demo --room $(if $(ONCE),--once)

rollout-demo: $(VENV)/.installed ## A new image for a full reservation, by the broker, and by Karpenter after make peers (ONCE=1 ends by itself)
	@$(BIN)/python -m tests.peers.rollout_demo $(if $(ONCE),--once)

kueue-demo: $(VENV)/.installed ## Kueue, simulated, beside the broker: no job before its reserved instance (ONCE=1 ends by itself)
	@$(BIN)/python -m tests.kueue.demo $(if $(ONCE),--once)

karpenter-demo: $(VENV)/.installed peers ## Unmodified Karpenter beside the broker on local AWS (ONCE=1 ends by itself)
	@$(BIN)/python -m tests.peers.demo $(if $(ONCE),--once)

test: $(VENV)/.installed ## Every test that this machine can run; says what it left out
	@command -v go >/dev/null && sh tests/controlplane/build.sh || \
	  echo "Left out: the real kube-apiserver (no Go on this machine; KUBEBUILDER_ASSETS names a folder that has it)."
	@test -x .cache/peers/bin/karpenter || echo "Left out: unmodified Karpenter beside the broker: make peers builds it."
	@test -x .cache/peers/bin/koord-scheduler || echo "Left out: unmodified koord-scheduler beside the broker: make koordinator."
	@echo "Left out: moto's own tests with the extension installed (four minutes): make moto-suite"
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not moto_suite" $(ARGS)

real: $(VENV)/.installed controlplane ## Every cluster test on the real kube-apiserver; make test runs a part of them there
	$(BIN)/python -m pytest tests/cluster --all-real -q -n $(WORKERS) --dist worksteal -m real $(ARGS)

simulate: $(VENV)/.installed ## New seeds of the simulated world, printed, for SECONDS=180
	$(BIN)/python -m tests.simulation --seconds $(SECONDS) --keep-going $(ARGS)

soak: $(VENV)/.installed ## As many new seeds of the simulated world as wanted (SEEDS=2000)
	nice $(BIN)/python -m tests.simulation --seeds $(SEEDS) --keep-going $(ARGS)

moto-suite: $(VENV)/.installed ## moto's own tests with local AWS's extension installed
	$(BIN)/python -m tests.moto_suite.run

fuzz: $(VENV)/.installed ## Hostile objects of every kind beside a running broker (OBJECTS=10000, SEED=1)
	OBJECTS=$(or $(OBJECTS),10000) $(BIN)/python -m pytest tests/cluster/test_fuzz.py -q -s -m "not real" $(ARGS)

bench: $(VENV)/.installed ## The figures of docs/contribute/figures.md, measured here (B=launch measures one)
	@for b in $(B); do echo "== $$b"; $(BIN)/python -m benchmarks.$$b $(ARGS) || exit 1; done

unit: $(VENV)/.installed ## The tables and properties, without the real API server
	$(BIN)/python -m pytest tests/unit -q -n 3 --dist worksteal -m "not real" $(ARGS)

lint: $(VENV)/.installed ## ruff
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.installed ## mypy, strict
	$(BIN)/mypy broker providers local tests benchmarks

contracts: $(VENV)/.installed ## The arrows between packages
	$(BIN)/lint-imports

generated: $(VENV)/.installed ## CRDs, field pages, rules and dashboards match the code
	$(BIN)/python -m local.generators.crdgen --check
	$(BIN)/python -m local.generators.fielddocs --check
	$(BIN)/python -m local.generators.monitoring --check

acceptance: $(VENV)/.installed ## The acceptance statements that no test covers
	@$(BIN)/python -m tests.acceptance

controlplane: ## etcd, kube-apiserver and kube-scheduler, built from Go modules
	sh tests/controlplane/build.sh

peers: controlplane ## The control plane, and Karpenter as released, which the tests run the broker beside (KARPENTER=1.14: an earlier one)
	KARPENTER=$(KARPENTER) sh tests/peers/karpenter/build.sh

screenshots: $(VENV)/.installed ## The pictures of docs/operate, of the present page (it needs Chromium)
	$(BIN)/python -m tests.browser.screenshots

release: $(VENV)/.installed ## VERSION=1.2.3: changelog, tag, wheel, charts, SBOM and image; pushes nothing (DRY_RUN=1: no commit)
	@$(BIN)/python deploy/release.py "$(VERSION)" $(if $(DRY_RUN),--dry-run)

koordinator: controlplane ## koord-scheduler as released, which the tests run beside the broker (about six minutes)
	sh tests/peers/koordinator/build.sh

lock: ## requirements.lock from pyproject.toml (needs uv)
	uv pip compile pyproject.toml local/pyproject.toml --group dev --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --custom-compile-command "make lock" --quiet --output-file requirements.lock

clean: ## What the other targets made
	rm -rf $(VENV) .cache
