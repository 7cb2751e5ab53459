"""FAISS where it is installed, and Elasticsearch by its published interface."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import numpy as np
import pytest

from cp_ray.errors import ConfigError, InvalidRequest
from cp_ray.retrieval.bm25 import Bm25Retriever, Document
from cp_ray.retrieval.elasticsearch import ElasticsearchRetriever, SearchFailed
from cp_ray.retrieval.embedding import hashed_words

DOCUMENTS = [
    Document(id="1", title="Refunds", text="Refunds are paid within thirty days."),
    Document(id="2", title="Shipping", text="Shipping takes two days."),
    Document(id="3", text="The office is closed on Sundays."),
]


def test_hashed_words_put_texts_with_the_same_words_close() -> None:
    near, far = hashed_words(["refunds paid", "Sundays office"]) @ hashed_words(["paid refunds"]).T
    assert near[0] == pytest.approx(1.0)
    assert far[0] < 0.5
    assert not np.any(hashed_words([""]))


def test_faiss_returns_the_nearest_documents_best_first() -> None:
    pytest.importorskip("faiss", reason="extra `faiss` is not installed")
    from cp_ray.retrieval.faiss_index import FaissRetriever

    retriever = FaissRetriever(DOCUMENTS, hashed_words)
    assert retriever.search("are refunds paid", 1) == [DOCUMENTS[0]]
    assert len(retriever.search("shipping", 9)) == 3
    with pytest.raises(InvalidRequest, match="k must be"):
        retriever.search("x", 0)
    with pytest.raises(ConfigError, match="unique"):
        FaissRetriever([DOCUMENTS[0], DOCUMENTS[0]], hashed_words)


class FakeElasticsearch(BaseHTTPRequestHandler):
    """Built from the public `_search` interface; a real server was never asked."""

    retriever = Bm25Retriever(DOCUMENTS)
    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        (question,) = body["query"]["match"].values()
        status, answer = 200, self._search(question, body["size"], body["_source"])
        if self.path != "/kb/_search":
            error = {"type": "index_not_found_exception", "reason": "no such index [nothing]"}
            status, answer = 404, {"error": error, "status": 404}
        if question == "broken":
            answer = {"took": 1}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/vnd.elasticsearch+json;compatible-with=8")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _search(self, question: str, size: int, fields: list[str]) -> dict[str, Any]:
        found = self.retriever.search(question, size)
        hits = [
            {
                "_index": "kb",
                "_id": document["id"],
                "_score": 1.5 - place / 10,
                "_source": {name: document[name] for name in fields if name in document},  # type: ignore[literal-required]
            }
            for place, document in enumerate(found)
        ]
        total = {"value": len(hits), "relation": "eq"}
        return {
            "took": 2,
            "timed_out": False,
            "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
            "hits": {"total": total, "max_score": 1.5 if hits else None, "hits": hits},
        }

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def fake() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeElasticsearch)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_elasticsearch_hits_become_documents() -> None:
    with fake() as url:
        retriever = ElasticsearchRetriever(url, "kb", title="title")
        found = retriever.search("refunds or shipping", 5)
        assert sorted(found, key=lambda document: document["id"]) == DOCUMENTS[:2]
        assert FakeElasticsearch.asked[-1] == {
            "size": 5,
            "query": {"match": {"text": "refunds or shipping"}},
            "_source": ["text", "title"],
        }
        assert retriever.search("nothing of it", 5) == []
        untitled = ElasticsearchRetriever(url, "kb").search("refunds", 1)
        assert untitled == [Document(id="1", text=DOCUMENTS[0]["text"])]
        retriever.close()
        retriever.close()


def test_what_elasticsearch_refuses_is_said() -> None:
    with fake() as url:
        with pytest.raises(SearchFailed, match="no such index"):
            ElasticsearchRetriever(url, "nothing").search("x", 1)
        with pytest.raises(SearchFailed, match="no answer of a search"):
            ElasticsearchRetriever(url, "kb").search("broken", 1)
    with pytest.raises(SearchFailed, match=r"127\.0\.0\.1:1"):
        ElasticsearchRetriever("http://127.0.0.1:1", "kb").search("x", 1)
    with pytest.raises(ConfigError, match="name of an index"):
        ElasticsearchRetriever("http://127.0.0.1:1", "a/b")
