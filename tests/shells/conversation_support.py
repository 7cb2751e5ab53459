"""A client with a history of its own, and the store of a conversation over HTTP."""

from collections.abc import Mapping, Sequence
from typing import Any

from cp_ray.store.client import Store
from tests.shells.http_support import HTTP, Bench

A, B, C = ({"id": name, "text": f"{name} says {name * 3} " * 12} for name in ("aa", "bb", "cc"))


SYSTEM = {"role": "system", "content": "Be brief."}


class LoopStore:
    """A Store that connects on the loop that uses it first."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: Store | None = None

    async def _connected(self) -> Store:
        self._store = self._store or await Store.connect(self._url, "test")
        return self._store

    async def get_records(self, keys: Sequence[str], ttl_s: int) -> list[bytes | None]:
        return await (await self._connected()).get_records(keys, ttl_s)

    async def put_records(self, values: Mapping[str, bytes], ttl_s: int) -> None:
        await (await self._connected()).put_records(values, ttl_s)


class Chat:
    """A client that keeps its own history, as clients do: its texts, without documents."""

    def __init__(self, bench: Bench, name: str, system: dict[str, str] = SYSTEM) -> None:
        self.bench = bench
        self.name = name
        self.messages: list[dict[str, str]] = [system]

    def ask(self, question: str, *documents: Any, **headers: str) -> dict[str, Any]:
        self.messages.append({"role": "user", "content": question})
        body = {
            "model": "sim",
            "messages": self.messages,
            "documents": documents,
            "conversation": self.name,
        }
        response = HTTP.post(
            f"{self.bench.url}/v1/chat/completions",
            json=body,
            headers={"x-cp-ray-explain": "1", **headers},
        )
        answer: dict[str, Any] = response.json()
        if response.status_code == 200:
            self.messages.append(answer["choices"][0]["message"])
        return answer

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple(self.bench.dispatcher.sent[-1].tokens)


def count(bench: Bench, prompt: tuple[int, ...], text: str) -> int:
    """How often the tokens of `text` stand in the prompt."""
    part = tuple(bench.tokenizer.encode(text))
    return sum(prompt[i : i + len(part)] == part for i in range(len(prompt)))
