"""A bar for work that one call does from end to end, seen when it takes above a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

EVERY_S = 0.2


@contextmanager
def watched(title: str, total: int) -> Iterator[npt.NDArray[np.int64]]:
    """A counter of shape (1,) that a thread shows against `total`, on a terminal only."""
    done = np.zeros(1, np.int64)
    ended = Event()
    with tqdm(total=total, desc=title, disable=None, delay=1) as bar:

        def show() -> None:
            while not ended.wait(EVERY_S):
                bar.update(int(done[0]) - bar.n)

        watcher = Thread(target=show, daemon=True)
        watcher.start()
        try:
            yield done
        finally:
            ended.set()
            watcher.join()
            bar.update(int(done[0]) - bar.n)
