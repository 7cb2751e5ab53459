"""Where the simulated engine's times come from."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from cp_ray.config import AppConfig
from cp_ray.core.packed import packed
from cp_ray.core.prefill_curve import PrefillCurve, Sample, fit
from cp_ray.core.types import Eviction, RequestId
from cp_ray.errors import ConfigError
from cp_ray.workers import prefill_times
from cp_ray.workers.engine import EngineInfo, EngineRequest, Sampling
from cp_ray.workers.prefill_times import FOLDER, CurveFile, pace_of, read_curve
from cp_ray.workers.simulated_engine import SimulatedEngine


class _Deaf:
    def evicted(self, evictions: list[Eviction]) -> None:
        """Nothing."""

    def new_epoch(self) -> None:
        """Nothing."""


CURVE = PrefillCurve(0.1, 1e-3, 0.0, 1e-6)


def written(folder: Path, name: str, curve: PrefillCurve = CURVE) -> CurveFile:
    samples = tuple(Sample(c, n, curve.seconds(c, n)) for c in (0, 500) for n in (100, 200))
    made = CurveFile(
        "a device", "a model", {"vllm": "0"}, "2026-01-01", "it", "wall", 0.0, curve, 0.07, samples
    )
    (folder / f"{name}.json").write_bytes(msgspec.json.encode(made))
    return made


def test_a_device_that_was_measured_is_simulated_by_its_curve(tmp_path, monkeypatch):
    monkeypatch.setattr(prefill_times, "FOLDER", tmp_path)
    made = written(tmp_path, "here")
    pace = pace_of(AppConfig(engine="simulated", simulated_device="here"))
    assert pace.curve == made.curve
    for said in ("a device", "a model", "2026-01-01", "7.0%", "700 tokens"):
        assert said in pace.source


def test_the_default_device_is_used_once_it_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(prefill_times, "FOLDER", tmp_path)
    config = AppConfig(engine="simulated")
    assert "assumed 20000 tokens/s" in pace_of(config).source
    made = written(tmp_path, config.simulated_device)
    assert pace_of(config).curve == made.curve


def test_a_rate_that_is_set_wins(tmp_path, monkeypatch):
    monkeypatch.setattr(prefill_times, "FOLDER", tmp_path)
    written(tmp_path, "here")
    config = AppConfig(engine="simulated", simulated_device="here", prefill_tokens_per_s=500)
    assert pace_of(config).curve.seconds(4000, 1000) == pytest.approx(2.0)
    assert "prefill_tokens_per_s=500" in pace_of(config).source


def test_the_simulated_engine_takes_its_curves_time_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(prefill_times, "FOLDER", tmp_path)
    written(tmp_path, "here", PrefillCurve(0.05, 1e-4, 0.0, 1e-6))

    async def first_token_after() -> tuple[EngineInfo, list[float]]:
        engine = SimulatedEngine(AppConfig(engine="simulated", simulated_device="here"))
        info = await engine.start(_Deaf())
        times = []
        for name, prompt in (("a", range(1600)), ("b", range(2000))):
            began = time.monotonic()
            sampling = Sampling(max_tokens=1)
            request = EngineRequest(RequestId(name), packed(prompt), sampling)
            async for _ in engine.generate(request):
                pass
            times.append(time.monotonic() - began)
        return info, times

    info, (cold, behind) = asyncio.run(first_token_after())
    assert "a device" in info.timing
    # 0.05 + 1,600 x 1e-4, then 0.05 + 400 x (1e-4 + 1,600 x 1e-6).
    assert cold >= 0.21
    assert behind >= 0.73


def test_a_folder_is_no_device_name(tmp_path):
    assert read_curve("../curves/none") is None


def test_a_data_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(prefill_times, "FOLDER", tmp_path)
    (tmp_path / "here.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"here\.json.*measure it again"):
        read_curve("here")


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.json")), ids=lambda file: file.stem)
def test_every_data_file_holds_the_fit_of_its_own_samples(file):
    made = read_curve(file.stem)
    assert made is not None
    fitted = fit(made.samples)
    assert made.p90_relative_error == pytest.approx(fitted.p90_relative_error, rel=1e-6)
    for sample in made.samples:
        expected = fitted.curve.seconds(sample.cached, sample.new)
        assert made.curve.seconds(sample.cached, sample.new) == pytest.approx(expected, rel=1e-6)
    assert made.versions
    assert made.date
    assert made.command.startswith("python -m benchmarks.gpu")
