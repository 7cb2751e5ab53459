"""The line between Router and index: frames in any pieces, strangers, breaks, and its speed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cp_ray.errors import WireError
from cp_ray.index_actor.line import Line, Lines


class Index:
    """Echoes; remembers what it heard."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.lines = Lines(self.plan, self.heard.append)

    def plan(self, payload: bytes, deadline: float, heard: bytes) -> bytes:
        if heard:
            self.heard.append(heard)
        if payload == b"fault":
            raise ValueError(payload)
        return payload + str(deadline).encode()


def run(test: Callable[[Index, Line, list[str]], Awaitable[None]]) -> None:
    async def main() -> None:
        index, lost = Index(), list[str]()
        where = await index.lines.where()
        assert where is not None
        assert await index.lines.where() == where, "it is opened once"
        line = await Line.connect(*where, lost=lost.append)
        assert line is not None
        async with asyncio.timeout(5):
            await test(index, line, lost)
        line.close()
        await asyncio.sleep(0.01)
        assert not line.open

    asyncio.run(main())


def test_calls_under_way_together_each_get_their_own_answer() -> None:
    async def test(index: Index, line: Line, lost: list[str]) -> None:
        calls = [line.plan(b"%d" % n * (n * 1000), float(n), b"h%d" % n) for n in range(1, 40)]
        answers = await asyncio.gather(*calls)
        for n, answer in enumerate(answers, 1):
            assert answer == b"%d" % n * (n * 1000) + str(float(n)).encode()
        assert index.heard == [b"h%d" % n for n in range(1, 40)]
        line.hear(b"alone")
        await line.plan(b"", 0.0, b"")
        assert index.heard[-1] == b"alone"
        assert lost == []

    run(test)


def test_a_stranger_is_shown_the_door_before_it_is_read() -> None:
    async def test(index: Index, line: Line, lost: list[str]) -> None:
        where = await index.lines.where()
        assert where is not None
        wrong = await Line.connect(where[0], b"x" * 16, lost=lost.append)
        assert wrong is not None
        wrong.hear(b"lie")
        with pytest.raises(WireError):
            await wrong.plan(b"secret?", 0.0, b"")
        assert index.heard == []
        assert len(lost) == 1
        assert await line.plan(b"a", 1.0, b"") == b"a1.0", "others do not notice"

    run(test)


def test_a_fault_there_breaks_the_line_and_fails_what_is_under_way() -> None:
    async def test(index: Index, line: Line, lost: list[str]) -> None:
        first, second = await asyncio.gather(
            line.plan(b"fault", 0.0, b""), line.plan(b"fine", 0.0, b""), return_exceptions=True
        )
        assert isinstance(first, WireError)
        assert isinstance(second, WireError)
        assert len(lost) == 1 and not line.open
        with pytest.raises(WireError, match="closed"):
            await line.plan(b"late", 0.0, b"")

    run(test)


def test_frames_come_whole_however_they_are_cut() -> None:
    async def test(index: Index, line: Line, lost: list[str]) -> None:
        transport = line.transport
        assert transport is not None
        real, cut = transport.write, bytearray()

        class Slow:
            def write(self, data: bytes) -> None:
                cut.extend(data)

        line.transport = Slow()  # type: ignore[assignment]
        calls = [asyncio.ensure_future(line.plan(b"abc" * n, 1.0, b"h")) for n in range(5)]
        await asyncio.sleep(0)
        for byte in bytes(cut):
            real(bytes([byte]))
            await asyncio.sleep(0)
        line.transport = transport
        assert await asyncio.gather(*calls) == [b"abc" * n + b"1.0" for n in range(5)]

    run(test)


def test_without_an_index_at_the_address_there_is_no_line() -> None:
    async def main() -> None:
        assert await Line.connect("\0cp-ray-nobody", b"x" * 16, lost=print) is None

    asyncio.run(main())
