"""openai: chat, streaming, embeddings and an error, with an in-memory transport."""

from __future__ import annotations


def main(folder: str) -> object:
    import asyncio
    import json
    import os

    import httpx2
    import openai

    seen = []

    def chunk(text: str) -> str:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        return f"data: {json.dumps(body)}\n\n"

    def answer(request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        seen.append([request.method, request.url.path])
        if request.url.path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            return httpx2.Response(200, json={"object": "list", "model": "e", "data": data, "usage": usage})
        if body.get("model") == "none":
            return httpx2.Response(404, json={"error": {"message": "no model", "type": "x", "code": "missing"}})
        if body.get("stream"):
            text = chunk("Hel") + chunk("lo") + "data: [DONE]\n\n"
            return httpx2.Response(200, text=text, headers={"content-type": "text/event-stream"})
        message = {"role": "assistant", "content": "You said: " + body["messages"][-1]["content"]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx2.Response(
            200, json={"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        )

    transport = httpx2.MockTransport(answer)
    address = "http://model.example/v1"
    messages = [{"role": "user", "content": "hi"}]
    http = httpx2.Client(transport=transport)
    with openai.OpenAI(api_key="key", base_url=address, http_client=http, max_retries=0) as client:
        reply = client.chat.completions.create(model="m", messages=messages).choices[0].message.content
        stream = client.chat.completions.create(model="m", messages=messages, stream=True)
        streamed = "".join(part.choices[0].delta.content or "" for part in stream)
        vector = client.embeddings.create(model="e", input="x", encoding_format="float").data[0].embedding
        try:
            client.chat.completions.create(model="none", messages=messages)
            error = ""
        except openai.NotFoundError as problem:
            error = problem.code

    async def later() -> str:
        http = httpx2.AsyncClient(transport=transport)
        async with openai.AsyncOpenAI(api_key="key", base_url=address, http_client=http) as client:
            return (await client.chat.completions.create(model="m", messages=messages)).choices[0].message.content

    with open(os.path.join(folder, "reply.txt"), "w", encoding="utf-8") as file:
        file.write(reply)
    assert reply == asyncio.run(later()) == "You said: hi"
    return {"reply": reply, "streamed": streamed, "vector": vector, "error": error, "seen": seen}
