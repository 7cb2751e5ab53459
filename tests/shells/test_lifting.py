"""Documents inside messages: what is one, what is not, and that all else stays byte for byte."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cp_ray.core import annotation
from cp_ray.core.annotation import label_of
from cp_ray.core.prompt import content_of
from cp_ray.router.api import ChatRequest
from cp_ray.router.lifting import LEAST_CHARS, find, lift

LONG = "Refunds are paid within thirty days of the order, to the card that was used to pay for it."
OTHER = "Shipping within the country takes two working days, and a week to every other country."
CALL = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}


def label(text: str) -> str:
    return f"[Doc {label_of(content_of(None, text))}]"


def ask(*messages: tuple[str, str], **more: Any) -> ChatRequest:
    given_messages = [{"role": role, "content": content} for role, content in messages]
    return ChatRequest.model_validate({"model": "m", "messages": given_messages, **more})


def lifted(request: ChatRequest, most: int = 9) -> tuple[list[str], list[str]]:
    done = lift(request, lambda _: False, most=most, longest=1 << 20)
    return [d.text for d in done.documents], [m.content for m in done.messages]


def test_elements_keep_their_attributes_and_the_words_around_them() -> None:
    text = f'Use this:\n<document index="1" source="a.txt">\n{LONG}\n</document>\nWhen is it paid?'
    documents, (content,) = lifted(ask(("user", text)))
    assert documents == [f"\n{LONG}\n"]
    name = label(f"\n{LONG}\n")
    assert content == (
        f'Use this:\n<document index="1" source="a.txt">{name}</document>\nWhen is it paid?'
    )


def test_of_a_document_with_parts_only_the_content_moves() -> None:
    text = (
        f"<documents><document index='2'><source>b.txt</source>"
        f"<document_content>{LONG}</document_content></document></documents> why?"
    )
    documents, (content,) = lifted(ask(("user", text)))
    assert documents == [LONG]
    assert content == text.replace(LONG, label(LONG))


RESULTS: list[tuple[str, Any]] = [
    ("list", [{"title": "a", "text": LONG}, {"title": "b", "text": OTHER}]),
    ("results", {"query": "q", "results": [{"url": "u", "content": LONG}], "took": 3}),
    ("elasticsearch", {"hits": {"total": 1, "hits": [{"_id": "1", "_source": {"text": LONG}}]}}),
    ("web", {"web": {"results": [{"url": "u", "snippet": LONG, "age": None}]}}),
]


@pytest.mark.parametrize(("name", "value"), RESULTS, ids=[name for name, _ in RESULTS])
def test_search_results_keep_every_other_byte(name: str, value: Any) -> None:
    text = json.dumps(value, indent=1 if name == "list" else None, ensure_ascii=False)
    documents, (_, content) = lifted(ask(("user", "q"), ("tool", text)))
    assert documents == ([LONG, OTHER] if name == "list" else [LONG])
    expected = text
    for document in documents:
        expected = expected.replace(json.dumps(document), json.dumps(label(document)))
    assert content == expected
    json.loads(content)


NOT_RESULTS = {
    "words": LONG,
    "a number": "42",
    "broken JSON": json.dumps([{"title": "a", "text": LONG}])[:-1],
    "an object that is no list of results": json.dumps({"title": "a", "text": LONG}),
    "a list of strings": json.dumps([LONG, OTHER]),
    "an unknown list": json.dumps({"files": [{"path": "p", "text": LONG}]}),
    "nothing that names it": json.dumps([{"text": LONG}]),
    "two texts": json.dumps([{"id": 1, "text": LONG, "content": OTHER}]),
    "too short": json.dumps([{"id": 1, "text": "short"}]),
    "text that is no text": json.dumps([{"id": 1, "text": {"a": LONG}}]),
    "mixed list": json.dumps([{"id": 1, "text": LONG}, 3]),
    "an element that does not end": f"<document>{LONG}",
    "another element": f"<documents>{LONG}</documents>",
    "elements within another": f"<document><document>{LONG}</document></document>",
    "nested too deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", NOT_RESULTS.values(), ids=list(NOT_RESULTS))
def test_what_is_not_a_result_is_never_moved(text: str) -> None:
    request = ask(("user", "q"), ("tool", text))
    assert lift(request, lambda _: False, most=9, longest=1 << 20) == request


def test_only_users_and_tools_bring_documents_and_users_no_json() -> None:
    text = f"<document>{LONG}</document>"
    request = ask(("system", text), ("assistant", text), ("user", json.dumps(RESULTS[0][1])))
    assert lift(request, lambda _: False, most=9, longest=1 << 20) == request


def test_earlier_tool_results_move_only_if_their_block_is_sent() -> None:
    results = json.dumps([{"id": 1, "text": LONG}, {"id": 2, "text": OTHER}])
    request = ask(("user", "q"), ("tool", results), ("assistant", "a"), ("user", "again?"))
    done = lift(request, lambda document: document.text == OTHER, most=9, longest=1 << 20)
    assert done.documents == ()
    assert done.messages[1].content == results.replace(OTHER, label(OTHER))


def test_what_is_too_much_or_too_long_stays_where_it_is() -> None:
    results = json.dumps([{"id": n, "text": f"{n} {LONG}"} for n in range(4)])
    documents, (_, content) = lifted(ask(("user", "q"), ("tool", results)), most=2)
    assert documents == [f"0 {LONG}", f"1 {LONG}"]
    assert content.count(LONG) == 2
    done = lift(ask(("user", "q"), ("tool", results)), lambda _: False, most=9, longest=50)
    assert done.documents == ()


def test_a_text_whose_label_another_one_has_stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(annotation, "WORDS", ("oak",))
    results = json.dumps(
        [{"id": 1, "text": LONG}, {"id": 2, "text": OTHER}, {"id": 3, "text": LONG}]
    )
    documents, (_, content) = lifted(ask(("user", "q"), ("tool", results)))
    assert set(documents) == {LONG}
    assert content == results.replace(LONG, "[Doc oak oak]")
    documents, (_, content) = lifted(ask(("user", "q"), ("tool", results), documents=[OTHER]))
    assert documents == [OTHER, OTHER]
    assert content == results.replace(OTHER, "[Doc oak oak]")
    request = ask(("user", "q"), ("tool", results))
    refused = lift(request, lambda _: False, most=9, longest=999, nameable=lambda _: False)
    assert refused == request


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.text(max_size=5), st.sampled_from(["text", "id", "results"])), inner
        ),
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(value=json_values, ascii_only=st.booleans(), spaces=st.booleans())
def test_any_json_comes_back_with_names_in_place_of_texts(
    value: Any, ascii_only: bool, spaces: bool
) -> None:
    long = {"id": 7, "text": 'a "quoted" \\ \u00e9\n' + LONG, "rest": value}
    text = json.dumps([long], ensure_ascii=ascii_only, indent=2 if spaces else None)
    (found,) = find("tool", text)
    assert json.loads(text[found.start : found.end]) == found.text == long["text"]
    done = lift(ask(("user", "q"), ("tool", text)), lambda _: False, most=9, longest=1 << 20)
    assert json.loads(done.messages[1].content) == [{**long, "text": label(found.text)}]


@settings(deadline=None)
@given(text=st.text(alphabet='<>/document ="x', max_size=300))
def test_elements_never_overlap_and_never_grow(text: str) -> None:
    last = 0
    for found in find("user", text):
        assert last <= found.start <= found.end
        assert text[found.start : found.end] == found.text
        assert len(found.text.strip()) >= LEAST_CHARS
        assert re.search(r"<document[\s>]", text[: found.start])
        last = found.end
