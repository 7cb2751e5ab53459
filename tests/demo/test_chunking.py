from hypothesis import given
from hypothesis import strategies as st

from cp_ray.retrieval.chunking import WORDS_PER_BLOCK, chunk, sections


def words(n: int) -> str:
    return " ".join(f"w{i}" for i in range(n))


def test_short_paragraphs_are_packed_and_long_ones_split() -> None:
    text = "\n\n".join([words(20), words(25), words(48), words(200)])
    sizes = [len(part.split()) for part in chunk(text)]
    assert sizes[:2] == [45, 48]
    assert all(size <= 1.5 * WORDS_PER_BLOCK for size in sizes)


def test_a_long_paragraph_splits_at_sentences() -> None:
    text = " ".join(f"{words(29)} end{i}." for i in range(6))
    assert all(part.endswith(".") for part in chunk(text))
    assert len(chunk(text)) > 2


@given(
    st.lists(
        st.lists(st.sampled_from(["word", "end.", "so:", "x"]), max_size=150).map(" ".join),
        max_size=8,
    ).map("\n\n".join)
)
def test_no_word_is_lost_or_repeated_and_no_block_is_huge(text: str) -> None:
    parts = chunk(text)
    assert " ".join(parts).split() == text.split()
    assert all(0 < len(part.split()) <= 2 * WORDS_PER_BLOCK for part in parts)


def test_headings_of_both_kinds_start_a_section() -> None:
    found = sections("Top\n***\n\nintro\n\nInner\n---\nmore\n\n# Mark *down*\nlast\n\n## Empty\n")
    assert [(s.heading, s.text) for s in found] == [
        ("Top", "intro"),
        ("Inner", "more"),
        ("Mark *down*", "last"),
    ]


def test_text_without_headings_is_one_section() -> None:
    assert [(s.heading, s.text) for s in sections("a\nb")] == [("", "a\nb")]
    assert sections(" \n") == []
