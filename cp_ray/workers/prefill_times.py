"""How long a simulated prefill takes: a measured curve of its device, or a rate that is assumed.

Curves are data files in `curves/`, written by `python -m benchmarks.gpu curve` from a real engine,
with their samples: device, versions, date and command are part of each.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cp_ray.config import AppConfig
from cp_ray.core.prefill_curve import PrefillCurve, Sample
from cp_ray.errors import ConfigError

FOLDER = Path(__file__).parent / "curves"
ASSUMED_TOKENS_PER_S = 20_000.0


class CurveFile(msgspec.Struct, frozen=True):
    """A measured curve and where it comes from.

    clock: "wall", or "cpu" where other programs ran beside and only the engine's own time counts.
    load_average: of the machine's last minute when the measurement ended.
    """

    device: str
    model: str
    versions: dict[str, str]
    date: str
    command: str
    clock: str
    load_average: float
    curve: PrefillCurve
    p90_relative_error: float
    samples: tuple[Sample, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest measured prompt; beyond it the curve is a guess."""
        return max(sample.cached + sample.new for sample in self.samples)


class Pace(msgspec.Struct, frozen=True):
    """Times of the simulated engine. source: what they are, said to whoever reads its figures."""

    curve: PrefillCurve
    source: str


def pace_of(config: AppConfig) -> Pace:
    """The rate that is set; else the device's measured curve; else a rate that is assumed."""
    if config.prefill_tokens_per_s is not None:
        rate = config.prefill_tokens_per_s
        return Pace(_at(rate), f"prefill_tokens_per_s={rate:g}")
    measured = read_curve(config.simulated_device)
    if measured is None:
        return Pace(
            _at(ASSUMED_TOKENS_PER_S),
            f"assumed {ASSUMED_TOKENS_PER_S:g} tokens/s: no curve of {config.simulated_device} "
            "has been measured",
        )
    return Pace(
        measured.curve,
        f"measured on {measured.device}, {measured.model}, {measured.date}; 9 of 10 samples "
        f"within {measured.p90_relative_error:.1%}, prompts up to {measured.longest} tokens",
    )


def read_curve(name: str) -> CurveFile | None:
    """The curve of a device, or None where none was measured. ConfigError when it is unreadable."""
    file = FOLDER / f"{name}.json"
    if Path(name).name != name or not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=CurveFile)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{file}: {error}; measure it again", param="simulated_device") from error


def _at(tokens_per_s: float) -> PrefillCurve:
    return PrefillCurve(0.0, 1 / tokens_per_s, 0.0, 0.0)
