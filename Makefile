# Every command that a person or CI runs. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
export UV_NO_PYTHON_DOWNLOADS := 1
export PYTHONUNBUFFERED := 1
# Hundreds of processes import torch: without bytecode, each of them would compile all of it first.
unexport PYTHONDONTWRITEBYTECODE
RUN := uv run --frozen --no-sync
LOCALNODE := PYTHONPATH=cluster $(RUN) python -m localnode
N ?= 200
SEED ?= 1
MAPS ?= 100000

.PHONY: help setup fmt lint vocabulary size import-graph manifests manifests-check models cluster cluster-tools cluster-down images \
        demo serve bench-engine bench-ngram bench-fallback bench-dialled bench-experts bench-loading bench-serve bench-controller bench-detection bench-draft-exchange bench-rollout bench-router bench-graphs bench-operator \
        bench-gpu bench-peers bench-peers-pack gpu-carry gpu-queue request-trace traffic rollout-suite \
        compile-gate fuzz soak grammars schemas clients page record-vllm peer-flags peer-fields peer-server test test-unit test-kernels test-sum-order test-tiles test-arm64 test-shadow test-apiserver test-node lossless models-zoo test-transformers drafts-zoo release-dry-run clean

help: ## List all targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: ## Install uv, if it is missing, and the locked environment
	@scripts/setup

fmt: setup ## Format the code
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

lint: setup ## Check format, style, types, import contracts and counts, generated files and vocabulary
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports
	$(RUN) python -m specdecode_api --check
	$(RUN) python scripts/chart_values.py --check
	$(RUN) python -m scripts.model_table --check
	$(RUN) python -m scripts.flag_table --check
	$(RUN) python -m scripts.import_graph --check
	$(RUN) python -m bench.gpu.gpu_queue --check
	@$(MAKE) --no-print-directory vocabulary

vocabulary: setup ## Check the words of docs and messages, and that class names are unique (ARGS=--summary)
	$(RUN) python -m scripts.class_names
	$(RUN) python -m scripts.vocabulary $(ARGS)

size: setup ## Count lines and files and list the longest functions (ARGS=--check: fail above the limits)
	@$(RUN) python -m scripts.count_lines $(ARGS)

import-graph: setup ## Count entries, imports, levels and circles of each folder (ARGS=--check: fail above scripts/import_graph/permitted.json; ARGS=--write: permit the present counts)
	@$(RUN) python -m scripts.import_graph $(ARGS)

manifests: setup ## Generate the CRD, the boot file's schema, the field reference, the chart's table of values, the list of models and the page for users of vLLM and SGLang
	$(RUN) python -m specdecode_api
	$(RUN) python scripts/chart_values.py
	$(RUN) python -m scripts.model_table
	$(RUN) python -m scripts.flag_table

models: setup ## Train the example models again (about half an hour)
	$(RUN) python examples/models/train.py

cluster-tools: setup ## Build or download the programs of the local node (about 10 minutes on an idle machine, once)
	$(LOCALNODE) tools

cluster: setup ## Start the local Kubernetes node, or check the cluster that CONTEXT names
	$(LOCALNODE) up

cluster-down: setup ## Stop the local node and clean up after it
	$(LOCALNODE) down

images: setup ## Build the three images and load them into the cluster
	$(LOCALNODE) images

demo: setup ## Start a Kubernetes node, install the operator and send a request to a speculating engine
	@PYTHONPATH=cluster:. $(RUN) python -m demo

serve: setup ## Serve the demo's resource on this machine, without Kubernetes
	@PYTHONPATH=. $(RUN) python -m demo.serve

test: setup ## Run all test suites, including those on the local node, and report the time of each
	@$(RUN) python scripts/test.py

test-unit: setup ## Run the tests that need neither an API server nor a node
	$(RUN) pytest -m "not apiserver and not node"

