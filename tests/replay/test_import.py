"""Each published format becomes a trace: on small files in the schema of its authors."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from cp_ray.cli import main
from cp_ray.replay.importing import IDS, TEXTS
from cp_ray.replay.trace import Trace, read_trace

FOX = "the quick brown fox jumps over the lazy dog near the river"
BEE = "a bee visits every flower in the garden before noon"


def imported(source: Path, kind: str, *options: str) -> Trace:
    target = source.parent / "out"
    command = ["trace", "import", str(source), "--format", kind, "-o", str(target)]
    assert main([*command, *options]) == 0
    return read_trace(target)


def refused(capsys: pytest.CaptureFixture[str], source: Path, kind: str, *options: str) -> str:
    command = ["trace", "import", str(source), "--format", kind, "-o", str(source.parent / "out")]
    assert main([*command, *options]) == 2
    return capsys.readouterr().err


def put(file: Path, value: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".jsonl":
        lines = value if isinstance(value, list) else [value]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        file.write_text(json.dumps(value))
    return file


def contexts(trace: Trace) -> list[tuple[str, ...]]:
    return [tuple(request.context) for request in trace.requests]


def test_questions_with_documents(tmp_path: Path):
    source = put(
        tmp_path / "mine.jsonl",
        [
            {"question": "why?", "documents": [FOX, {"title": "t", "text": BEE}, FOX]},
            {"question": "how?", "documents": [{"title": "t", "text": BEE}], "conversation": "c"},
        ],
    )
    trace = imported(source, "generic")
    assert contexts(trace) == [("0", "1"), ("1",)]
    assert trace.requests[0].block_tokens == (len(FOX) // 4, (len(BEE) + 2) // 4)
    assert trace.requests[1].conversation == "c"


def test_multihop_rag(tmp_path: Path):
    article = {"author": "x", "source": "The Post", "published_at": "2023-09-26", "url": "u"}
    long = " ".join([FOX] * 100)
    put(
        tmp_path / "in" / "corpus.json",
        [article | {"title": "Fox", "body": long}, article | {"title": "Bees", "body": BEE}],
    )
    evidence = [{"title": "Fox", "fact": FOX}]
    put(
        tmp_path / "in" / "MultiHopRAG.json",
        [
            {
                "query": "Which bee?",
                "answer": "none",
                "question_type": "t",
                "evidence_list": evidence,
            }
        ],
    )
    trace = imported(tmp_path / "in", "multihoprag")
    # 1,200 words make windows of 1,000 from 0 and from 800; Bees is the third block.
    assert (tmp_path / "out" / "blocks.tsv.gz").exists()
    assert contexts(trace) == [("2",)]
    assert trace.requests[0].answer_tokens == 1


def test_blocks_overlap_as_asked(tmp_path: Path):
    put(tmp_path / "in" / "corpus.json", [{"title": "T", "body": "a1 b2 c3 d4 e5 f6 g7"}])
    put(tmp_path / "in" / "MultiHopRAG.json", [{"query": "d4", "answer": ""}])
    trace = imported(tmp_path / "in", "multihoprag", "--words", "4", "--overlap", "2")
    # a1..d4, c3..f6, e5..g7: d4 is in the first two.
    assert sorted(trace.requests[0].context) == ["0", "1"]


def test_qasper(tmp_path: Path):
    paper = {
        "title": "Foxes",
        "abstract": "On foxes.",
        "full_text": [
            {"section_name": "Intro", "paragraphs": [FOX]},
            {"section_name": None, "paragraphs": [BEE]},
        ],
        "qas": [
            {
                "question": "What jumps?",
                "question_id": "q",
                "answers": [
                    {
                        "answer": {
                            "unanswerable": False,
                            "extractive_spans": ["the quick brown fox"],
                            "yes_no": None,
                            "free_form_answer": "",
                        }
                    }
                ],
            }
        ],
        "figures_and_tables": [],
    }
    source = put(tmp_path / "qasper-dev-v0.3.json", {"1909.0": paper})
    (request,) = imported(source, "qasper").requests
    assert request.context == ("0",)
    assert request.question_tokens == len("What jumps? in Foxes") // 4
    assert request.answer_tokens == len("the quick brown fox") // 4


FOUND = {"document_id": "d1", "text": FOX, "title": "T", "score": 9.5, "source": ""}
USER = {"speaker": "user", "text": "where?", "timestamp": 1, "enrichments": {}}
AGENT = {"speaker": "agent", "text": "there", "contexts": [FOUND, FOUND | {"document_id": "d2"}]}


def test_mt_rag_conversations(tmp_path: Path):
    talk = {"author": "a", "retriever": {}, "messages": [USER, AGENT, USER, AGENT, USER]}
    trace = imported(put(tmp_path / "conversations.json", [talk, talk]), "mtrag")
    assert contexts(trace) == [("0", "1")] * 4
    assert [r.conversation for r in trace.requests] == ["c0", "c0", "c1", "c1"]


def test_mt_rag_tasks(tmp_path: Path):
    task = {
        "conversation_id": "dd6b",
        "task_id": "dd6b<::>2",
        "turn": 2,
        "Collection": "mt-rag-clapnq",
        "input": [USER, {"speaker": "agent", "text": "there"}, USER | {"text": "and when?"}],
        "contexts": [FOUND],
        "targets": [{"speaker": "agent", "text": "now and then"}],
    }
    (request,) = imported(put(tmp_path / "RAG.jsonl", [task]), "mtrag").requests
    assert (request.conversation, request.context, request.answer_tokens) == ("dd6b", ("0",), 3)
    assert request.question_tokens == len("and when?") // 4


def test_locomo_asks_only_the_users_own_memories(tmp_path: Path):
    def person(name: str) -> dict[str, object]:
        return {
            "sample_id": name,
            "conversation": {
                "speaker_a": "Ann",
                "session_1": [{"speaker": "Ann", "dia_id": "D1:1", "text": "hi"}],
                "session_1_date_time": "1:56 pm on 8 May, 2023",
            },
            "observation": {"session_1_observation": {"Ann": [[FOX, "D1:1"], [BEE, "D1:2"]]}},
            "qa": [{"question": "Which bee?", "answer": 2023, "evidence": [], "category": 2}],
        }

    trace = imported(put(tmp_path / "locomo10.json", [person("a"), person("b")]), "locomo")
    assert contexts(trace) == [("1",), ("3",)]
    assert trace.requests[0].block_tokens == (len(f"1:56 pm on 8 May, 2023: {BEE}") // 4,)


def test_fairytale_qa(tmp_path: Path):
    def table(file: Path, rows: list[list[str]]) -> None:
        file.parent.mkdir(parents=True)
        with file.open("w", newline="") as out:
            csv.writer(out).writerows(rows)

    table(
        tmp_path / "in" / "section-stories" / "quick-fox-story.csv",
        [["section", "text"], ["1", FOX], ["2", BEE]],
    )
    table(
        tmp_path / "in" / "questions" / "quick-fox-questions.csv",
        [["question_id", "question", "answer1"], ["1", "Who jumps?", "the fox"]],
    )
    (request,) = imported(tmp_path / "in", "fairytaleqa").requests
    assert request.question_tokens == len("Who jumps? in quick fox") // 4
    assert request.context == ("0",)


HASHED = {"timestamp": 27, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}


def test_mooncake_keeps_its_order_and_its_last_short_block(tmp_path: Path):
    lines = [HASHED, HASHED | {"hash_ids": [0, 7], "input_length": 1024}]
    trace = imported(put(tmp_path / "conversation_trace.jsonl", lines), "mooncake")
    first, second = trace.requests
    assert first.block_tokens == (512, 512, 76)
    assert second.context == ("0", "3")
    assert not first.movable
    with gzip.open(tmp_path / "out" / "trace.jsonl.gz") as written:
        line = json.loads(written.readline())
    assert (line["arrival_ms"], line["output_tokens"]) == (27, 5)


def test_mooncake_as_runs(tmp_path: Path):
    source = put(tmp_path / "runs.jsonl", [["timestamp_ms"], [0, 1100, 5, [0, 2, 9, 1]]])
    assert imported(source, "mooncake_runs").requests[0].block_tokens == (512, 512, 76)


def test_a_folder_with_texts(tmp_path: Path):
    (tmp_path / "in").mkdir()
    request = {"question": "why?", "context": [1, 0], "session": "s", "answers": ["so"]}
    blocks = [{"block_id": 0, "text": FOX}, {"block_id": 1, "text": BEE, "title": "t"}]
    for name, lines in (("blocks", blocks), ("requests", [request])):
        with gzip.open(tmp_path / "in" / f"{name}.jsonl.gz", "wt") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)
    assert contexts(imported(tmp_path / "in", "samples")) == [("1", "0")]


def test_our_own_format_with_blocks_from_elsewhere(tmp_path: Path):
    line = {"request_id": "q/w0", "session": "q", "context": [26], "carry_tokens": 60}
    source = put(tmp_path / "in" / "trace.jsonl", [line | {"question_tokens": 40}])
    blocks = tmp_path / "blocks.tsv"
    blocks.write_text("block_id\ttokens\n25\t9\n26\t10\n")
    (request,) = imported(source, "cp_ray", "--blocks", str(blocks)).requests
    assert (request.context, request.block_tokens) == (("0",), (10,))
    assert request.question_tokens == 100


def test_tokens_by_a_tokenizer(tmp_path: Path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    source = put(tmp_path / "mine.jsonl", [{"question": "why so?", "documents": [FOX]}])
    trace = imported(source, "generic", "--tokenizer", str(tmp_path / "tokenizer.json"))
    assert trace.requests[0].block_tokens == (len(FOX.split()),)
    assert trace.requests[0].question_tokens == 3


def test_the_same_source_gives_the_same_bytes(tmp_path: Path):
    source = put(tmp_path / "mine.jsonl", [{"question": "why?", "documents": [FOX]}])
    for name in ("one", "two"):
        command = ["trace", "import", str(source), "--format", "generic"]
        assert main([*command, "-o", str(tmp_path / name)]) == 0
    for file in ("trace.jsonl.gz", "blocks.tsv.gz"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@pytest.mark.parametrize("kind", [*TEXTS, *IDS])
def test_a_file_of_another_format_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
):
    message = refused(capsys, put(tmp_path / "wrong.json", {"wrong": 1}), kind)
    assert "wrong.json" in message or "blocks.tsv" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("magic", [], "--format: 'magic' is not one of generic, multihoprag"),
        ("generic", ["--k", "0"], "--k: 0"),
        ("generic", ["--words", "5", "--overlap", "5"], "--overlap: 5 words of 5"),
        ("generic", ["--tokenizer", "absent"], "--tokenizer: absent"),
    ],
)
def test_an_option_that_cannot_work_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    options: list[str],
    message: str,
):
    source = put(tmp_path / "mine.jsonl", [{"question": "why?", "documents": [FOX]}])
    assert message in refused(capsys, source, kind, *options)


def test_hashes_that_do_not_make_the_length_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source = put(tmp_path / "m.jsonl", [HASHED, HASHED | {"input_length": 2000}])
    assert "line 2: 3 different hashes" in refused(capsys, source, "mooncake")


def test_a_full_folder_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = put(tmp_path / "mine.jsonl", [{"question": "why?", "documents": [FOX]}])
    imported(source, "generic")
    assert "is not empty" in refused(capsys, source, "generic")
