"""`cp-ray eval`: ask a question set with each switch alone and with all, and compare answers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import openai
from tqdm import tqdm

from cp_ray.agents.chat import ChatFailed, chat
from cp_ray.errors import ConfigError
from cp_ray.evaluation.arms import ARMS, Asked, Question, prompts, read_questions
from cp_ray.evaluation.metrics import Estimate, estimate, exact, f1


class EvalOptions(msgspec.Struct, frozen=True):
    """What to ask. arms: of `ARMS`; `off` is always asked, because others are compared with it."""

    questions: Path
    url: str
    model: str
    arms: tuple[str, ...] = tuple(ARMS)
    most: int | None = None
    documents: int | None = None
    max_tokens: int = 64
    concurrency: int = 4


class ArmRow(msgspec.Struct, frozen=True):
    """One arm. changed: prompts that differ from those with all switches off.

    answered: questions that every arm answered; only these are compared. agreement: share of
    answers equal to those of `off`, word by word, and agreement_f1 by F1. f1_gain: of the same
    questions, this arm less `off`. None without right answers. prompt_tokens: mean.
    """

    arm: str
    questions: int
    answered: int
    changed: int
    exact: Estimate | None
    f1: Estimate | None
    f1_gain: Estimate | None
    agreement: Estimate
    agreement_f1: Estimate
    prompt_tokens: float
    ttft_s: float


class _Reply(msgspec.Struct, frozen=True):
    text: str
    prompt_tokens: int
    ttft_s: float


def run_eval(options: EvalOptions, *, as_json: bool) -> int:
    """Print a row for each arm; 1 when some question had no answer. Raises ConfigError."""
    rows = asyncio.run(evaluate(options))
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
    else:
        sys.stdout.write(table(rows) + "\n")
    return 0 if all(row.answered == row.questions for row in rows) else 1


async def evaluate(options: EvalOptions) -> list[ArmRow]:
    """Ask everything, arm by arm. Raises ConfigError for unknown arms or unreadable questions."""
    unknown = [arm for arm in options.arms if arm not in ARMS]
    if unknown:
        raise ConfigError(f"--arms: {unknown[0]!r} is not one of {', '.join(ARMS)}", param="arms")
    questions = read_questions(options.questions, options.most)
    if options.documents is not None:
        questions = [
            msgspec.structs.replace(one, documents=one.documents[: options.documents])
            for one in questions
        ]
    arms = tuple(dict.fromkeys(("off", *options.arms)))
    asked = {arm: prompts(questions, ARMS[arm], options.model) for arm in arms}
    replies: dict[str, list[_Reply | None]] = {}
    key = os.environ.get("OPENAI_API_KEY", "none")
    url = f"{options.url.rstrip('/')}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=key) as client:
        for arm in arms:
            replies[arm] = await _ask_all(client, asked[arm], options, arm)
    whole = [n for n in range(len(questions)) if all(replies[arm][n] for arm in arms)]
    if not whole:
        raise ConfigError(f"nothing was answered at {options.url}: is it running there?")
    return [_row(arm, questions, whole, asked[arm], replies) for arm in arms]


async def _ask_all(
    client: openai.AsyncOpenAI, asked: Sequence[Asked], options: EvalOptions, arm: str
) -> list[_Reply | None]:
    replies: list[_Reply | None] = [None] * len(asked)
    queue = iter(enumerate(asked))

    async def sender(progress: tqdm) -> None:
        for place, one in queue:
            try:
                answer = await chat(
                    client,
                    model=options.model,
                    messages=one.messages,
                    max_tokens=options.max_tokens,
                )
                replies[place] = _Reply(answer.text, answer.prompt_tokens, answer.ttft_s)
            except ChatFailed as error:
                progress.write(f"{arm}, question {place}: {error.message}", file=sys.stderr)
            progress.update()

    with tqdm(total=len(asked), desc=arm, unit="question") as progress:
        async with asyncio.TaskGroup() as group:
            for _ in range(max(1, options.concurrency)):
                group.create_task(sender(progress))
    return replies


def _row(
    arm: str,
    questions: Sequence[Question],
    whole: Sequence[int],
    asked: Sequence[Asked],
    replies: dict[str, list[_Reply | None]],
) -> ArmRow:
    mine = {n: reply for n in whole if (reply := replies[arm][n]) is not None}
    off = {n: reply for n in whole if (reply := replies["off"][n]) is not None}
    scored = [n for n in whole if questions[n].answers]
    own = [f1(mine[n].text, questions[n].answers) for n in scored]
    plain = [f1(off[n].text, questions[n].answers) for n in scored]
    gain = [a - b for a, b in zip(own, plain, strict=True)]
    return ArmRow(
        arm=arm,
        questions=len(questions),
        answered=len(whole),
        changed=sum(one.changed for one in asked),
        exact=estimate([exact(mine[n].text, questions[n].answers) for n in scored])
        if scored
        else None,
        f1=estimate(own) if scored else None,
        f1_gain=estimate(gain) if scored else None,
        agreement=estimate([exact(mine[n].text, [off[n].text]) for n in whole]),
        agreement_f1=estimate([f1(mine[n].text, [off[n].text]) for n in whole]),
        prompt_tokens=sum(reply.prompt_tokens for reply in mine.values()) / len(mine),
        ttft_s=sum(reply.ttft_s for reply in mine.values()) / len(mine),
    )


def table(rows: Sequence[ArmRow]) -> str:
    """A line for each arm: means with 95% intervals."""
    lines = [
        f"{rows[0].answered} of {rows[0].questions} questions answered by every arm; "
        "means [95% interval]; agreement and gain are with `off`, question by question",
        f"{'arm':<17} {'changed':>7} {'exact match':>21} {'F1':>21} {'F1 gain':>23} "
        f"{'same answer':>21} {'agreement F1':>21} {'tokens':>7} {'TTFT':>7}",
    ]
    lines += [
        f"{row.arm:<17} {row.changed:>7} {_shown(row.exact):>21} {_shown(row.f1):>21} "
        f"{_shown(row.f1_gain, '+'):>23} {_shown(row.agreement):>21} "
        f"{_shown(row.agreement_f1):>21} {row.prompt_tokens:>7.0f} {row.ttft_s:>6.2f}s"
        for row in rows
    ]
    return "\n".join(lines)


def _shown(value: Estimate | None, sign: str = "") -> str:
    if value is None:
        return "-"
    return f"{value.mean:{sign}.3f} [{value.low:{sign}.3f} {value.high:{sign}.3f}]"
