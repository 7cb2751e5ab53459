"""Followers wait for their leader, and for nobody else."""

from collections.abc import Sequence

from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.types import BlockId, RequestId
from cp_ray.replay.leaders import MIN_GAIN_TOKENS, hold_followers
from cp_ray.replay.playback import Playback
from cp_ray.replay.policies import Frequency, Sent
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


def played(window: list[Sent], capacity: int | None) -> Playback:
    class Fixed(Frequency):
        def plan(self, _window: Sequence[TraceRequest]) -> list[Sent]:
            return window

    playback = Playback(Fixed(), PrefixCache(capacity, 1, sharing="finished"), leaders=True)
    requests = [one.request for one in window]
    playback.play(requests, len(window), conversations=False, title="")
    return playback


def test_rounds_keep_each_follower_behind_its_leader():
    chain = [sent("1", "abc"), sent("2", "abcd"), sent("3", "abcde"), sent("4", "x")]
    playback = played(chain, None)
    assert [one.request_id for one in playback.played] == ["1", "4", "2", "3"]
    assert playback.rounds == 3
    assert [one.cached // MIN_GAIN_TOKENS for one in playback.played] == [0, 0, 3, 4]


def test_where_memory_is_short_a_follower_goes_before_the_next_leader():
    # Room for two requests: all leaders first would lose each prefix before it is used again.
    window = [sent(f"{group}{n}", f"{group}{n}") for group in "abcd" for n in "12"]
    playback = played(window, 2 * (2 * MIN_GAIN_TOKENS + 1))
    assert [one.cached for one in playback.played].count(MIN_GAIN_TOKENS) == 4
