"""Paper 5.3 (order annotation) and section 6 (de-duplication): the example of C6."""

import re

from cp_ray.core.dedup import deduplicate
from cp_ray.core.prompt import body, location_block, make_block
from tests.paper.worked_examples import C6, context, show
from tests.references import names_in, resolve

BLOCKS = {number: make_block("public", None, f"text of document {number}") for number in range(10)}
LABELS = [block.label for block in BLOCKS.values()]


def labels_in(annotation: str) -> list[str]:
    return [resolve(name, LABELS) for name in names_in(annotation)]


def test_the_second_turn_keeps_only_block_5() -> None:
    turn_2 = deduplicate(context(1, 5, 2), seen=set(C6))
    assert show(turn_2.repeated) == "{1, 2}"
    assert show(turn_2.new) == "{5}"
    assert turn_2.context == context(1, 5, 2), "annotations stand where their blocks stood"


def test_the_first_turn_of_a_conversation_repeats_nothing() -> None:
    assert deduplicate(C6, seen=()).repeated == ()


def test_the_prompt_names_the_original_ranking_after_the_blocks() -> None:
    ordered = [BLOCKS[1], BLOCKS[2], BLOCKS[4]]
    ranked = [BLOCKS[2], BLOCKS[1], BLOCKS[4]]
    *texts, annotation = body(ordered, ranked)
    assert texts == [block.text for block in ordered]
    assert annotation.endswith(" and answer the question.\n\n")
    assert labels_in(annotation) == [BLOCKS[n].label for n in (2, 1, 4)]


def test_an_order_left_alone_needs_no_annotation() -> None:
    ranked = [BLOCKS[2], BLOCKS[1]]
    assert body(ranked, ranked) == tuple(block.text for block in ranked)


def test_a_repeated_block_becomes_a_reference_to_its_label() -> None:
    reference = location_block("public", [BLOCKS[1]], LABELS)
    assert re.fullmatch(
        r"Please refer to \[Doc \w+\] in the previous conversation.\n\n", reference.text
    )
    assert labels_in(reference.text) == [BLOCKS[1].label]
    assert reference.id != BLOCKS[1].id
    assert BLOCKS[1].label in BLOCKS[1].text


def test_repeated_blocks_that_follow_each_other_share_a_sentence() -> None:
    reference = location_block("public", [BLOCKS[2], BLOCKS[1]], LABELS)
    assert reference.text.count("in the previous conversation") == 1
    assert labels_in(reference.text) == [BLOCKS[2].label, BLOCKS[1].label]


def test_a_block_is_the_same_bytes_in_every_prompt_and_apart_between_regions() -> None:
    again = make_block("public", None, "text of document 3")
    assert again == BLOCKS[3]
    private = make_block("tenant-a", None, "text of document 3")
    assert private.text == again.text
    assert private.id != again.id
