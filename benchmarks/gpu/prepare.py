"""python -m benchmarks.gpu.prepare --trace FOLDER: make the folder that goes to the GPU machine.

It holds the first requests of a trace (as `bench reuse` reads it), the plans that take long to
make, and, from --vllm, an engine in *.tar.xz where that machine has none. It is all a run needs
beside the working tree; nothing is fetched there. The one command for there is printed last.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from benchmarks.gpu.cells import AGENDAS, AUTHORS_PLAN
from cp_ray.core.types import BlockId
from cp_ray.errors import ConfigError
from cp_ray.replay.registry import make_policy
from cp_ray.replay.trace import TraceRequest, read_trace

PLANNED_AHEAD = ("offline", "paper_offline")
"""Policies that see the whole trace; on the machine they would compile first."""
MOST_BYTES = 64 << 20
"""A folder beyond this is refused: it is sent with every call."""


def prepare(trace: Path, out: Path, counts: Iterable[int], scale: float, vllm: Path | None) -> int:
    """Fill the folder; its size in bytes. scale: factor on the tokens of every block."""
    wanted = sorted(set(counts))
    requests = [_scaled(one, scale) for one in read_trace(trace, requests=wanted[-1]).requests]
    if len(requests) < wanted[-1]:
        raise ConfigError(f"{trace} has {len(requests)} requests, the cells want {wanted[-1]}")
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    _write(out / "trace.jsonl.gz", (_line(one) for one in requests))
    tokens: dict[BlockId, int] = {}
    for one in requests:
        tokens.update(one.lengths)
    table = ("\t".join((block, str(count))) for block, count in sorted(tokens.items()))
    _write(out / "blocks.tsv.gz", ["block_id\ttokens", *table])
    plan = trace / AUTHORS_PLAN.removeprefix("plan:")
    if not plan.is_file():
        raise ConfigError(f"{plan} is missing: the cells compare with the authors' plan")
    shutil.copyfile(plan, out / plan.name)
    for count in wanted:
        for policy in PLANNED_AHEAD:
            arranged = make_policy(policy, None).arrange(requests[:count])
            (out / f"{policy}-{count}.jsonl").write_text(
                "".join(_line(one) + "\n" for one in arranged)
            )
    for archive in sorted(vllm.glob("*.tar.xz")) if vllm else []:
        shutil.copyfile(archive, out / archive.name)
    size = sum(file.stat().st_size for file in out.iterdir())
    if size > MOST_BYTES:
        raise ConfigError(f"{out} has {size >> 20} MiB, the machine takes {MOST_BYTES >> 20}")
    return size


def _scaled(request: TraceRequest, scale: float) -> TraceRequest:
    tokens = tuple(max(1, round(count * scale)) for count in request.block_tokens)
    question = max(1, round(request.question_tokens * scale))
    return msgspec.structs.replace(request, block_tokens=tokens, question_tokens=question)


def _line(request: TraceRequest) -> str:
    return msgspec.json.encode(
        {
            "request_id": request.request_id,
            "context": request.context,
            "question_tokens": request.question_tokens,
        }
    ).decode()


def _write(file: Path, lines: Iterable[str]) -> None:
    with gzip.open(file, "wt", encoding="utf-8") as out:
        out.writelines(line + "\n" for line in lines)


def main(argv: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.prepare", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--vllm", type=Path, help="folder of *.tar.xz that unpack to site packages")
    parser.add_argument("--out", type=Path, default=Path(".gpu"))
    parser.add_argument("--shapes", default="32b,4b")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args(argv)
    try:
        counts = [AGENDAS[name].requests for name in args.shapes.split(",")]
        size = prepare(args.trace, args.out, counts, args.scale, args.vllm)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{args.out}: {size / 1e6:.1f} MB; carry it beside the working tree, and run there")
    print(f"bash benchmarks/gpu/on_device.sh {args.out} 560")
    return 0


if __name__ == "__main__":
    sys.exit(main())
