"""Model shapes with random weights: what a prefill costs depends on the shape, not the weights."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from cp_ray.core.prefill_curve import PrefillCurve

BYTES_OF_BF16 = 2


class Shape(msgspec.Struct, frozen=True):
    """A dense Qwen3. Widths in elements; tied: input and output embeddings are one matrix."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool

    @property
    def layer_weights(self) -> int:
        """Parameters of all layers' matrices."""
        attention = self.hidden * (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def weight_bytes(self) -> int:
        """Size of the model in bfloat16."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return (self.layer_weights + embeddings) * BYTES_OF_BF16

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of one token in bfloat16."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_OF_BF16

    def curve_at(self, flop_per_s: float, base_s: float) -> PrefillCurve:
        """The prefill curve if the chip did so many FLOP/s whatever the kernel. Not measured.

        Two FLOP per weight and token; four per query, key and head dimension, half of them
        masked among the new tokens themselves.
        """
        pair = 4 * self.layers * self.heads * self.head_dim / flop_per_s
        return PrefillCurve(
            base_s=base_s,
            per_new_s=2 * self.layer_weights / flop_per_s,
            per_new_squared_s=pair / 2,
            per_pair_s=pair,
        )

    def config(self, max_tokens: int) -> dict[str, object]:
        """A config.json that transformers and vLLM read."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocab,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": max_tokens,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "attention_bias": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": 1,
            "eos_token_id": 2,
        }

    def write(self, max_tokens: int, folder: Path) -> Path:
        """Make a model folder without weights and tokenizer; where it is."""
        made = folder / f"qwen3-{self.name}-{max_tokens}"
        made.mkdir(parents=True, exist_ok=True)
        (made / "config.json").write_text(json.dumps(self.config(max_tokens), indent=1))
        return made


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("4b", 2560, 36, 32, 8, 128, 9728, 151_936, True),
        Shape("32b", 5120, 64, 64, 8, 128, 25_600, 151_936, False),
        Shape("tiny", 64, 2, 4, 2, 32, 128, 1024, True),
    )
}
"""4b and 32b: Qwen3-4B's and Qwen3-32B's published configurations. tiny: for CPU tests."""
