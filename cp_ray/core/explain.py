"""One request, step by step: what came, what was planned, what the engine found, what was lost."""

from __future__ import annotations

from typing import Any

from cp_ray.core.story import Story

_MEANING = {
    "cold": "never sent before",
    "tenant_wall": "only another tenant sent it before",
    "missed_deduplication": "its conversation holds it already",
    "order": "sent before, but not behind the same prefix",
    "evicted": "no replica had it any more",
    "routed_away": "another replica had it",
    "page": "fills no whole engine block, or is the last token",
    "stale": "the index thought it was there, the replica knew better",
    "unexplained": "the replica thought it was there, the engine did not find it",
}


def explain(story: Story, losses: dict[str, int] | None) -> dict[str, Any]:
    """JSON of one request. Ids and token counts only; times in seconds from its arrival."""
    plan, step = story.plan, story.step
    order = step.context if step is not None else plan.context
    given = {block: place for place, block in enumerate(plan.context)}
    sizes = dict(zip(plan.context, plan.block_tokens, strict=True))
    parts = [_part("head", str(plan.head), plan.head_tokens, 0, story.cached_tokens)]
    at = plan.head_tokens
    for place, block in enumerate(order):
        part = _part("block", str(block), sizes[block], at, story.cached_tokens)
        parts.append({**part, "given": given[block], "sent": place})
        at += sizes[block]
    annotation = story.prompt_tokens - at - plan.tail_tokens
    if annotation > 0:
        parts.append(_part("order annotation", "", annotation, at, story.cached_tokens))
        at += annotation
    parts.append(_part("question", "", plan.tail_tokens, at, story.cached_tokens))
    return {
        "request_id": str(story.request_id),
        "arrived": story.at,
        "outcome": story.outcome,
        "replica": story.replica,
        "planned_replica": step.replica if step is not None else None,
        "branch": step.branch if step is not None else "",
        "reason": story.reason,
        "prompt_tokens": story.prompt_tokens,
        "predicted_tokens": step.reused_tokens if step is not None else 0,
        "cached_tokens": story.cached_tokens,
        "output_tokens": story.output_tokens,
        "steps": _steps(story),
        "parts": parts,
        "losses": [
            {"cause": cause, "tokens": tokens, "meaning": _MEANING[cause]}
            for cause, tokens in (losses or {}).items()
        ],
    }


def _part(kind: str, name: str, tokens: int, at: int, cached: int) -> dict[str, Any]:
    return {
        "kind": kind,
        "id": name,
        "tokens": tokens,
        "cached": max(0, min(cached - at, tokens)),
    }


def _steps(story: Story) -> list[dict[str, Any]]:
    plan, step = story.plan, story.step
    blocks = len(plan.context)
    said = f"{blocks} blocks, {story.prompt_tokens} prompt tokens"
    if story.repeated:
        said += f"; {story.repeated} blocks were replaced by pointers into the conversation"
    steps = [{"at_s": 0.0, "what": "arrived", "detail": said}]
    if step is None:
        told = "nothing was planned (reuse=plain): Serve balanced it by load"
    elif step.reason == "passthrough":
        told = "the index was down or late: order as given, replica by hash and load"
    else:
        moved = sum(a != b for a, b in zip(step.context, plan.context, strict=True))
        told = f"to {step.replica}: {step.reused_tokens} tokens should be cached there; "
        told += f"{moved} of {blocks} blocks moved" if moved else "order as given"
        if step.estimated_ttft_s:
            told += f"; first token expected after {step.estimated_ttft_s:.3f} s"
    steps.append({"at_s": story.planned_s, "what": "planned", "detail": told})
    if story.ttft_s:
        where = f"{story.replica} found {story.cached_tokens} tokens cached"
        if story.reason == "spill":
            where += "; the planned replica was full or gone"
        steps.append({"at_s": story.ttft_s, "what": "first token", "detail": where})
    ends = {"ok": "answered", "failed": "failed", "left": "the client left"}
    done = f"{story.output_tokens} tokens of output"
    steps.append({"at_s": story.total_s, "what": ends[story.outcome], "detail": done})
    return steps
