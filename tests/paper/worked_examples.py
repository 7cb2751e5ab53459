"""The paper's contexts, and printing in the paper's notation."""

from __future__ import annotations

from cp_ray.core.types import BlockId, Context, HeadId, PlanRequest, RequestId

HEAD = HeadId("head")


def context(*blocks: int) -> Context:
    """Blocks named by the paper's numbers."""
    return tuple(BlockId(str(block)) for block in blocks)


def show(blocks: Context) -> str:
    """`{1, 2, 4}`."""
    return "{" + ", ".join(blocks) + "}"


def tokens(blocks: Context) -> dict[BlockId, int]:
    """Every block as long as the other."""
    return dict.fromkeys(blocks, 100)


def request(name: str, blocks: Context, *, movable: bool = True) -> PlanRequest:
    """A plan request without head and tail."""
    return PlanRequest(
        request_id=RequestId(name),
        head=HEAD,
        head_tokens=0,
        context=blocks,
        block_tokens=(100,) * len(blocks),
        tail_tokens=1,
        movable=movable,
    )


A, B, C, D = context(3, 5, 1, 7), context(2, 6, 3, 5), context(3, 5, 8, 9), context(2, 6, 4, 0)
C1, C2, C3 = context(2, 1, 3), context(2, 6, 1), context(4, 1, 0)
C6, C7, C8 = context(2, 1, 4), context(5, 7, 8), context(1, 2, 9)
