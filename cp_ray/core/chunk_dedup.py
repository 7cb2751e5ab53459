"""De-duplication of parts of a block, spans that other texts hold ("partial overlap", paper 1).

A span that an earlier text holds word for word is replaced by a pointer that names the text by
label and quotes the span's first and last words:

    [Doc river lamp: "It was later revealed" to "the rest of the season."]

The quotes find exactly the span in the text named, so pointers can be expanded to the bytes that
they replace. Spans are found by content-defined anchors (runs of words whose digest is a multiple
of a number, so equal texts have equal anchors wherever they stand) and then made as long as they
go; a change in one place costs the words around it, not the rest of the block.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

RUN_WORDS = 6
"""Words of an anchor; no shorter span is found."""
ONE_IN = 4
"""One run in so many is an anchor; a span of 30 equal words has one in 999 cases of 1,000."""
_PLACES = 4
"""Places remembered for one anchor: boilerplate must not make the search slow."""
_QUOTE_WORDS = (3, 4, 5, 6, 8, 10)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_STEP = 256
"""Characters compared at a time."""
_WORD = re.compile(r"\S+")
_POINTER = re.compile(r'\[Doc ([a-z]+ [a-z]+): "([^"]*)" to "([^"]*)"\]')


class Source(msgspec.Struct, frozen=True):
    """A text that stands in the prompt already, as it is sent. anchors: of `anchors(text)`."""

    label: str
    text: str
    anchors: tuple[tuple[int, int], ...]


class Shortened(msgspec.Struct, frozen=True):
    """text: with pointers. pointers: [start, end) of each in it, in order."""

    text: str
    pointers: tuple[tuple[int, int], ...]


class _Span(msgspec.Struct, frozen=True):
    start: int
    end: int
    pointer: str


def anchors(text: str) -> tuple[tuple[int, int], ...]:
    """(digest, place) of the runs of words that every other text with them chooses, too."""
    words = list(_WORD.finditer(text))
    runs = len(words) - RUN_WORDS + 1
    if runs < 1:
        return ()
    digests = np.fromiter((zlib.crc32(word[0].encode()) for word in words), np.uint64, len(words))
    mixed = np.zeros(runs, np.uint64)
    for place in range(RUN_WORDS):
        mixed = mixed * _FACTOR + digests[place : place + runs]
    # The low bits of a product are poorly mixed; the high ones are not.
    chosen = np.flatnonzero((mixed >> np.uint64(40)) % np.uint64(ONE_IN) == 0)
    return tuple((int(mixed[place]), words[place].start()) for place in chosen.tolist())


def make_source(label: str, text: str) -> Source:
    """A source from its text; keep it, because finding anchors is the slow part."""
    return Source(label, text, anchors(text))


class ChunkDedup:
    """Shortens texts against sources. Add a source only when it stands in full in the prompt.

    count: tokens of a text. least: tokens that a pointer must save.
    """

    def __init__(self, count: Callable[[str], int], least: int) -> None:
        self._count = count
        self._least = least
        self._sources: list[Source] = []
        self._places: dict[int, list[tuple[int, int]]] = {}
        self._named: dict[str, str] = {}
        self._unclear: set[str] = set()

    def add(self, source: Source) -> None:
        """Let later texts point at this one; at none of two that have one label."""
        if source.label in self._named:
            if source.text != self._named[source.label]:
                self._unclear.add(source.label)
            return
        self._named[source.label] = source.text
        number = len(self._sources)
        self._sources.append(source)
        for digest, place in source.anchors:
            places = self._places.setdefault(digest, [])
            if len(places) < _PLACES:
                places.append((number, place))

    def shorten(self, text: str) -> Shortened:
        """Replace what sources hold; the text as it is where nothing saves enough."""
        if not self._places or _POINTER.search(text):
            return Shortened(text, ())  # a text that holds a pointer of its own stays unambiguous
        parts: list[str] = []
        pointers: list[tuple[int, int]] = []
        done = length = 0
        for span in self._spans(text):
            length += span.start - done
            parts += [text[done : span.start], span.pointer]
            pointers.append((length, length + len(span.pointer)))
            length += len(span.pointer)
            done = span.end
        return Shortened("".join([*parts, text[done:]]), tuple(pointers))

    def _spans(self, text: str) -> Iterator[_Span]:
        done = 0
        for digest, place in anchors(text):
            if place < done:
                continue
            longest = max(
                (self._extend(text, place, done, *found) for found in self._found(digest)),
                key=lambda match: match[1] - match[0],
                default=None,
            )
            if longest is None:
                continue
            start, end, number, at = longest
            span = self._point(text, start, end, self._sources[number], at)
            if span is not None:
                yield span
                done = span.end

    def _found(self, digest: int) -> Iterator[tuple[int, int]]:
        for number, at in self._places.get(digest, ()):
            if self._sources[number].label not in self._unclear:
                yield number, at

    def _extend(
        self, text: str, place: int, done: int, number: int, at: int
    ) -> tuple[int, int, int, int]:
        """The equal span around two equal anchors, whole words: start, end, source, its start."""
        source = self._sources[number].text
        back = _back(text, place, source, at, place - done)
        ahead = _ahead(text, place, source, at)
        start, end = place - back, place + ahead
        shift = at - place
        while start < place and not _border(text, source, start, start + shift):
            start += 1
        while end > place and not _border(text, source, end, end + shift):
            end -= 1
        # A digest that two texts share by chance gives an empty span.
        return start, max(start, end), number, start + shift

    def _point(self, text: str, start: int, end: int, source: Source, at: int) -> _Span | None:
        words = [(w.start(), w.end()) for w in _WORD.finditer(text, start, end)]
        if len(words) < RUN_WORDS:
            return None
        quotes = _quotes(text, words, source.text, at + words[0][0] - start)
        if quotes is None:
            return None
        start, end = words[0][0], words[-1][1]
        pointer = f'[Doc {source.label}: "{quotes[0]}" to "{quotes[1]}"]'
        saved = self._count(text[start:end]) - self._count(pointer)
        return _Span(start, end, pointer) if saved >= self._least else None


def expand(shortened: Shortened, sources: Sequence[Source]) -> str:
    """The text before it was shortened, from the pointers' words alone.

    sources: the prompt's texts by label, as sent. Raises ValueError where a pointer leads nowhere.
    """
    texts = {source.label: source.text for source in reversed(sources)}
    parts, done = [], 0
    for start, end in shortened.pointers:
        match = _POINTER.fullmatch(shortened.text[start:end])
        if match is None or match[1] is None:
            raise ValueError(f"no pointer at {start}")
        label, head, tail = match.groups()
        first = texts[label].index(head)
        last = texts[label].index(tail, first) + len(tail)
        parts += [shortened.text[done:start], texts[label][first:last]]
        done = end
    return "".join([*parts, shortened.text[done:]])


def _quotes(
    text: str, words: Sequence[tuple[int, int]], source: str, at: int
) -> tuple[str, str] | None:
    """First and last words of a span, as few as find it in `source` and nothing else."""
    start, end = words[0][0], words[-1][1]
    head = tail = None
    for count in _QUOTE_WORDS:
        if 2 * count > len(words):
            break
        if head is None:
            candidate = text[start : words[count - 1][1]]
            if '"' not in candidate and source.find(candidate) == at:
                head = candidate
        if tail is None:
            candidate = text[words[-count][0] : end]
            found = source.find(candidate, at)
            if '"' not in candidate and found + len(candidate) == at + end - start:
                tail = candidate
    return None if head is None or tail is None else (head, tail)


def _ahead(left: str, start: int, right: str, at: int) -> int:
    """Length of the common text from there on."""
    common = 0
    while True:
        one = left[start + common : start + common + _STEP]
        two = right[at + common : at + common + _STEP]
        if one != two or not one:
            return common + _differ(one, two)
        common += len(one)


def _back(left: str, start: int, right: str, at: int, most: int) -> int:
    """Length of the common text that ends there, at most `most`."""
    common = 0
    while common < most:
        size = min(_STEP, start - common, at - common, most - common)
        one = left[start - common - size : start - common]
        two = right[at - common - size : at - common]
        if one != two or not one:
            return common + _differ(one[::-1], two[::-1])
        common += size
    return common


def _differ(one: str, two: str) -> int:
    pairs = zip(one, two, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(two)))


def _border(text: str, source: str, at: int, source_at: int) -> bool:
    """Whether a word can begin or end here in both texts."""
    return all(
        place in (0, len(one)) or one[place].isspace() or one[place - 1].isspace()
        for one, place in ((text, at), (source, source_at))
    )
