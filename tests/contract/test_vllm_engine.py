"""The real vLLM, on CPU: the contract, and what only a real engine does.

The last files of the folder by name that need the session's engine: here it is killed.
"""

import asyncio
import multiprocessing
import os
import signal

import pytest

from cp_ray.config import AppConfig
from cp_ray.core.packed import packed
from cp_ray.core.types import RequestId
from cp_ray.errors import ConfigError, EngineError, EngineGone, InvalidRequest
from cp_ray.workers.engine import EngineRequest, Sampling
from cp_ray.workers.vllm_engine import VllmEngine
from tests.contract import real_engine, suite

real_engine.only("vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
def test_contract(loop, subject, check):
    loop.run(check(subject))


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [((5, 6), Sampling(top_p=2.0)), ((5, 6), Sampling(temperature=-1)), ((5, 10**7), Sampling())],
)
def test_what_vllm_refuses_is_the_callers_fault(loop, subject, prompt, sampling):
    async def run() -> None:
        with pytest.raises(InvalidRequest, match="vLLM refuses"):
            await suite.answer(subject, EngineRequest(RequestId("bad"), packed(prompt), sampling))
        await subject.engine.check_health()

    loop.run(run())


def test_it_tells_what_it_takes_into_one_step(subject):
    assert subject.info.step_tokens >= subject.page


def test_a_stopped_engine_process_gives_no_sign_of_life(loop, subject):
    async def run() -> None:
        (core,) = multiprocessing.active_children()
        assert core.pid is not None
        os.kill(core.pid, signal.SIGSTOP)
        asked = asyncio.create_task(subject.engine.ping())
        done, _ = await asyncio.wait({asked}, timeout=2)
        os.kill(core.pid, signal.SIGCONT)
        assert not done
        await asyncio.wait_for(asked, suite.PATIENCE_S)
        assert await suite.answer(subject, suite.request(suite.tokens(40)))

    loop.run(run())


def test_a_dead_engine_fails_its_requests_and_its_health_check(loop, subject):
    async def run() -> None:
        stream = subject.engine.generate(suite.request(suite.tokens(40), max_tokens=1500))
        await anext(stream)
        for process in multiprocessing.active_children():
            process.kill()
        with pytest.raises(EngineGone):  # not any error: another replica can serve it
            async for _ in stream:
                pass
        with pytest.raises(EngineGone):
            await suite.answer(subject, suite.request(suite.tokens(40)))
        with pytest.raises(EngineError):
            await subject.engine.check_health()
        with pytest.raises(EngineError):
            await subject.engine.ping()

    loop.run(run())


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"enable_prefix_caching": False}, "nothing to reuse"),
        ({"data_parallel_size": 2}, "replicas="),
        ({"max_model_len": 100}, "max_model_len="),
        ({"no_such_argument": 1}, "no_such_argument"),
    ],
)
def test_settings_that_break_the_contract_are_refused_with_the_reason(kwargs, said):
    engine = VllmEngine(AppConfig(model="tiny", engine_kwargs=kwargs))
    with pytest.raises(ConfigError, match=said):
        asyncio.run(engine.start(suite.Ear()))