test-kernels: setup ## Test the kernels (with Triton's interpreter if there is no GPU) and list each op's kernels, reference and test
	@mkdir -p .pytest_cache
	@PYTHONPATH=. $(RUN) pytest tests/kernels --junitxml=.pytest_cache/kernels.xml
	@PYTHONPATH=. $(RUN) python -m bench.cpu.kernels.table .pytest_cache/kernels.xml

test-arm64: setup ## Check that uv.lock has wheels for arm64, and test the C kernels on an emulated arm64 processor (about three minutes)
	@PYTHONPATH=cluster $(RUN) python -m scripts.release_steps.wheels linux/arm64
	@$(RUN) python -m tests.arm64 $(ARGS)

test-sum-order: setup ## Compare MAPS drawn maps in the order blocks32 with the definition: multiply-adds, and AMX in software
	@PYTHONPATH=. SPECDECODE_TUNING=default $(RUN) python -m tests.kernels.compare_tiles --maps $(MAPS) $(ARGS)

test-tiles: setup ## The same on this processor's AMX; refused where it has none
	@PYTHONPATH=. SPECDECODE_TUNING=default $(RUN) python -m tests.kernels.compare_tiles --tiles --maps $(MAPS) $(ARGS)

test-shadow: setup ## Run whole engines, and bugs planted into them, on a shadow CUDA device (ARGS="--only tree")
	@PYTHONPATH=. $(RUN) python -m tests.shadow_cuda $(ARGS)

compile-gate: setup ## Compile every Triton kernel for every GPU and write kernels/compiled.tsv; only what is stale (ARGS=--named: compare CI's set with the file)
	@PYTHONPATH=. $(RUN) python -m checks.compile_gate $(ARGS)

test-apiserver: setup ## Run the tests against a real API server
	$(RUN) pytest -m apiserver

test-node: setup ## Run the tests on the local node
	$(RUN) pytest -m node

rollout-suite: setup ## Try speculation tables and drafts on the local node under constant load (ACTS=name: only that act)
	@PYTHONPATH=cluster:. $(RUN) python -m checks.trials $(if $(ACTS),--acts $(ACTS))

traffic: setup ## Roll, scale, kill and drain three engines and two routers on the local node under constant load; no request may be lost (QUICK=1: the events that routers are for; EVENTS="router_kill": only these)
	@PYTHONPATH=cluster:. $(RUN) python -m checks.traffic $(if $(QUICK),--quick) $(if $(EVENTS),--events $(EVENTS))

lossless: setup ## Compare N random speculative runs with plain decoding (SEED: random seed, ARGS="--tensor-parallel-size 2", "--quantization mxfp4", "--adapters"); TOOLS=1: required calls in every format with every algorithm
	@PYTHONPATH=. $(RUN) python -m checks.lossless $(if $(TOOLS),--tools $(if $(filter command line environment,$(origin SEED)),--seed $(SEED)),--cases $(N) --seed $(SEED)) $(ARGS)

models-zoo: setup ## Compare every model type of tests/zoo/models.toml with transformers, with lossless cases (ARGS="gemma2 --seed 1")
	@PYTHONPATH=. $(RUN) python -m checks.zoo $(ARGS)

test-transformers: setup ## Compare what is left to modules of transformers with the table, under another release (VERSION=5.24.0)
	@PYTHONPATH=. $(RUN) --with transformers==$(or $(VERSION),5.24.0) python -m checks.zoo.left_parts

drafts-zoo: setup ## Check every format of drafts: errors of the loader, drafted tokens, acceptance, state, lossless cases (ARGS="eagle --cases 5")
	@PYTHONPATH=. $(RUN) python -m checks.drafts_zoo $(ARGS)

fuzz: setup ## Send hostile requests to an engine next to 16 running streams for SECONDS (SEED: random seed, else a fresh one)
	@PYTHONPATH=. $(RUN) python -m checks.fuzz --seconds $(or $(SECONDS),300) $(if $(filter command line environment,$(origin SEED)),--seed $(SEED)) $(ARGS)

