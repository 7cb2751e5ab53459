"""vLLM's own KVCacheManager without a model, and the comparison of PrefixCache with it.

    python -m tests.contract.vllm_manager [REQUESTS] [SEED]

One null block besides the usable ones. Its events are vLLM's own, through vLLM's own encoder.
"""

import math
import random
import sys
import time
from collections import Counter, OrderedDict

import msgspec

from cp_ray.core.packed import packed
from cp_ray.core.pages import token_pages
from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.types import RequestId
from cp_ray.workers.kv_events import full_attention


class VllmManager:
    """page: tokens of a block. pages: blocks a request can have.

    window: tokens that a second kind of layers looks back, in blocks of `window_page` tokens.
    """

    def __init__(
        self, page: int, pages: int, *, events: bool = False, window: int = 0, window_page: int = 0
    ) -> None:
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
            SlidingWindowSpec,
        )

        init_none_hash(sha256)
        shape = {"num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
        groups = [KVCacheGroupSpec(["layer"], FullAttentionSpec(block_size=page, **shape))]
        if window:
            spec = SlidingWindowSpec(block_size=window_page, sliding_window=window, **shape)
            groups.append(KVCacheGroupSpec(["windowed layer"], spec))
        self.groups = groups
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks=pages + 1, kv_cache_tensors=[], kv_cache_groups=groups),
            max_model_len=page * pages,
            scheduler_block_size=math.lcm(page, window_page or page),
            hash_block_size=page,
            enable_caching=True,
            enable_kv_cache_events=events,
        )
        self.hasher = get_request_block_hasher(page, sha256)
        self.running: OrderedDict[str, object] = OrderedDict()
        self.encoder = msgspec.msgpack.Encoder()

    def full_groups(self) -> frozenset[int]:
        """Groups of full attention, as an engine's `get_kv_cache_group_metadata` tells them."""
        from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind

        kinds = [get_kv_cache_spec_kind(group.kv_cache_spec).value for group in self.groups]
        return full_attention(kinds)

    def request(self, name: str, prompt: tuple[int, ...], lora: object = None) -> object:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        return Request(
            request_id=name,
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            block_hasher=self.hasher,
            lora_request=lora,
        )

    def lookup(self, prompt: tuple[int, ...]) -> int:
        return self.manager.get_computed_blocks(self.request("probe", prompt))[1]

    def admit(self, name: str, prompt: tuple[int, ...], lora: object = None) -> int | None:
        request = self.request(name, prompt, lora)
        blocks, cached, *_ = self.manager.get_computed_blocks(request)
        if self.manager.allocate_slots(request, len(prompt) - cached, cached, blocks) is None:
            return None
        self.running[name] = request
        return cached

    def release(self, name: str) -> None:
        self.manager.free(self.running.pop(name))

    def reset(self) -> bool:
        return self.manager.reset_prefix_cache()

    def step(self) -> bytes | None:
        """What the engine publishes at the end of a step."""
        from vllm.distributed.kv_events import KVEventBatch

        events = self.manager.take_events()
        return self.encoder.encode(KVEventBatch(ts=time.time(), events=events)) if events else None


def compare(requests: int, seed: int, page: int = 4, pages: int = 40) -> Counter[str]:
    """Drive both with one stream of requests; AssertionError where they differ.

    Returns what happened: copies (aligned prompts found whole), refused, evictions.
    """
    rng = random.Random(seed)
    documents = [tuple(rng.randrange(1000) for _ in range(n)) for n in (3, 4, 8, 9, 12, 17)]
    real, model = VllmManager(page, pages), PrefixCache(page * pages, page, duplicates=True)
    prompts: dict[str, tuple[int, ...]] = {}
    left: dict[str, int] = {}
    seen: Counter[str] = Counter()
    for number in range(requests):
        name = f"r{number}"
        prompt = sum(rng.sample(documents, rng.randint(1, 4)), ())
        if rng.random() < 0.3 and prompts:
            prompt = rng.choice(list(prompts.values()))
        cached = model.admit(RequestId(name), token_pages(packed(prompt), page))
        assert cached == real.admit(name, prompt), number
        seen["refused"] += cached is None
        if cached is not None:
            seen["copies"] += cached == len(prompt) - page
            seen["cached_tokens"] += cached
            prompts[name] = prompt
            model.prefilled(RequestId(name))
            if len(prompt) >= page:
                left[name] = len(prompt) // page * page
        while real.running and (cached is None or rng.random() < 0.45):
            done = rng.choice(sorted(real.running))
            model.release(RequestId(done))
            real.release(done)
            cached = 0
        model.check()
        for eviction in model.take_evictions():
            seen["evictions"] += 1
            left[eviction.request_id] = eviction.tokens_left
            # One more token than the prompt: a whole-page prompt hides its last page.
            found = real.lookup((*prompts[eviction.request_id], 0xFFFF))
            assert found >= eviction.tokens_left, number
        for name in [name for name, tokens in left.items() if tokens][-20:]:
            found = real.lookup((*prompts[name], 0xFFFF))
            assert found >= left[name], (number, name)
            assert found == model.lookup(token_pages(packed((*prompts[name], 0xFFFF)), page))
        for name in [name for name, tokens in left.items() if not tokens]:
            del left[name]
    return seen


if __name__ == "__main__":
    count, seed = (int(argument) for argument in (*sys.argv[1:], "10000", "7")[:2])
    began = time.monotonic()
    sys.stdout.write(f"{count} requests: {dict(compare(count, seed))}, ")
    sys.stdout.write(f"{time.monotonic() - began:.0f} s\n")
