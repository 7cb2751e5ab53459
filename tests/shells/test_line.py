"""The line to the index: frames in any pieces, strangers, those that stall, breaks, bounds."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from cp_ray.errors import WireError
from cp_ray.index_actor import line as module
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


Test = Callable[[Index, Line], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    """Runs a test on the loop of tests, and on Ray's and Serve's."""
    loop = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def running(test: Test) -> None:
        async def main() -> None:
            index = Index()
            where = await index.lines.where()
            assert where is not None
            assert await index.lines.where() == where, "it is opened once"
            line = await Line.connect(*where)
            assert line is not None
            async with asyncio.timeout(5):
                await test(index, line)
                line.abort()
                await until(lambda: not line.open and not index.lines.open)

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main())

    return running


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - other callbacks of this loop make it true
        await asyncio.sleep(0.001)


class Impatient(Line):
    """Says its secret and does not wait to be let in."""

    async def dial(self, address: str) -> None:
        near = socket.socket(socket.AF_UNIX)
        near.setblocking(False)
        near.connect(address)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=near)


async def another(index: Index, secret: bytes | None = None) -> Line:
    where = await index.lines.where()
    assert where is not None
    line = await Line.connect(where[0], where[1] if secret is None else secret)
    assert line is not None
    return line


def test_calls_under_way_together_each_get_their_own_answer(run: Callable[[Test], None]) -> None:
    async def test(index: Index, line: Line) -> None:
        calls = [line.plan(b"%d" % n * (n * 1000), float(n), b"h%d" % n) for n in range(1, 40)]
        answers = await asyncio.gather(*calls)
        for n, answer in enumerate(answers, 1):
            assert answer == b"%d" % n * (n * 1000) + str(float(n)).encode()
        assert index.heard == [b"h%d" % n for n in range(1, 40)]
        line.hear(b"alone")
        await line.plan(b"", 0.0, b"")
        assert index.heard[-1] == b"alone"
        assert index.lines.counters() == {"plans_by_line": 40}

    run(test)


def test_a_stranger_is_shown_the_door_before_it_is_read(run: Callable[[Test], None]) -> None:
    async def test(index: Index, line: Line) -> None:
        where = await index.lines.where()
        assert where is not None
        assert await Line.connect(where[0], b"x" * 16) is None
        wrong = Impatient(b"x" * 16)
        await wrong.dial(where[0])
        with pytest.raises(WireError):
            await wrong.plan(b"secret?", 0.0, b"lie")
        assert index.heard == []
        assert await line.plan(b"a", 1.0, b"") == b"a1.0", "others do not notice"

    run(test)


def test_another_user_is_shown_the_door(
    run: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(index: Index, line: Line) -> None:
        await line.plan(b"", 0.0, b"")  # it is let in
        me = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: me + 1)
        assert await Line.connect(*(await index.lines.where() or ("", b""))) is None
        assert await line.plan(b"a", 1.0, b"") == b"a1.0"

    run(test)


def test_who_opens_lines_and_says_nothing_holds_none_for_long(
    run: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECRET_S", 0.05)
    monkeypatch.setattr(module, "MOST_LINES", 4)

    async def test(index: Index, line: Line) -> None:
        await line.plan(b"", 0.0, b"")  # known, so it stays
        where = await index.lines.where()
        assert where is not None
        silent = [asyncio.ensure_future(Line.connect(where[0], b"")) for _ in range(6)]
        await until(lambda: sum(one.done() for one in silent) >= 3)
        assert len(index.lines.open) <= 4
        assert await asyncio.gather(*silent) == [None] * 6
        assert await line.plan(b"a", 1.0, b"") == b"a1.0"
        late = await another(index)
        assert await late.plan(b"b", 1.0, b"") == b"b1.0", "there is room again"
        late.abort()

    run(test)


def test_a_fault_there_breaks_the_line_and_fails_what_is_under_way(
    run: Callable[[Test], None],
) -> None:
    async def test(index: Index, line: Line) -> None:
        first, second = await asyncio.gather(
            line.plan(b"fault", 0.0, b""), line.plan(b"fine", 0.0, b""), return_exceptions=True
        )
        assert isinstance(first, WireError)
        assert isinstance(second, WireError)
        assert not line.open
        with pytest.raises(WireError, match="closed"):
            await line.plan(b"late", 0.0, b"")
        with pytest.raises(WireError, match="closed"):
            line.hear(b"late")

    run(test)


def test_frames_come_whole_however_they_are_cut(run: Callable[[Test], None]) -> None:
    async def test(index: Index, line: Line) -> None:
        transport, cut = line.transport, bytearray()
        assert transport is not None

        class Slow:
            def write(self, data: bytes) -> None:
                cut.extend(data)

            def is_closing(self) -> bool:
                return False

            def get_write_buffer_size(self) -> int:
                return 0

        line.transport = Slow()  # type: ignore[assignment]
        calls = [asyncio.ensure_future(line.plan(b"abc" * n, 1.0, b"h")) for n in range(5)]
        await asyncio.sleep(0)
        for byte in bytes(cut):
            transport.write(bytes([byte]))
            await asyncio.sleep(0)
        line.transport = transport
        assert await asyncio.gather(*calls) == [b"abc" * n + b"1.0" for n in range(5)]

    run(test)


def test_an_index_that_does_not_read_fills_no_memory(
    run: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(index: Index, line: Line) -> None:
        await line.plan(b"", 0.0, b"")
        monkeypatch.setattr(module, "MOST_BYTES", 1 << 20)
        (there,) = index.lines.open
        assert there.transport is not None
        there.transport.pause_reading()
        with pytest.raises(WireError, match=r"does not read|closed"):
            for _ in range(64):
                line.hear(bytes(1 << 18))
        there.transport.abort()

    run(test)


def test_a_frame_beyond_the_limit_closes_the_line(
    run: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(index: Index, line: Line) -> None:
        monkeypatch.setattr(module, "MOST_BYTES", 1000)
        with pytest.raises(WireError):
            await line.plan(bytes(2000), 0.0, b"")
        assert index.lines.counters() == {"plans_by_line": 0}

    run(test)


def test_without_an_index_at_the_address_there_is_no_line() -> None:
    assert asyncio.run(Line.connect("\0cp-ray-nobody", b"x" * 16)) is None


def test_a_socket_that_cannot_be_opened_is_tried_again() -> None:
    async def main() -> None:
        index = Index()
        taken = socket.socket(socket.AF_UNIX)
        taken.bind(index.lines._address)
        assert await index.lines.where() is None, "and nothing is raised"
        taken.close()
        assert await index.lines.where() is not None

    asyncio.run(main())


def test_connecting_to_an_index_that_takes_nobody_does_not_wait() -> None:
    async def main() -> None:
        full = socket.socket(socket.AF_UNIX)
        full.bind("\0cp-ray-full")
        full.listen(0)  # the kernel keeps one or two, then connecting would wait
        async with asyncio.timeout(2):
            lines = [Line.connect("\0cp-ray-full", b"x" * 16) for _ in range(5)]
            done, waiting = await asyncio.wait(map(asyncio.ensure_future, lines), timeout=0.2)
        assert all(one.result() is None for one in done)
        assert 0 < len(done) < 5, "some wait to be let in: who asks gives them a time limit"
        for one in waiting:
            one.cancel()
        full.close()

    asyncio.run(main())
