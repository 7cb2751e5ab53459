"""Retrieval from Elasticsearch: from a question to the `documents` of one request, best first.

Speaks the public `_search` interface over HTTP, so no client library is needed. It was written
from that interface's documentation and not run against a server.
"""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from cp_ray.errors import ConfigError, CpRayError, InvalidRequest
from cp_ray.retrieval.bm25 import Document


class SearchFailed(CpRayError):
    """Elasticsearch did not answer, or not with hits; the message says what it said."""


class _Hit(msgspec.Struct):
    id: str = msgspec.field(name="_id")
    source: dict[str, Any] = msgspec.field(name="_source", default_factory=dict)


class _Hits(msgspec.Struct):
    hits: list[_Hit]


class _Answer(msgspec.Struct):
    hits: _Hits


class ElasticsearchRetriever:
    """Matches a question against one field of one index, by the index's own ranking (BM25).

    text, title: fields of a hit. query: the field that is searched; default `text`. headers: for
    instance {"authorization": "ApiKey ..."}.
    """

    def __init__(
        self,
        url: str,
        index: str,
        *,
        text: str = "text",
        title: str | None = None,
        query: str | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        if not index or "/" in index:
            raise ConfigError(f"index: {index!r} is no name of an index", param="index")
        self._path = f"{url.rstrip('/')}/{index}/_search"
        self._text, self._title, self._query = text, title, query or text
        self._client = httpx.Client(headers=headers, timeout=timeout_s)

    def search(self, question: str, k: int) -> list[Document]:
        """Return at most `k` documents, best first. Raises SearchFailed, InvalidRequest."""
        if k < 1:
            raise InvalidRequest(f"k must be at least 1, not {k}", param="k")
        fields = [self._text, *([self._title] if self._title else [])]
        body = {"size": k, "query": {"match": {self._query: question}}, "_source": fields}
        try:
            response = self._client.post(self._path, json=body)
            if response.status_code != 200:
                raise SearchFailed(f"{self._path}: {response.status_code}: {response.text[:200]}")
            answer = msgspec.json.decode(response.content, type=_Answer)
        except httpx.HTTPError as error:
            raise SearchFailed(f"{self._path}: {error!r}") from error
        except msgspec.MsgspecError as error:
            raise SearchFailed(f"{self._path}: no answer of a search: {error}") from error
        found = (self._document(hit) for hit in answer.hits.hits)
        return [document for document in found if document is not None]

    def close(self) -> None:
        """Close the connections; a second call does nothing."""
        self._client.close()

    def _document(self, hit: _Hit) -> Document | None:
        text = hit.source.get(self._text)
        if not isinstance(text, str) or not text:
            return None
        title = hit.source.get(self._title) if self._title else None
        if isinstance(title, str) and title:
            return Document(id=hit.id, title=title, text=text)
        return Document(id=hit.id, text=text)
