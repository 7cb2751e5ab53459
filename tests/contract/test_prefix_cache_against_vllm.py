"""PrefixCache against vLLM's own KVCacheManager: same hits, same room, same losses."""

import random

import pytest

from cp_ray.core.pages import token_pages
from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.types import RequestId

pytest.importorskip("vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]
PAGE, PAGES = 4, 40


class Vllm:
    """A KVCacheManager without a model: one null block besides the usable ones."""

    def __init__(self) -> None:
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        init_none_hash(sha256)
        spec = FullAttentionSpec(
            block_size=PAGE, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
        )
        config = KVCacheConfig(
            num_blocks=PAGES + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self.manager = KVCacheManager(
            config,
            max_model_len=4096,
            scheduler_block_size=PAGE,
            hash_block_size=PAGE,
            enable_caching=True,
        )
        self.hasher = get_request_block_hasher(PAGE, sha256)
        self.running: dict[str, object] = {}

    def request(self, name: str, prompt: tuple[int, ...]) -> object:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        return Request(
            request_id=name,
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            block_hasher=self.hasher,
        )

    def lookup(self, prompt: tuple[int, ...]) -> int:
        return self.manager.get_computed_blocks(self.request("probe", prompt))[1]

    def admit(self, name: str, prompt: tuple[int, ...]) -> int | None:
        request = self.request(name, prompt)
        blocks, cached, *_ = self.manager.get_computed_blocks(request)
        if self.manager.allocate_slots(request, len(prompt) - cached, cached, blocks) is None:
            return None
        self.running[name] = request
        return cached

    def release(self, name: str) -> None:
        self.manager.free(self.running.pop(name))


def test_the_model_agrees_with_vllm_at_every_step():
    rng = random.Random(7)
    documents = [tuple(rng.randrange(1000) for _ in range(n)) for n in (3, 4, 8, 9, 12, 17)]
    real, model = Vllm(), PrefixCache(PAGE * PAGES, PAGE, duplicates=True)
    prompts: dict[str, tuple[int, ...]] = {}
    left: dict[str, int] = {}
    copies = refused = lost = 0
    for number in range(600):
        name = f"r{number}"
        prompt = sum(rng.sample(documents, rng.randint(1, 4)), ())
        if rng.random() < 0.3 and prompts:
            prompt = rng.choice(list(prompts.values()))
        cached = model.admit(RequestId(name), token_pages(prompt, PAGE))
        assert cached == real.admit(name, prompt), number
        refused += cached is None
        if cached is not None:
            copies += cached == len(prompt) - PAGE
            prompts[name] = prompt
            model.prefilled(RequestId(name))
            if len(prompt) >= PAGE:
                left[name] = len(prompt) // PAGE * PAGE
        while real.running and (cached is None or rng.random() < 0.45):
            done = rng.choice(sorted(real.running))
            model.release(RequestId(done))
            real.release(done)
            cached = 0
        model.check()
        for eviction in model.take_evictions():
            lost += 1
            left[eviction.request_id] = eviction.tokens_left
            # One more token than the prompt: a whole-page prompt hides its last page.
            found = real.lookup((*prompts[eviction.request_id], 0xFFFF))
            assert found >= eviction.tokens_left, number
        for name in [name for name, tokens in left.items() if tokens][-20:]:
            found = real.lookup((*prompts[name], 0xFFFF))
            assert found >= left[name], (number, name)
            assert found == model.lookup(token_pages((*prompts[name], 0xFFFF), PAGE))
    assert min(copies, refused, lost) > 10
