"""Memories of Mem0 as documents: pip install 'cp-ray[memory]'. Needs no network and no model."""

import sys
import tempfile
from pathlib import Path

from openai import OpenAI

from cp_ray.memory.mem0 import MemoryRetriever, open_memory

client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
model = client.models.list().data[0].id
memory = MemoryRetriever(open_memory(Path(tempfile.mkdtemp())))
memory.remember("ann", ["Ann has a cat named Tom.", "Ann went sailing in May."])
question = "What is the name of the cat?"
documents = memory.search("ann", question, 5)
answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": question}],
    max_tokens=32,
    extra_body={"documents": documents},
)
print(f"memories: {[document['text'] for document in documents]}")
print(answer.choices[0].message.content)
