"""What a Router that sends no prompts itself knows of lengths: a guess, then the count."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cp_ray.config import AppConfig
from cp_ray.core.types import RequestId
from cp_ray.router import first_sight
from cp_ray.router.api import ChatRequest
from cp_ray.router.assembly import Assembler
from cp_ray.router.auth import Authenticator
from cp_ray.router.first_sight import SHORT, FirstSight
from cp_ray.router.tokenizer import WordTokenizer

LONG = "every good boy does fine " * 40
TEXTS = st.text(st.sampled_from("ab. "), max_size=3 * SHORT)


class Counting(WordTokenizer):
    """How many characters it tokenized."""

    def __init__(self) -> None:
        super().__init__()
        self.worked = 0

    def _encode(self, text: str, *, template: bool) -> Sequence[int]:
        self.worked += len(text)
        return super()._encode(text, template=template)


def test_what_never_comes_again_is_not_tokenized() -> None:
    tokenizer = Counting()
    sight = FirstSight(tokenizer)
    for number in range(50):
        assert sight.count(f"{number} {LONG}") > 0
    assert tokenizer.worked == 0


def test_what_comes_again_is_counted_once_and_then_known() -> None:
    tokenizer = Counting()
    sight = FirstSight(tokenizer)
    sight.count(LONG)
    exact = len(WordTokenizer().encode(LONG))
    assert [sight.count(LONG) for _ in range(3)] == [exact] * 3
    assert tokenizer.worked == len(LONG)


def test_guesses_follow_what_was_counted() -> None:
    sight = FirstSight(WordTokenizer())
    for _ in range(2):
        sight.count(LONG)
    other = LONG.replace("boy", "girl")
    exact = len(WordTokenizer().encode(other))
    assert abs(sight.count(other) - exact) < 0.05 * exact
    assert abs(FirstSight(WordTokenizer()).count(other) - exact) > 0.2 * exact, "before"


def test_templates_are_counted_at_once() -> None:
    text = f"<|im_start|>system\n{LONG}<|im_end|>\n"
    exact = len(WordTokenizer().encode(text, template=True))
    assert FirstSight(WordTokenizer()).count(text, template=True) == exact


@given(st.lists(TEXTS, max_size=12))
def test_short_texts_and_those_seen_before_are_exact(texts: list[str]) -> None:
    sight, seen = FirstSight(WordTokenizer()), set[str]()
    for text in texts:
        counted = sight.count(text)
        if text in seen or len(text) <= SHORT:
            assert counted == len(WordTokenizer().encode(text))
        seen.add(text)


def test_what_is_remembered_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(first_sight, "SEEN_ONCE", 10)
    tokenizer = Counting()
    sight = FirstSight(tokenizer)
    for number in range(100):
        sight.count(f"{number} {LONG}")
    sight.count(f"99 {LONG}")
    assert 0 < tokenizer.worked < 2 * len(LONG)
    sight.count(f"5 {LONG}")
    assert tokenizer.worked < 2 * len(LONG), "forgotten, so guessed again"


def test_a_router_and_a_replica_agree_on_all_but_lengths() -> None:
    config = AppConfig(engine="simulated", model="sim")
    tenant = Authenticator(config).tenant(None)
    request = ChatRequest.model_validate(
        {
            "model": "sim",
            "messages": [{"role": "user", "content": f"{LONG}?"}],
            "documents": [f"{number} {LONG}" for number in range(4)],
        }
    )
    tokenizer = Counting()
    router = Assembler(tokenizer, "sim", sizes=FirstSight(tokenizer))
    mine = router.prepare(request, tenant, RequestId("r")).plan
    assert tokenizer.worked < 200, "template and annotation"
    its = Assembler(WordTokenizer(), "sim").prepare(request, tenant, RequestId("r")).plan
    assert (mine.head, mine.context, mine.movable) == (its.head, its.context, its.movable)
    again = router.prepare(request, tenant, RequestId("r")).plan
    assert again == its, "and on these, once it has seen them"
