"""A conversation: the second turn's documents are mostly the first one's, and not sent again."""

import sys

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
model = client.models.list().data[0].id
retrieved = {
    "How long do I have to ask for a refund?": [
        "Refunds are paid within 30 days of the order, to the card that was used." * 5,
        "Shipping within the country takes two working days." * 5,
    ],
    "And for a parcel from abroad?": [
        "Parcels from abroad can be sent back within 60 days." * 5,
        "Refunds are paid within 30 days of the order, to the card that was used." * 5,
    ],
}
messages: list[ChatCompletionMessageParam] = []
for question, documents in retrieved.items():
    messages.append({"role": "user", "content": question})
    answer = client.chat.completions.create(
        model=model,
        messages=messages,
        max_tokens=32,
        extra_body={"documents": documents, "conversation": "refunds-1"},
        extra_headers={"x-cp-ray-explain": "1"},
    )
    messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    told = answer.model_dump()
    usage = told["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    repeated = told["cp_ray"]["repeated"]
    print(f"{usage['prompt_tokens']} tokens, {cached} cached, repeated: {repeated}")
