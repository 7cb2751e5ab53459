"""`cp-ray trace import`: published files to a trace folder (docs/traces.md describes both)."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from cp_ray.errors import ConfigError
from cp_ray.replay import published
from cp_ray.replay.ids import cp_ray_lines, mooncake, mooncake_runs, with_texts
from cp_ray.replay.texts import Passage, Question, Rows, Texts, to_rows, token_counter
from cp_ray.replay.trace import GenericLine, numbered_lines


class ImportOptions(msgspec.Struct, frozen=True):
    """k: blocks to retrieve. words, overlap: of a block; None = as the format's default.

    tokenizer: a tokenizer.json; None = four bytes a token. blocks: blocks.tsv of another folder.
    """

    source: Path
    kind: str
    output: Path
    k: int = 15
    words: int | None = None
    overlap: int | None = None
    tokenizer: Path | None = None
    blocks: Path | None = None


def generic(source: Path) -> Texts:
    """JSON lines of {question, documents[, conversation]}: passages are the distinct documents."""
    passages: dict[tuple[str, str], Passage] = {}
    questions = []
    for number, text in numbered_lines(source):
        try:
            line = msgspec.json.decode(text, type=GenericLine)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{source}, line {number}: {error}", param="source") from error
        ids = []
        for title, body in line.texts():
            passage = passages.setdefault((title, body), Passage(f"d{len(passages)}", body, title))
            ids.append(passage.id)
        questions.append(
            Question(line.question, conversation=line.conversation, passages=tuple(ids))
        )
    return Texts(list(passages.values()), questions)


TEXTS: dict[str, Callable[[Path], Texts]] = {
    "generic": generic,
    "multihoprag": published.multihop_rag,
    "qasper": published.qasper,
    "mtrag": published.mt_rag,
    "locomo": published.locomo,
    "fairytaleqa": published.fairytale_qa,
    "samples": with_texts,
}
IDS: dict[str, Callable[[Path, Path | None], Rows]] = {
    "mooncake": mooncake,
    "mooncake_runs": mooncake_runs,
    "cp_ray": cp_ray_lines,
}


def import_trace(options: ImportOptions) -> str:
    """Write trace.jsonl.gz and blocks.tsv.gz into a new folder; one line that says what.

    Raises ConfigError naming the option or the file and line to mend.
    """
    kind = options.kind
    if kind not in (*TEXTS, *IDS):
        known = ", ".join((*TEXTS, *IDS))
        raise ConfigError(f"--format: {kind!r} is not one of {known}", param="format")
    if not options.source.exists():
        raise ConfigError(f"no such file or folder: {options.source}", param="source")
    if options.output.exists() and any(options.output.iterdir()):
        raise ConfigError(f"--output: {options.output} is not empty", param="output")
    if kind in IDS:
        rows = IDS[kind](options.source, options.blocks)
    else:
        texts = _cut_as_asked(TEXTS[kind](options.source), options)
        rows = to_rows(texts, options.k, token_counter(options.tokenizer))
    if not rows.lines:
        raise ConfigError(f"{options.source} holds no request", param="source")
    options.output.mkdir(parents=True, exist_ok=True)
    _write(options.output / "trace.jsonl.gz", map(msgspec.json.encode, rows.lines))
    table = (f"{n}\t{tokens}\t{name}".encode() for n, (tokens, name) in enumerate(rows.blocks))
    _write(options.output / "blocks.tsv.gz", (b"block_id\ttokens\tsource_id", *table))
    return f"{options.output}: {len(rows.lines)} requests, {len(rows.blocks)} blocks"


def _cut_as_asked(texts: Texts, options: ImportOptions) -> Texts:
    words = texts.words if options.words is None else options.words
    overlap = texts.overlap if options.overlap is None else options.overlap
    if options.k < 1:
        raise ConfigError(f"--k: {options.k} is less than 1", param="k")
    if words < 0 or overlap < 0 or (words and overlap >= words):
        raise ConfigError(
            f"--overlap: {overlap} words of {words}; give less than --words", param="overlap"
        )
    return msgspec.structs.replace(texts, words=words, overlap=overlap)


def _write(file: Path, lines: Iterable[bytes]) -> None:
    # mtime 0: the same source gives the same bytes.
    with gzip.GzipFile(file, "wb", mtime=0) as out:
        for line in lines:
            out.write(line + b"\n")
