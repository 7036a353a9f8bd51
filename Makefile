# Every command that a person or CI runs. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
export UV_NO_PYTHON_DOWNLOADS := 1
export PYTHONUNBUFFERED := 1
RUN := uv run --frozen --no-sync
LOCALNODE := PYTHONPATH=cluster $(RUN) python -m localnode
N ?= 200
SEED ?= 1

.PHONY: help setup fmt lint manifests manifests-check models cluster cluster-tools cluster-down images \
        demo serve bench-engine bench-serve bench-controller bench-rollout bench-graphs bench-operator \
        bench-gpu gpu-carry traffic rollout-suite \
        test test-unit test-kernels test-apiserver test-node lossless clean

help: ## List every target with one line
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: ## Install what a bare machine lacks: uv and the locked environment
	@scripts/setup

fmt: setup ## Format the code
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

lint: setup ## Check format, style, types, import contracts and generated files
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports
	$(RUN) python -m specdecode_api --check
	$(RUN) python scripts/chart_values.py --check

manifests: setup ## Write the CRD, the boot file's schema, the field reference and the chart's table of values
	$(RUN) python -m specdecode_api
	$(RUN) python scripts/chart_values.py

models: setup ## Train the example models anew (about half an hour)
	$(RUN) python examples/models/train.py

cluster-tools: setup ## Build or fetch the programs of the local node (about 10 minutes, once)
	$(LOCALNODE) tools

cluster: setup ## Start the local Kubernetes node, or look for the one that CONTEXT names
	$(LOCALNODE) up

cluster-down: setup ## Stop the local node and clean up after it
	$(LOCALNODE) down

images: setup ## Build both images and load them into the cluster
	$(LOCALNODE) images

demo: setup ## From nothing to a speculative answer on a Kubernetes node
	@PYTHONPATH=cluster:. $(RUN) python -m demo

serve: setup ## Serve the demo's resource on this machine, without Kubernetes
	@PYTHONPATH=. $(RUN) python -m demo.serve

test: setup ## Run all suites, the real node included, with the time each took
	@$(RUN) python scripts/test.py

test-unit: setup ## Run the tests that need neither an API server nor a node
	$(RUN) pytest -m "not apiserver and not node"

test-kernels: setup ## Test the kernels, interpreted where there is no GPU, and list every op's parts
	@mkdir -p .pytest_cache
	@PYTHONPATH=bench $(RUN) pytest tests/kernels --junitxml=.pytest_cache/kernels.xml
	@PYTHONPATH=bench $(RUN) python -m kernels.table .pytest_cache/kernels.xml

test-apiserver: setup ## Run the tests against a real API server
	$(RUN) pytest -m apiserver

test-node: setup ## Run the tests on the local node
	$(RUN) pytest -m node

rollout-suite: setup ## Tables and drafts tried on the local node under steady requests (ACTS=name: only that)
	@PYTHONPATH=cluster:bench:. $(RUN) python -m trials $(if $(ACTS),--acts $(ACTS))

traffic: setup ## Changes, kills, drains and restarts on the local node under steady requests (QUICK=1: three minutes)
	@PYTHONPATH=cluster:bench:. $(RUN) python -m traffic $(if $(QUICK),--quick) $(if $(EVENTS),--events $(EVENTS))

lossless: setup ## Compare N random speculative runs with plain decoding, from SEED
	@PYTHONPATH=bench $(RUN) python -m lossless --cases $(N) --seed $(SEED)

bench-engine: setup ## Our engine beside transformers and OpenVINO, host times, adaptive depth (QUICK=1: a minute)
	@PYTHONPATH=bench $(RUN) python -m engine $(if $(QUICK),--quick) $(ARGS)

bench-serve: setup ## Our server and transformers serve under aiperf's load, with curves (QUICK=1: shorter)
	@PYTHONPATH=bench $(RUN) python -m serve_bench $(if $(QUICK),--quick) $(ARGS)

bench-graphs: setup ## Bytes of captured passes by speculation table, pruned and not
	@PYTHONPATH=bench $(RUN) python -m graphs

bench-gpu: setup ## Measure this machine's GPU within nine minutes; without one, try the script out (a dry run)
	@$(RUN) python bench/gpu.py $(ARGS)

gpu-carry: setup ## Fetch wheels for a GPU machine that has only torch and transformers, into bench/carry
	@PYTHONPATH=bench $(RUN) python -m gpu_bench.carry $(ARGS)

bench-controller: setup ## Regret of every depth policy on simulated machines, from SEED (QUICK=1: under a minute)
	@PYTHONPATH=bench $(RUN) python -m controller --seed $(SEED) $(if $(QUICK),--quick)

bench-rollout: setup ## How often the judge of trials errs on simulated fleets, from SEED (QUICK=1: under a minute)
	@PYTHONPATH=bench $(RUN) python -m rollout --seed $(SEED) $(if $(QUICK),--quick)

bench-operator: setup ## Latency, writes and load of the operator on a real API server (QUICK=1: shorter)
	@PYTHONPATH=cluster:bench $(RUN) python -m operator_bench $(if $(QUICK),--quick)

clean: ## Remove caches of tools from the tree
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