soak: setup ## Send mixed requests to an engine for MINUTES and check that memory, pages, threads and descriptors do not grow
	@PYTHONPATH=. $(RUN) python -m checks.soak --minutes $(or $(MINUTES),10) $(if $(filter command line environment,$(origin SEED)),--seed $(SEED)) $(ARGS)

grammars: setup ## Compare random GBNF grammars with xgrammar, in an environment of its own (ARGS="--count 200 --seed 1")
	@PYTHONPATH=. $(RUN) python -m checks.grammars $(ARGS)

schemas: setup ## Read the JSON Schemas of two public repositories here and by xgrammar (FOLDER=… with both clones, ARGS="--every 20", ARGS=--docs)
	@PYTHONPATH=. $(RUN) python -m checks.schemas $(FOLDER) $(ARGS)

clients: setup ## Run real clients (openai, anthropic, codex, agents, langchain, instructor, ai, litellm, lm-eval, guidellm, schemathesis) in environments of their own (ARGS="--only lm-eval", ARGS=--docs)
	@PYTHONPATH=. $(RUN) python -m checks.clients $(ARGS)

page: setup ## Check the page of an engine in Chromium: accessibility by axe-core (npm), and how busy a fast answer keeps it (ARGS="--screenshot FILE")
	@PYTHONPATH=. $(RUN) python -m checks.page $(ARGS)

record-vllm: setup ## Record metrics and arguments of vLLM on a CPU for tests (tests/operator/runtimes/recorded)
	@PYTHONPATH=. $(RUN) python -m checks.vllm_cpu.record $(ARGS)

peer-flags: setup ## Read the flags of vLLM and SGLang from their wheels, and check that each has a row in crds/src/specdecode_api/peer_flags.toml
	@PYTHONPATH=. $(RUN) python -m checks.peer_flags $(ARGS)

peer-fields: setup ## Read the fields of requests from the wheels of vLLM, SGLang, openai and anthropic, and check that each has a row in checks/peer_fields/request_fields.toml
	@PYTHONPATH=. $(RUN) python -m checks.peer_fields $(ARGS)

peer-server: setup ## Read the endpoints and metrics of vLLM and SGLang from their wheels, and check that each has a row in checks/peer_server and that claims about them hold
	@PYTHONPATH=. $(RUN) python -m checks.peer_server $(ARGS)

bench-engine: setup ## Compare the engine with transformers, OpenVINO and llama.cpp (QUICK=1: a minute and a half; BASE=commit: compare with that commit)
	@PYTHONPATH=. $(RUN) python -m bench.cpu.$(if $(BASE),base_comparison $(BASE),engine) $(if $(QUICK),--quick) $(ARGS)

request-trace: setup ## List files, functions, calls per step and record types of one streamed completion
	@PYTHONPATH=. $(RUN) python -m checks.request_trace $(ARGS)

bench-ngram: setup ## Compare NGRAM with plain decoding on copied text and on text without repetition
	@PYTHONPATH=. $(RUN) python -m bench.cpu.ngram

bench-fallback: setup ## Compare NGRAM next to an EAGLE-3 head with both alone, on texts with and without repetition (ARGS=--quick)
	@PYTHONPATH=. $(RUN) python -m bench.cpu.ngram.fallback $(ARGS)

bench-dialled: setup ## Compare DFlash with EAGLE-3 at the same dialled acceptance, and draft time by verified tokens (ARGS=--quick)
	@PYTHONPATH=. $(RUN) python -m bench.cpu.dialled $(ARGS)

bench-experts: setup ## Compare the experts op of a CPU with the limit of its products (ARGS="--threads 2")
	@PYTHONPATH=. $(RUN) python -m bench.cpu.experts_bench $(ARGS)

