"""Results of a batch: a journal while it runs, the file in the order of the input at the end.

The journal (`OUTPUT.partial`) gets one line for each answer as it comes, so a killed run has lost
no more than what was in flight. Its first line names the input by digest. A lock on it keeps two
runs from writing the same output.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from cp_ray.errors import ConfigError

Json = dict[str, Any]


class _Line(msgspec.Struct, frozen=True):
    """Where an answer stands in the journal, and what became of it."""

    start: int
    end: int
    success: bool
    final: bool


class Results:
    """Open it in a `with`; `done` says what need not be sent again.

    input_digest: of the requests. ids: of all of them, in the order of the input.
    """

    def __init__(self, output: Path, input_digest: str, ids: Sequence[str]) -> None:
        self.output = output
        self.journal = output.with_name(output.name + ".partial")
        self._ids = ids
        self._digest = input_digest
        self._lines: dict[str, _Line] = {}
        self._end = 0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Raises ConfigError when the output cannot be written, or is another input's."""
        if self.output.exists() and not self.journal.exists():
            self._check_complete()
            return self
        try:
            self._file = self.journal.open("a+b")
        except OSError as error:
            raise ConfigError(f"{self.output}: cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read_journal(self._file)
        except OSError as error:
            self._file.close()
            raise ConfigError(
                f"{self.output}: another run writes it: wait, or choose another output"
            ) from error
        except ConfigError:
            self._file.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def done(self) -> frozenset[str]:
        """Ids with a final answer: success, or a refusal that a repetition would not change."""
        return frozenset(name for name, line in self._lines.items() if line.final)

    def add(self, answer: Json) -> None:
        """Keep one answer; a later one for the same id takes its place."""
        if self._file is None:
            raise ConfigError(f"{self.output}: is complete already")
        line = json.dumps(answer).encode() + b"\n"
        self._file.write(line)
        self._file.flush()
        self._note(answer, len(line))

    def finish(self) -> tuple[int, int]:
        """Write the output; how many failed, and how many of them may succeed when sent again.

        The journal stays while there are any of these.
        """
        failed = [name for name in self._ids if not self._lines[name].success]
        open_ = [name for name in failed if not self._lines[name].final]
        if self._file is not None:
            finished = self.output.with_name(self.output.name + ".writing")
            with finished.open("wb") as file:
                for line in (self._lines[name] for name in self._ids):
                    self._file.seek(line.start)
                    file.write(self._file.read(line.end - line.start))
            finished.replace(self.output)
            if not open_:
                self.journal.unlink()
        return len(failed), len(open_)

    def _note(self, answer: Json, length: int) -> None:
        start, self._end = self._end, self._end + length
        line = _Line(start, self._end, is_success(answer), is_final(answer))
        self._lines[answer["custom_id"]] = line

    def _read_journal(self, file: IO[bytes]) -> None:
        file.seek(0)
        for line in file:
            if not line.endswith(b"\n"):
                break  # the run was killed while it wrote: the answer is lost, and sent again
            value = json.loads(line)
            if self._end:
                self._note(value, len(line))
            elif value == {"input": self._digest}:
                self._end = len(line)
            else:
                raise ConfigError(
                    f"{self.journal} is of another input: finish that batch, remove the file, "
                    "or choose another output"
                )
        file.truncate(self._end)
        if not self._end:
            self._end = file.write(json.dumps({"input": self._digest}).encode() + b"\n")
            file.flush()

    def _check_complete(self) -> None:
        try:
            for line in self.output.read_bytes().splitlines(keepends=True):
                self._note(json.loads(line), len(line))
        except (OSError, ValueError, KeyError, TypeError):
            self._lines = {}
        if [*self._lines] != [*self._ids]:
            raise ConfigError(
                f"{self.output} exists and is not the result of this input: remove it, or choose "
                "another output"
            )


def is_success(answer: Json) -> bool:
    """Whether the model answered."""
    response = answer["response"]
    return response is not None and response["status_code"] == 200


def is_final(answer: Json) -> bool:
    """Whether sending it again would end the same: answered, or refused for what it says."""
    response = answer["response"]
    return response is not None and response["status_code"] < 500 and not _busy(response)


def _busy(response: Json) -> bool:
    return response["status_code"] in (408, 429)
