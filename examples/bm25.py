"""Retrieval with BM25: from a question to `documents`."""

import sys

from openai import OpenAI

from cp_ray.retrieval.bm25 import Bm25Retriever, Document

client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
model = client.models.list().data[0].id
corpus = [
    Document(id="refunds", title="Refunds", text="Refunds are paid within 30 days."),
    Document(id="shipping", title="Shipping", text="Shipping takes two days."),
]
question = "When are refunds paid?"
documents = Bm25Retriever(corpus).search(question, 5)
answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": question}],
    max_tokens=32,
    extra_body={"documents": documents},
)
print(f"documents: {[document['id'] for document in documents]}")
print(answer.choices[0].message.content)
