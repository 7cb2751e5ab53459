import random

import pytest

from cp_ray.errors import ConfigError, InvalidRequest
from cp_ray.retrieval.bm25 import Bm25Retriever, Document

BLOCKS: list[Document] = [
    {"id": "a", "title": "Dictionaries", "text": "A mapping from hashable keys to values."},
    {"id": "b", "title": "Lists", "text": "A mutable sequence of values."},
    {"id": "c", "title": "Tuples", "text": "An immutable sequence, hashable when its items are."},
    {"id": "d", "title": "Generators", "text": "Functions that yield."},
]


def test_the_best_match_comes_first_and_keeps_its_shape() -> None:
    found = Bm25Retriever(BLOCKS).search("hashable mapping keys", 2)
    assert found[0] == BLOCKS[0]
    assert found[1]["id"] == "c"


def test_a_word_of_the_title_counts() -> None:
    assert [block["id"] for block in Bm25Retriever(BLOCKS).search("generators", 4)] == ["d"]


def test_documents_that_share_no_word_are_left_out() -> None:
    assert {block["id"] for block in Bm25Retriever(BLOCKS).search("sequence", 4)} == {"b", "c"}
    assert Bm25Retriever(BLOCKS).search("zebra", 4) == []
    assert Bm25Retriever(BLOCKS).search("", 4) == []


def test_ties_keep_the_order_of_the_documents() -> None:
    same: list[Document] = [{"id": str(i), "text": "equal words here"} for i in range(50)]
    expected = [str(i) for i in range(8)]
    for _ in range(3):
        assert [block["id"] for block in Bm25Retriever(same).search("equal", 8)] == expected
    random.Random(1).shuffle(same)
    expected = [block["id"] for block in same[:8]]
    assert [block["id"] for block in Bm25Retriever(same).search("equal", 8)] == expected


def test_an_empty_corpus_a_double_id_and_a_bad_k_are_refused() -> None:
    with pytest.raises(ConfigError, match="no text"):
        Bm25Retriever([])
    with pytest.raises(ConfigError, match="no text"):
        Bm25Retriever([{"id": "x", "text": "..."}])
    with pytest.raises(ConfigError, match="unique"):
        Bm25Retriever([{"id": "x", "text": "one word"}, {"id": "x", "text": "other"}])
    with pytest.raises(InvalidRequest, match="k must be"):
        Bm25Retriever(BLOCKS).search("lists", 0)


def test_a_ranking_keeps_every_document() -> None:
    ranked = [block["id"] for block in Bm25Retriever(BLOCKS).rank("Why are tuples hashable?")]
    assert ranked[0] == "c"
    assert sorted(ranked) == ["a", "b", "c", "d"]
    assert [b["id"] for b in Bm25Retriever(BLOCKS).rank("zebra")] == ["a", "b", "c", "d"]


def test_words_of_asking_and_the_plural_do_not_change_what_is_found() -> None:
    retriever = Bm25Retriever(BLOCKS)
    asked = retriever.search("What does a generator do, and how does it work?", 4)
    assert [block["id"] for block in asked] == ["d"]
