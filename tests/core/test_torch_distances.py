"""The torch path of the distances gives the same bits as the numpy path."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cp_ray.core import clustering, torch_distances
from cp_ray.core.types import BlockId, Context

torch = pytest.importorskip("torch", reason="torch is not installed: there is only numpy")

BLOCKS = [BlockId(f"b{number}") for number in range(10)]
contexts = st.lists(st.sampled_from(BLOCKS), unique=True, max_size=7).map(tuple)


@settings(max_examples=60, deadline=None)
@given(many=st.lists(contexts, max_size=14), alpha=st.sampled_from([0.0, 0.001, 0.01]))
def test_torch_on_the_cpu_and_numpy_agree_to_the_last_bit(
    many: list[Context], alpha: float
) -> None:
    expected = clustering.pairwise_distances(many, alpha)
    got = torch_distances.pairwise_distances_torch(many, alpha, "cpu")
    assert np.array_equal(got, expected)


def test_counting_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    many = [tuple(rng.sample(BLOCKS, rng.randint(1, 8))) for _ in range(50)]
    whole = torch_distances.pairwise_distances_torch(many, 0.001, "cpu")
    monkeypatch.setattr(torch_distances, "CELLS", 50 * 7)
    assert np.array_equal(torch_distances.pairwise_distances_torch(many, 0.001, "cpu"), whole)


def test_the_clusters_are_the_same_on_both_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    many = [tuple(rng.sample(BLOCKS, 5)) for _ in range(60)]
    expected = clustering.cluster(many)
    monkeypatch.setattr(clustering, "WORTH_A_GPU", 0)
    monkeypatch.setattr(clustering, "gpu", lambda: "cpu")
    assert clustering.cluster(many) == expected
