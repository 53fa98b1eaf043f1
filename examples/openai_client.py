"""Ask with the openai package: python examples/openai_client.py "What is the capital of France?"."""

import os
import sys

from openai import OpenAI

client = OpenAI(base_url=f"http://127.0.0.1:{os.environ.get('QUIRE_PORT', '8080')}/v1", api_key="unused")
model = client.models.list().data[0].id
messages = [{"role": "user", "content": sys.argv[1]}]
for chunk in client.chat.completions.create(model=model, messages=messages, temperature=0, stream=True):
    print(chunk.choices[0].delta.content or "" if chunk.choices else "", end="", flush=True)
client.close()
