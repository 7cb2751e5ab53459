"""What one replica costs in time: the serial model's rates, and the batching model's step."""

from __future__ import annotations

import msgspec


class StepCost(msgspec.Struct, frozen=True):
    """Seconds of one engine step of continuous batching.

    fixed_s + prefill_s per new token + pair_s per (new token, token before it) + decode_s per
    running sequence. The defaults are modelled, not measured: a 32B model in FP8 on one H200 at
    some 40% of its peak (64 layers, hidden 5,120: 64 GFLOP a token, 2.1 MFLOP a pair).
    """

    fixed_s: float = 0.010
    prefill_s: float = 1 / 12_000
    pair_s: float = 2.5e-9
    decode_s: float = 0.0004

    def __str__(self) -> str:
        """As a table says it."""
        return (
            f"a step takes {self.fixed_s * 1e3:g} ms + {self.prefill_s * 1e6:.0f} us a new token + "
            f"{self.pair_s * 1e9:g} ns a pair + {self.decode_s * 1e3:g} ms an answer that runs"
        )

    def chunk_s(self, before: int, new: int) -> float:
        """Prefill of `new` tokens behind `before` others, without the step's fixed part."""
        return new * (self.prefill_s + self.pair_s * (before + new / 2))


class SerialRates(msgspec.Struct, frozen=True):
    """Prefill at a fixed rate, one request at a time; decode at a fixed rate beside it."""

    prefill_tokens_per_s: float = 12_000.0
    decode_tokens_per_s: float = 50.0

    def __str__(self) -> str:
        """As a table says it."""
        return (
            f"a prompt at a time at {self.prefill_tokens_per_s:,.0f} tokens/s, "
            f"answers beside it at {self.decode_tokens_per_s:g} tokens/s"
        )
