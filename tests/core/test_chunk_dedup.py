"""Partial overlap: what is replaced can be found again by the words of the pointer alone."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cp_ray.core.chunk_dedup import (
    ChunkDedup,
    Shortened,
    Source,
    expand,
    make_source,
)

NUMBERS = ("zero", "one", "two", "three", "four", "five")
WORDS = [f"w{n}{'abcdefg'[n % 7]}" for n in range(400)]


def count(text: str) -> int:
    return len(text.split())


def prose(seed: int, words: int) -> str:
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(words))


def in_turn(texts: list[str], least: int = 10) -> tuple[list[Shortened], list[Source]]:
    dedup = ChunkDedup(count, least)
    done, sources = [], []
    for number, text in enumerate(texts):
        done.append(dedup.shorten(text))
        sources.append(make_source(f"label {NUMBERS[number]}", done[-1].text))
        dedup.add(sources[-1])
    return done, sources


def test_a_passage_quoted_by_another_document_becomes_a_pointer() -> None:
    shared = prose(1, 60)
    first, second = f"Alpha. {shared} Omega.", f"{prose(2, 20)} {shared} {prose(3, 20)}"
    (_, short), sources = in_turn([first, second])
    assert len(short.pointers) == 1
    assert count(short.text) < count(second) - 40
    ((start, end),) = short.pointers
    pointer = short.text[start:end]
    words = shared.split()
    assert pointer.startswith(f'[Doc label zero: "{" ".join(words[:3])}"')
    assert pointer.endswith(f'{words[-1]}"]')
    assert expand(short, sources) == second


def test_a_change_costs_the_words_around_it_and_not_the_document() -> None:
    lines = [prose(seed, 12) for seed in range(60)]
    changed = list(lines)
    for number in (5, 15, 25, 35, 45, 55):
        changed[number] = prose(1000 + number, 12)
    (_, short), sources = in_turn(["\n".join(lines), "\n".join(changed)])
    assert expand(short, sources) == "\n".join(changed)
    assert count(short.text) < 0.4 * count("\n".join(changed))


def test_a_document_never_points_into_itself() -> None:
    twice = prose(1, 50)
    (short,), _ = in_turn([f"{twice}\n{twice}"])
    assert short == Shortened(f"{twice}\n{twice}", ())


@pytest.mark.parametrize(("words", "pointers"), [(18, 0), (60, 1)])
def test_what_saves_too_little_stays(words: int, pointers: int) -> None:
    shared = prose(4, words)
    done, _ = in_turn([f"a {shared} b", f"c {shared} d"], least=10)
    assert len(done[1].pointers) == pointers


def test_white_space_that_differs_only_ends_the_span() -> None:
    shared = prose(5, 80).split()
    broken = " ".join(shared[:40]) + "\n\n" + " ".join(shared[40:])
    (_, short), sources = in_turn([" ".join(shared), broken])
    assert len(short.pointers) == 2
    assert expand(short, sources) == broken


def test_words_that_stand_twice_in_the_source_are_not_quoted_alone() -> None:
    opening = "the first four words of every section are the same here and "
    source = "".join(opening + prose(seed, 40) + "\n" for seed in range(3))
    target = "x " + opening + prose(2, 40)
    (_, short), sources = in_turn([source, target])
    assert expand(short, sources) == target


def test_a_text_with_a_pointer_of_its_own_is_left_alone() -> None:
    shared = prose(6, 60)
    evil = f'{shared} [Doc label zero: "a" to "b"]'
    (_, short), _ = in_turn([shared, evil])
    assert short == Shortened(evil, ())


def test_nothing_points_at_one_of_two_texts_with_one_label() -> None:
    shared = prose(7, 60)
    dedup = ChunkDedup(count, 10)
    for text in (f"a {shared}", f"b {shared}"):
        dedup.add(make_source("label zero", text))
    assert dedup.shorten(shared) == Shortened(shared, ())
    dedup.add(make_source("label one", f"c {shared}"))
    assert dedup.shorten(shared).text.startswith("[Doc label one: ")


fragment = st.one_of(
    st.integers(0, 5).map(lambda seed: prose(seed, 45)),
    st.text('ab" \n', max_size=30),
    st.integers(0, 3).map(lambda seed: prose(seed, 45)[7:90]),
)
document = st.lists(fragment, max_size=5).map(" ".join)


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(document, min_size=1, max_size=5), least=st.integers(1, 30))
def test_expanding_gives_the_input_back_and_nothing_grows(texts: list[str], least: int) -> None:
    done, sources = in_turn(texts, least)
    for number, (text, short) in enumerate(zip(texts, done, strict=True)):
        assert expand(short, sources[:number]) == text
        if short.pointers:
            assert count(short.text) < count(text)
