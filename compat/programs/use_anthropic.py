"""anthropic: messages, streaming, tools and an error, with an in-memory transport."""

from __future__ import annotations


def main(folder: str) -> object:
    import asyncio
    import json
    import os

    import anthropic
    import httpx2

    def event(kind: str, **fields: object) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"

    def message(content: list) -> dict:
        usage = {"input_tokens": 3, "output_tokens": 2}
        start = {"id": "msg", "type": "message", "role": "assistant", "model": "m", "content": content}
        return {**start, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}

    def answer(request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        assert request.headers["authorization"] == "Bearer key"
        if body["model"] == "busy":
            return httpx2.Response(429, json={"type": "error", "error": {"type": "rate_limit_error", "message": "no"}})
        if body.get("stream"):
            text = (
                event("message_start", message=message([]))
                + event("content_block_start", index=0, content_block={"type": "text", "text": ""})
                + event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hel"})
                + event("content_block_delta", index=0, delta={"type": "text_delta", "text": "lo"})
                + event("content_block_stop", index=0)
                + event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
                + event("message_stop")
            )
            return httpx2.Response(200, text=text, headers={"content-type": "text/event-stream"})
        if body.get("tools"):
            return httpx2.Response(
                200, json=message([{"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1, "b": 2}}])
            )
        return httpx2.Response(200, json=message([{"type": "text", "text": body["messages"][-1]["content"].upper()}]))

    transport = httpx2.MockTransport(answer)
    question = {"max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]}
    options = {"api_key": "key", "base_url": "http://model.example", "max_retries": 0}
    with anthropic.Anthropic(http_client=httpx2.Client(transport=transport), **options) as client:
        reply = client.messages.create(model="m", **question).content[0].text
        with client.messages.stream(model="m", **question) as stream:
            streamed = "".join(stream.text_stream)
            final = stream.get_final_message()
        tools = [{"name": "add", "description": "adds", "input_schema": {"type": "object"}}]
        call = client.messages.create(model="m", tools=tools, **question).content[0]
        try:
            client.messages.create(model="busy", **question)
            error = 0
        except anthropic.RateLimitError as problem:
            error = problem.status_code

    async def later() -> str:
        http = httpx2.AsyncClient(transport=transport)
        async with anthropic.AsyncAnthropic(http_client=http, **options) as client:
            return (await client.messages.create(model="m", **question)).content[0].text

    with open(os.path.join(folder, "reply.json"), "w", encoding="utf-8") as file:
        file.write(final.model_dump_json())
    assert reply == asyncio.run(later()) == "HELLO"
    return {"reply": reply, "streamed": streamed, "tool": [call.name, call.input], "error": error}
