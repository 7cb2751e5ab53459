"""The prefix cache: hits, sharing, eviction order, copies, records."""

import pytest

from cp_ray.core.packed import packed
from cp_ray.core.pages import Piece, token_pages
from cp_ray.core.prefix_cache import PrefixCache, Sharing
from cp_ray.core.types import Eviction, RequestId
from cp_ray.errors import InvariantError

R = [RequestId(f"r{number}") for number in range(10)]


def serve(cache: PrefixCache, request: RequestId, pieces: list[Piece]) -> int:
    cached = cache.admit(request, pieces)
    assert cached is not None
    cache.prefilled(request)
    cache.release(request)
    cache.check()
    return cached


def test_a_repeat_hits_all_but_the_page_of_the_last_token():
    cache = PrefixCache(None, 4)
    prompt = token_pages(packed(range(8)), 4)
    assert serve(cache, R[0], prompt) == 0
    assert serve(cache, R[1], prompt) == 4
    assert serve(cache, R[2], token_pages(packed(range(9)), 4)) == 8
    assert cache.lookup(prompt) == 4


def test_a_page_that_spans_a_border_matches_only_after_an_equal_prefix():
    cache = PrefixCache(None, 16)
    serve(cache, R[0], [("head", 10), ("a", 22), ("q", 5)])
    assert cache.lookup([("head", 10), ("a", 22), ("other", 5)]) == 32
    assert cache.lookup([("head", 10), ("b", 22), ("other", 5)]) == 0
    assert cache.lookup([("a", 22), ("q", 15)]) == 0
    assert cache.lookup([("head", 10), ("tiny", 3), ("a", 22)]) == 0


def test_a_salt_keeps_equal_prompts_apart():
    cache = PrefixCache(None, 2)
    serve(cache, R[0], token_pages(packed((1, 2, 3)), 2, "tenant"))
    assert cache.lookup(token_pages(packed((1, 2, 3)), 2)) == 0
    assert cache.lookup(token_pages(packed((1, 2, 3)), 2, "tenant")) == 2


def test_the_least_recently_used_goes_first_and_from_its_tail():
    cache = PrefixCache(10, 1)
    serve(cache, R[0], [("a", 4)])
    serve(cache, R[1], [("b", 4)])
    serve(cache, R[2], [("c", 3)])
    assert cache.take_evictions() == [Eviction(R[0], 3)]
    assert cache.lookup([("a", 4), ("q", 1)]) == 3
    assert cache.used_tokens == 10


def test_a_shared_prefix_outlives_the_tails_that_extend_it():
    cache = PrefixCache(6, 1)
    serve(cache, R[0], [("head", 2), ("a", 2)])
    serve(cache, R[1], [("head", 2), ("b", 2)])
    serve(cache, R[2], [("c", 3)])
    assert cache.take_evictions() == [Eviction(R[0], 2), Eviction(R[1], 3)]


def test_pages_of_running_requests_are_never_evicted():
    cache = PrefixCache(8, 1)
    assert cache.admit(R[0], [("a", 6)]) == 0
    assert cache.admit(R[1], [("b", 3)]) is None
    cache.check()
    assert cache.admit(R[1], [("a", 6), ("q", 2)]) == 6
    cache.release(R[0])
    assert cache.admit(R[2], [("b", 1)]) is None
    cache.release(R[1])
    assert cache.admit(R[2], [("b", 3)]) == 0


def test_a_hit_is_not_evicted_to_make_room_for_its_own_tail():
    cache = PrefixCache(6, 1)
    serve(cache, R[0], [("a", 3)])
    serve(cache, R[1], [("b", 3)])
    assert serve(cache, R[2], [("a", 3), ("c", 3)]) == 3
    assert cache.take_evictions() == [Eviction(R[1], 0)]


@pytest.mark.parametrize(("sharing", "second"), [("step", 6), ("finished", 0)])
def test_siblings_in_flight_share_as_the_engine_does(sharing: Sharing, second: int):
    cache = PrefixCache(100, 2, sharing=sharing)
    assert cache.admit(R[0], [("a", 6), ("x", 3)]) == 0
    assert cache.admit(R[1], [("a", 6), ("y", 3)]) == second
    assert cache.used_tokens == (14 if sharing == "step" else 20)
    cache.prefilled(R[0])
    assert cache.admit(R[2], [("a", 6), ("z", 3)]) == 6
    cache.prefilled(R[1])
    cache.check()
    for request in R[:3]:
        cache.release(request)
    cache.check()
    assert cache.used_tokens == 6 + 2 + 2


def test_a_whole_page_prompt_stored_twice_is_lost_with_its_last_copy():
    cache = PrefixCache(6, 2, duplicates=True)
    prompt = token_pages(packed(range(4)), 2)
    serve(cache, R[0], prompt)
    assert cache.used_tokens == 4
    assert serve(cache, R[1], prompt) == 2
    assert cache.used_tokens == 6
    serve(cache, R[2], token_pages(packed((9, 9)), 2))
    assert cache.take_evictions() == []
    serve(cache, R[3], token_pages(packed((8, 8)), 2))
    assert set(cache.take_evictions()) == {Eviction(R[0], 2), Eviction(R[1], 2)}


def test_an_aborted_prefill_leaves_nothing_behind():
    cache = PrefixCache(10, 1)
    serve(cache, R[0], [("a", 2)])
    cache.admit(R[1], [("a", 2), ("b", 3)])
    cache.release(R[1])
    cache.release(R[1])
    cache.check()
    assert cache.lookup([("a", 2), ("b", 3), ("q", 1)]) == 2
    assert cache.used_tokens == 2


def test_a_sibling_keeps_the_pages_of_an_aborted_leader():
    cache = PrefixCache(20, 1)
    cache.admit(R[0], [("a", 4), ("x", 2)])
    cache.admit(R[1], [("a", 4), ("y", 2)])
    cache.release(R[0])
    cache.prefilled(R[1])
    cache.release(R[1])
    cache.check()
    assert cache.lookup([("a", 4), ("x", 2)]) == 4


def test_clear_forgets_all_and_running_requests_still_give_their_pages_back():
    cache = PrefixCache(10, 1)
    serve(cache, R[0], [("a", 4)])
    cache.admit(R[1], [("a", 4), ("b", 2)])
    cache.clear()
    cache.check()
    assert (cache.lookup([("a", 4), ("q", 1)]), cache.used_tokens) == (0, 6)
    cache.prefilled(R[1])
    cache.release(R[1])
    cache.check()
    assert (cache.take_evictions(), cache.used_tokens) == ([], 0)


def test_beyond_the_record_limit_the_oldest_request_is_reported_as_lost():
    cache = PrefixCache(None, 1, record_limit=2)
    for request in R[:3]:
        serve(cache, request, [("a", 4), (request, 1)])
    assert cache.take_evictions() == [Eviction(R[0], 0)]


def test_misuse_is_refused():
    cache = PrefixCache(100, 1)
    cache.admit(R[0], [("a", 4)])
    with pytest.raises(InvariantError, match="its own request id"):
        cache.admit(R[0], [("a", 4)])
    with pytest.raises(ValueError, match="duplicates"):
        PrefixCache(100, 1, sharing="finished", duplicates=True)
    assert not cache.fits(101)
