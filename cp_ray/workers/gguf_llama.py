"""A Llama stored as GGUF -> a Hugging Face folder (float16 safetensors, config, tokenizer).

Needs neither torch nor a hub: half a minute of transformers becomes seconds of numpy, and the
simulated engine can have the tokenizer alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# llama.cpp's name of a weight in block N -> Hugging Face's.
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def convert(gguf_file: Path, out: Path, tick: Callable[[int, int], None]) -> None:
    """Write `out` (an existing folder). tick(done, total) counts parameters.

    Raises ImportError without the package `gguf`, ValueError when the file is not a Llama.
    """
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.numpy import save_file
    from transformers import AutoTokenizer

    reader = GGUFReader(gguf_file)
    facts = _Facts(reader.fields)
    heads = {"attn_q": facts.of("attention.head_count"), "attn_k": facts.of(_KV_HEADS)}
    weights: dict[str, npt.NDArray[np.float16]] = {}
    done, total = 0, sum(int(tensor.n_elements) for tensor in reader.tensors)
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            weight = _halves_from_pairs(weight, heads[part])
        weights[_hugging_face_name(tensor.name)] = np.ascontiguousarray(weight, np.float16)
        done += int(tensor.n_elements)
        tick(done, total)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    tied = "lm_head.weight" not in weights
    (out / "config.json").write_text(json.dumps(facts.config(tied), indent=1))
    (out / "generation_config.json").write_text(json.dumps(facts.special_tokens()))
    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    tokenizer.save_pretrained(out)


_KV_HEADS = "attention.head_count_kv"


class _Facts:
    """Metadata of a GGUF file, by llama.cpp's names."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        architecture = self._read("general.architecture")
        if architecture != "llama":
            raise ValueError(f"architecture {architecture!r} is not llama")

    def of(self, name: str) -> Any:
        return self._read(f"llama.{name}")

    def _read(self, name: str) -> Any:
        # One by one: decoding the vocabulary, which nobody asks for, takes seconds.
        return self._fields[name].contents()

    def special_tokens(self) -> dict[str, int]:
        return {
            f"{short}_token_id": self._read(f"tokenizer.ggml.{long}_token_id")
            for short, long in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
        }

    def config(self, tied: bool) -> dict[str, Any]:
        heads, width = self.of("attention.head_count"), self.of("embedding_length")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": width,
            "intermediate_size": self.of("feed_forward_length"),
            "num_hidden_layers": self.of("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.of(_KV_HEADS),
            "head_dim": width // heads,
            "max_position_embeddings": self.of("context_length"),
            "rms_norm_eps": float(self.of("attention.layer_norm_rms_epsilon")),
            "rope_theta": float(self.of("rope.freq_base")),
            "vocab_size": self.of("vocab_size"),
            "tie_word_embeddings": tied,
            "torch_dtype": "float16",
            **self.special_tokens(),
        }


def _hugging_face_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    _, number, part, suffix = name.split(".")
    return f"model.layers.{number}.{_LAYER[part]}.{suffix}"


def _halves_from_pairs(weight: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Undo llama.cpp's row order: it rotates neighbouring pairs, Hugging Face rotates halves."""
    rows, columns = weight.shape
    return (
        weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )
