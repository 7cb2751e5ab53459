import json
import re
import statistics
from pathlib import Path

import pytest

from cp_ray.demo.corpus import folder_corpus, python_corpus, topic_document
from cp_ray.demo.questions import python_questions, read_questions
from cp_ray.errors import ConfigError


def test_the_corpus_is_the_same_each_time_and_large() -> None:
    blocks = python_corpus()
    assert blocks == python_corpus()
    assert len(blocks) > 1000
    assert len({block.id for block in blocks}) == len(blocks)
    assert len({(block.title, block.text) for block in blocks}) == len(blocks)
    assert {block.source.split("/")[0] for block in blocks} == {"reference", "builtins", "library"}


def test_blocks_are_of_about_the_same_size_and_have_titles() -> None:
    sizes = [len(block.text.split()) for block in python_corpus()]
    assert 35 <= statistics.mean(sizes) <= 60
    assert max(sizes) <= 100
    assert all(block.title.strip() for block in python_corpus())


def test_a_section_that_two_topics_share_gives_equal_blocks() -> None:
    whole = {(b.title, b.text) for b in topic_document("specialnames")}
    part = [(b.title, b.text) for b in topic_document("context-managers")]
    assert sum(block in whole for block in part[1:]) == len(part[1:]) or set(part) <= whole


def test_at_least_sixty_different_questions_a_third_in_conversations() -> None:
    conversations = python_questions().conversations
    questions = [turn for turns in conversations for turn in turns]
    assert len(questions) >= 60
    multi = [turns for turns in conversations if len(turns) > 1]
    assert 0.3 <= sum(map(len, multi)) / len(questions) <= 0.45
    assert {len(turns) for turns in multi} <= {2, 3, 4}
    normal = [tuple(sorted(set(re.findall(r"\w+", q.lower())))) for q in questions]
    assert len(set(normal)) == len(questions)
    assert len(python_questions().chain.questions) >= 5


def test_a_folder_of_text_is_chunked_by_path(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_text("plain words " * 10)
    (tmp_path / "sub" / "a.md").write_text("# Title\n" + "marked words " * 10)
    (tmp_path / "c.bin").write_bytes(b"\xff\xfe")
    blocks = folder_corpus(tmp_path)
    assert [(b.source, b.title) for b in blocks] == [("b.txt", "b.txt"), ("sub/a.md", "Title")]


def test_a_folder_without_text_and_text_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no \.txt or \.md"):
        folder_corpus(tmp_path)
    with pytest.raises(ConfigError, match="not a folder"):
        folder_corpus(tmp_path / "nowhere")
    (tmp_path / "x.txt").write_bytes(b"\xff\xfe words")
    with pytest.raises(ConfigError, match=r"x\.txt is not UTF-8"):
        folder_corpus(tmp_path)


def test_own_questions_are_lines_or_json(tmp_path: Path) -> None:
    lines = tmp_path / "q.txt"
    lines.write_text("One?\n\n  Two?\n")
    assert read_questions(lines) == (("One?",), ("Two?",))
    data = tmp_path / "q.json"
    data.write_text(json.dumps(["One?", ["Two?", "And then?"]]))
    assert read_questions(data) == (("One?",), ("Two?", "And then?"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no question"),
        ("[]", "no question"),
        ('["a?", []]', "entry 1"),
        ('["a?", ["b?", 3]]', "entry 1"),
        ('[" "]', "entry 0"),
        ("[", "no JSON"),
    ],
)
def test_a_bad_questions_file_is_refused_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "q.txt"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as refused:
        read_questions(file)
    assert str(file) in refused.value.message


def test_a_missing_or_binary_questions_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_questions(tmp_path / "none")
    (tmp_path / "q").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_questions(tmp_path / "q")
