import pytest

from cp_ray.demo.chaos import main


@pytest.mark.chaos
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_every_request_is_answered_while_replica_index_and_redis_die(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = main(["--engine", "simulated", "--rounds", "1", "--seed", "1"])
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert "0 faults" in shown
