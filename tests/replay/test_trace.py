"""Reading traces: both formats, and errors that name file and line."""

import gzip
import json
from pathlib import Path

import pytest

from cp_ray.errors import ConfigError
from cp_ray.replay.trace import read_trace

LINE = {"request_id": 0, "session": "s", "turn": 0, "context": [1, 0], "question_tokens": 7}


def folder(tmp_path: Path, *lines: object, blocks: str = "0\t10\t\n1\t20\t\n") -> Path:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    with gzip.open(tmp_path / "trace.jsonl.gz", "wt") as file:
        file.write(text)
    (tmp_path / "blocks.tsv").write_text("block_id\ttokens\tsource_id\n" + blocks)
    return tmp_path


def test_a_folder_is_read_with_its_block_lengths(tmp_path: Path):
    trace = read_trace(folder(tmp_path, LINE, "", {**LINE, "request_id": "x"}))
    first, second = trace.requests
    assert (first.request_id, first.context, first.block_tokens) == ("0", ("1", "0"), (20, 10))
    assert (first.conversation, first.question_tokens, second.request_id) == ("s", 7, "x")
    assert trace.name == tmp_path.name
    assert trace.ceiling() == 0.5


def test_k_and_requests_cut_the_trace(tmp_path: Path):
    trace = read_trace(folder(tmp_path, LINE, LINE), k=1, requests=1)
    assert [request.context for request in trace.requests] == [("1",)]


def test_questions_with_documents_are_a_trace_too(tmp_path: Path):
    file = tmp_path / "mine.jsonl"
    lines = [
        {"question": "why?", "documents": ["a" * 40, {"title": "t", "text": "b" * 80}, "a" * 40]},
        {"question": "how?", "documents": [{"title": "t", "text": "b" * 80}]},
    ]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    first, second = read_trace(file).requests
    assert first.block_tokens == (10, 20)
    assert second.context == first.context[1:]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([LINE, "{"], r"trace\.jsonl\.gz, line 2: "),
        ([LINE, {"request_id": 1}], "line 2: .*question"),
        ([{**LINE, "context": [1, 5]}], "line 1: context: block 5 is not in blocks.tsv"),
        ([{**LINE, "context": [1, 1]}], "line 1: context: a block stands twice"),
        ([], "holds no request"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, lines: list[object], message: str):
    with pytest.raises(ConfigError, match=message):
        read_trace(folder(tmp_path, *lines))


def test_bad_block_lengths_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"blocks\.tsv, line 3: .*'1\\tmany'"):
        read_trace(folder(tmp_path, LINE, blocks="0\t10\t\n1\tmany\n"))


def test_what_is_missing_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such trace"):
        read_trace(tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"has no trace\.jsonl"):
        read_trace(tmp_path)
    (folder(tmp_path, LINE) / "blocks.tsv").unlink()
    with pytest.raises(ConfigError, match=r"has no blocks\.tsv"):
        read_trace(tmp_path)


def test_a_file_that_is_not_gzip_is_named(tmp_path: Path):
    (tmp_path / "trace.jsonl.gz").write_text("plain")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path)
