"""Labels and names: equal everywhere, one token a word, and never of two blocks at once."""

import hashlib
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cp_ray.core import annotation
from cp_ray.core.annotation import (
    heading_label,
    label_of,
    location_annotation,
    order_annotation,
    ranked_locations,
    short_names,
)
from cp_ray.core.label_words import WORDS
from cp_ray.core.prompt import make_block, unclear
from cp_ray.replay.conversations import (
    FULL_NAME_TOKENS,
    LIST_TOKENS,
    LOCATION_TOKENS,
    RANKING_TOKENS,
)
from tests.references import names_in, resolve

label = st.tuples(*[st.sampled_from(["oak", "river", "lamp", "salt", "moss"])] * 2).map(" ".join)


def test_a_label_is_two_words_of_the_content_and_nothing_else() -> None:
    block = make_block("r", "Title", "text")
    assert block.text.startswith(f"[Doc {block.label}] Title\ntext")
    assert make_block("another", "Title", "text").label == block.label
    labels = {label_of(str(number).encode()) for number in range(3000)}
    assert len(labels) > 2990
    assert {word for one in labels for word in one.split(" ")} <= set(WORDS)


def test_the_words_are_what_they_were_and_cannot_be_mistaken() -> None:
    assert list(WORDS) == sorted(set(WORDS))
    assert all(re.fullmatch("[a-z]{2,9}", word) for word in WORDS)
    # Another list makes every cache cold once: change it with a reason, and this digest with it.
    digest = hashlib.blake2b(" ".join(WORDS).encode(), digest_size=4).hexdigest()
    assert (len(WORDS), digest) == (1625, "08d523b7")


def test_the_label_of_a_block_is_read_from_its_heading_only() -> None:
    block = make_block("r", "Title", "text")
    assert heading_label(block.text) == block.label
    assert heading_label(location_annotation(["oak salt"])) is None
    assert heading_label("[Doc x]") is None
    assert heading_label("[Doc bafimoka]\nof a record before labels were words") is None


@settings(deadline=None)
@given(standing=st.sets(label, min_size=1), data=st.data())
def test_names_are_as_short_as_they_can_be_and_lead_back(
    standing: set[str], data: st.DataObject
) -> None:
    labels = data.draw(st.lists(st.sampled_from(sorted(standing)), min_size=1, unique=True))
    names = short_names(labels, standing)
    for one, name in zip(labels, names, strict=True):
        alone = [w for w in one.split() if sum(w in other.split() for other in standing) == 1]
        assert name == (alone[0] if alone else one)
    for text in (location_annotation(names), ranked_locations(names), order_annotation(names)):
        if text.count(" > ") or not text.endswith("question.\n\n"):
            assert [resolve(name, sorted(standing)) for name in names_in(text)] == labels


def test_nothing_is_named_by_a_label_that_two_texts_have() -> None:
    assert unclear([("a b", "x"), ("a c", "y"), ("a b", "x")]) == set()
    assert unclear([("a b", "x"), ("a c", "y"), ("a b", "z")]) == {"a b"}


def test_a_word_is_a_token_and_references_are_counted_as_they_cost() -> None:
    pytest.importorskip("tokenizers")
    from cp_ray.errors import CpRayError
    from cp_ray.router.tokenizer import HuggingFaceTokenizer
    from cp_ray.workers.models import resolve_model

    try:
        tokenizer = HuggingFaceTokenizer(resolve_model("tiny", progress=False).path)
    except CpRayError as error:
        pytest.skip(str(error))

    def tokens(text: str) -> int:
        return len(tokenizer.encode(text))

    assert [word for word in WORDS if tokens(f"[Doc {word}]") != 4] == []
    assert tokens(location_annotation(["oak"])) == LOCATION_TOKENS + 1
    names = random.Random(1).sample(WORDS, 20)
    assert tokens(location_annotation(names)) == LOCATION_TOKENS + LIST_TOKENS + 20
    assert tokens(ranked_locations(names)) == RANKING_TOKENS + LIST_TOKENS + 20
    full = [label_of(str(number).encode()) for number in range(200)]
    listed = tokens(location_annotation(full)) - LOCATION_TOKENS - LIST_TOKENS
    assert FULL_NAME_TOKENS - 0.5 < listed / 200 < FULL_NAME_TOKENS
    assert tokens(order_annotation(names[:15])) == 13 + 2 * 15


def test_few_words_give_many_equal_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotation, "WORDS", ("oak", "river"))
    assert len({label_of(str(number).encode()) for number in range(100)}) == 4
