"""PrefixCache against vLLM's own KVCacheManager: same hits, same room, same losses.

Here 600 requests; `python -m tests.contract.vllm_manager 10000` runs more (benchmarks/LOG.md).
"""

import pytest

pytest.importorskip("vllm")

from tests.contract.vllm_manager import compare

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def test_the_model_agrees_with_vllm_at_every_step():
    seen = compare(600, seed=7)
    assert min(seen["copies"], seen["refused"], seen["evictions"]) > 10
