"""A small trace whose contexts overlap, with a plan as the authors' package writes them."""

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path

from benchmarks.gpu.cells import AGENDAS
from benchmarks.gpu.prepare import prepare
from benchmarks.gpu.workload import Kit


def make_trace(
    folder: Path,
    requests: int = 16,
    blocks: int = 12,
    k: int = 5,
    tokens: tuple[int, int] = (160, 320),
    seed: int = 1,
) -> Path:
    source = random.Random(seed)
    lengths = [source.randint(*tokens) for _ in range(blocks)]
    weights = [1 / (block + 1) for block in range(blocks)]
    lines, plan = [], []
    for number in range(requests):
        context: list[int] = []
        while len(context) < k:
            [block] = source.choices(range(blocks), weights)
            if block not in context:
                context.append(block)
        lines.append({"request_id": number, "context": context, "question_tokens": 20 + number})
        plan.append({"request_id": number, "context": sorted(context)})
    plan.sort(key=lambda line: str(line["context"]))
    folder.mkdir(parents=True)
    write(folder / "trace.jsonl.gz", (json.dumps(line) for line in lines))
    write(folder / "authors_plan.jsonl.gz", (json.dumps(line) for line in plan))
    write(
        folder / "blocks.tsv.gz",
        ["block_id\ttokens", *(f"{block}\t{count}" for block, count in enumerate(lengths))],
    )
    return folder


def make_kit(folder: Path) -> Kit:
    prepare(make_trace(folder / "trace"), folder / "kit", [AGENDAS["tiny"].requests], 1, None)
    return Kit(folder / "kit")


def write(file: Path, lines: Iterable[str]) -> None:
    with gzip.open(file, "wt", encoding="utf-8") as out:
        out.writelines(line + "\n" for line in lines)