bench-loading: setup ## Measure the host memory that loading a model takes, next to the model's
	@PYTHONPATH=. $(RUN) python -m bench.cpu.loading_memory

bench-serve: setup ## Compare the server with `transformers serve` under aiperf's load (QUICK=1: shorter)
	@PYTHONPATH=. $(RUN) python -m bench.cpu.serve_bench $(if $(QUICK),--quick) $(ARGS)

bench-graphs: setup ## Count CUDA graphs by speculation table, pruned and not
	@PYTHONPATH=. $(RUN) python -m bench.cpu.graphs

bench-gpu: setup ## Measure this machine's GPU within nine minutes; without a GPU, a dry run on a shadow device
	@$(RUN) python bench/gpu $(ARGS)

bench-peers: setup ## Compare with vLLM and SGLang on this machine's GPU in SECONDS (OUT=folder: continued); without a GPU, with transformers at tiny sizes (CPU=1: with vLLM on a CPU)
	@$(RUN) python bench/gpu/peers $(if $(CPU),--vllm-cpu) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(OUT),--out "$(OUT)") $(ARGS)

bench-peers-pack: setup ## Download the pinned wheels of vLLM and SGLang, cut them, and write parts of at most 36 MiB into bench/peers-parts (ARGS="--only vllm")
	@PYTHONPATH=. $(RUN) python -m bench.gpu.peers.pack $(ARGS)

gpu-carry: setup ## Write into bench/carry what a GPU machine lacks that has only torch and transformers: wheels, the commit, older builds
	@PYTHONPATH=. $(RUN) python -m bench.gpu.carry $(ARGS)

gpu-queue: ## Run what only a GPU can show and what is due, in MINUTES (at most 9), into the folder OUT; COLLECT=folder: keep its results (ARGS=--list, ARGS=--dry-run)
	@$(or $(wildcard .venv/bin/python),python3) bench/gpu/gpu_queue $(if $(COLLECT),--collect "$(COLLECT)") $(if $(MINUTES),--minutes $(MINUTES)) $(if $(OUT),--out "$(OUT)") $(ARGS)

bench-detection: setup ## Serve damaged drafts, count false alarms (simulated, and over lives of an engine), and time an engine that leaves its draft out (QUICK=1: fewer; ARGS="--part cost")
	@PYTHONPATH=. $(RUN) python -m checks.detection $(if $(QUICK),--quick) $(ARGS)

bench-draft-exchange: setup ## Measure how long streams wait for a token while the draft is exchanged
	@PYTHONPATH=. $(RUN) python -m bench.cpu.draft_exchange $(ARGS)

bench-controller: setup ## Measure the regret of every policy on simulated machines (SEEDS seeds from SEED; ONLY=goodput: policies with this prefix; QUICK=1: shorter)
	@PYTHONPATH=. $(RUN) python -m bench.simulation.policy --seed $(SEED) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick)

bench-router: setup ## Measure what a router costs, and how often prompts find their prefix by its choices and by a Service's (ARGS="--only costs")
	@PYTHONPATH=. $(RUN) python -m bench.router $(ARGS)

bench-rollout: setup ## Measure the error rates of the judge in simulated worlds (SEED: random seed; QUICK=1: minutes; KEEP=file: continue a run; REPORT=1: only its result)
	@PYTHONPATH=. $(RUN) python -m bench.simulation.trials --seed $(SEED) $(if $(QUICK),--quick) $(if $(KEEP),--keep $(KEEP)) $(if $(REPORT),--report)

bench-operator: setup ## Measure latency, writes and load of the operator on a real API server (QUICK=1: shorter)
	@PYTHONPATH=cluster:. $(RUN) python -m bench.operator $(if $(QUICK),--quick)

release-dry-run: setup ## Release VERSION to a registry on this machine, with a throwaway key, and pull it back (ARGS="--images operator": less)
	@scripts/release $(VERSION) --dry-run $(ARGS)

clean: ## Remove caches of tools
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
