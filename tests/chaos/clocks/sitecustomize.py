"""Loaded by the interpreter of every process of the chaos suite: sets its clock, hangs its engine.

Python asks this module's `time.time`; the kernel's clock, which nobody but root may set, goes on.
The file CP_RAY_CLOCKS holds one float64 per process id: seconds that its clock is ahead.
A simulated engine whose process' byte in the file CP_RAY_HUNG is not zero does nothing more: its
replica goes on, as one does whose engine waits for a driver.
"""

import importlib.abc
import importlib.machinery
import os
import struct
import sys
import time

_real = time.time
_path = os.environ.get("CP_RAY_CLOCKS")
if _path:
    _file = os.open(_path, os.O_RDONLY)

    def _set() -> float:
        (ahead,) = struct.unpack("d", os.pread(_file, 8, 8 * os.getpid()))
        return _real() + ahead

    time.time = _set

_ENGINE = "cp_ray.workers.simulated_engine"


def _hang(module) -> None:
    import asyncio

    engine, file = module.SimulatedEngine, os.open(os.environ["CP_RAY_HUNG"], os.O_RDONLY)
    sleep_until, ping = engine._sleep_until, engine.ping

    async def while_hung() -> None:
        while os.pread(file, 1, os.getpid()) not in (b"", b"\0"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def hung_sleep(moment) -> None:
        await sleep_until(moment)
        await while_hung()

    async def hung_ping(self) -> None:
        await while_hung()
        await ping(self)

    engine._sleep_until = staticmethod(hung_sleep)
    engine.ping = hung_ping


class _Loader(importlib.abc.Loader):
    def __init__(self, loader) -> None:
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module) -> None:
        self._loader.exec_module(module)
        _hang(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != _ENGINE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


if os.environ.get("CP_RAY_HUNG"):
    sys.meta_path.insert(0, _Finder())
