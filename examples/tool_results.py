"""Search results in a tool message become context blocks; the application changes nothing else."""

import json
import sys

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
model = client.models.list().data[0].id
results = [
    {"url": "https://example.org/refunds", "score": 0.9, "content": "Refunds take 30 days. " * 8},
    {"url": "https://example.org/shipping", "score": 0.7, "content": "Shipping takes two. " * 8},
]
messages: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "How long does a refund take?"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": json.dumps(results)},
]
answer = client.chat.completions.create(
    model=model,
    messages=messages,
    max_tokens=32,
    extra_body={"lift_documents": True},  # or start the application with lift_documents=true
    extra_headers={"x-cp-ray-explain": "1"},
)
print(f"blocks: {len(answer.model_dump()['cp_ray']['order'])}")
