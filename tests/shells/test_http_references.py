"""Names of blocks over HTTP: one sentence ranks what alternates, and no name is of two."""

from collections.abc import Iterator

import pytest

from cp_ray.core import annotation
from cp_ray.core.annotation import label_of
from cp_ray.core.prompt import content_of
from tests.shells.conversation_support import A, B, C, Chat, count
from tests.shells.http_support import Bench, running


@pytest.fixture
def bench() -> Iterator[Bench]:
    with running(Bench()) as it:
        yield it


def test_repeated_blocks_with_a_new_one_between_are_ranked_in_one_sentence(bench: Bench) -> None:
    chat = Chat(bench, "ranked")
    chat.ask("first?", A, B)
    second = chat.ask("second?", A, C, B)
    assert second["cp_ray"]["repeated"] == ["aa", "bb"]
    assert second["cp_ray"]["order"] == ["cc", "aa", "bb"], "as they stand: the new one first"
    names = [label_of(content_of(None, one["text"])).partition(" ")[0] for one in (A, C, B)]
    assert count(bench, chat.prompt, f"Read by priority: [Docs {' '.join(names)}] of this") == 1
    assert count(bench, chat.prompt, "Please refer to [") == 0
    for document in (A, B, C):
        assert count(bench, chat.prompt, document["text"]) == 1


def test_two_texts_with_one_label_are_not_referred_to(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(annotation, "WORDS", ("oak",))
    chat = Chat(bench, "one label")
    first = chat.ask("first?", A, B)
    assert first["cp_ray"]["order"] == ["aa", "bb"]
    assert chat.ask("second?", A, B)["cp_ray"]["repeated"] == []
    for document in (A, B):
        assert count(bench, chat.prompt, document["text"]) == 2
    alone = Chat(bench, "alone")
    alone.ask("first?", A)
    assert alone.ask("second?", A)["cp_ray"]["repeated"] == ["aa"]
    assert alone.ask("third?", A, B)["cp_ray"]["repeated"] == [], "from now on it is of two"
