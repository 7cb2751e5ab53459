"""Followers wait for their leader, and for nobody else."""

from cp_ray.core.types import BlockId, RequestId
from cp_ray.replay.leaders import MIN_GAIN_TOKENS, hold_followers, rounds
from cp_ray.replay.policies import Sent
from cp_ray.replay.trace import TraceRequest


def sent(name: str, blocks: str, tokens: int = MIN_GAIN_TOKENS) -> Sent:
    context = tuple(BlockId(block) for block in blocks)
    request = TraceRequest(RequestId(name), "", context, (tokens,) * len(context), 1)
    return Sent(request, context)


def waits(window: list[Sent], held: int = 0) -> dict[str, str | None]:
    held_back = hold_followers(window, lambda _: held)
    return {one.request.request_id: one.after for one in held_back}


def test_the_first_with_a_prefix_leads_the_others():
    window = [sent("1", "abc"), sent("2", "xyz"), sent("3", "abv"), sent("4", "abvw")]
    assert waits(window) == {"1": None, "2": None, "3": "1", "4": "3"}


def test_nobody_waits_for_what_the_cache_has_or_for_little():
    assert waits([sent("1", "ab"), sent("2", "ac")], held=MIN_GAIN_TOKENS)["2"] is None
    assert waits([sent("1", "ab", 15), sent("2", "ac", 15)])["2"] is None


def test_rounds_keep_each_follower_behind_its_leader():
    window = hold_followers(
        [sent("1", "abc"), sent("2", "abcd"), sent("3", "abcde"), sent("4", "x")], lambda _: 0
    )
    together = [[one.request.request_id for one in group] for group in rounds(window)]
    assert together == [["1", "4"], ["2"], ["3"]]
