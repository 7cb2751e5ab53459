"""Retrieval from Elasticsearch: an index `kb` whose entries have `text` and `title`."""

import sys

from openai import OpenAI

from cp_ray.retrieval.elasticsearch import ElasticsearchRetriever

client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
model = client.models.list().data[0].id
question = "When are refunds paid?"
documents = ElasticsearchRetriever(sys.argv[2], "kb", title="title").search(question, 5)
answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": question}],
    max_tokens=32,
    extra_body={"documents": documents},
)
print(f"documents: {[document['id'] for document in documents]}")
print(answer.choices[0].message.content)
