"""Trust, row by row, and how often it errs."""

from __future__ import annotations

import pytest

from cp_ray.core.trust import LIMIT, MISMATCH, Trust, TrustLedger
from cp_ray.core.types import ReplicaId

R = ReplicaId("r")


def after(audits: str) -> Trust:
    """`.` is a match, `x` a mismatch."""
    ledger = TrustLedger()
    for audit in audits:
        ledger.audit(R, matches=audit == ".")
        ledger.check()
    return ledger.of(R)


@pytest.mark.parametrize(
    ("audits", "trust"),
    [
        ("", Trust.TRUSTED),
        ("....", Trust.TRUSTED),
        ("x", Trust.SUSPECT),
        ("x" + "." * (MISMATCH - 1), Trust.SUSPECT),
        ("x" + "." * MISMATCH, Trust.TRUSTED),
        ("xx", Trust.SUSPECT),
        ("xxx", Trust.QUARANTINED),
        ("x....x....x", Trust.QUARANTINED),
        ("x....x.....x", Trust.SUSPECT),
        ("xxx" + "." * 1000, Trust.QUARANTINED),
    ],
)
def test_trust_follows_the_table(audits: str, trust: Trust) -> None:
    assert after(audits) is trust


def test_one_that_began_anew_is_trusted_and_others_are_not_judged_with_it() -> None:
    ledger = TrustLedger()
    for _ in range(3):
        ledger.audit(R, matches=False)
    assert ledger.of(ReplicaId("other")) is Trust.TRUSTED
    ledger.restore(R)
    ledger.restore(R)
    assert ledger.of(R) is Trust.TRUSTED
    ledger.check()


def quarantine_chance(p: float, audits: int) -> float:
    """Exact, by the distribution of doubt."""
    doubt = {0: 1.0}
    gone = 0.0
    for _ in range(audits):
        after_one: dict[int, float] = {}
        for level, chance in doubt.items():
            for following, share in ((max(level - 1, 0), 1 - p), (level + MISMATCH, p)):
                if following >= LIMIT:
                    gone += chance * share
                else:
                    after_one[following] = after_one.get(following, 0.0) + chance * share
        doubt = after_one
    return gone


def test_false_alarms_are_as_rare_as_the_docstring_says() -> None:
    for p in (0.0003, 0.001, 0.002):
        rate = quarantine_chance(p, 2000) / 2000
        assert 30 * p**3 < rate < 60 * p**3


def test_faults_are_found_within_fifty_requests() -> None:
    assert quarantine_chance(0.2, 50) > 0.95
    assert quarantine_chance(1.0, 3) == 1.0
