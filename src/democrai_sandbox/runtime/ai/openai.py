"""Model behind an HTTP API of the chat-completions kind, called inside the guard of the agent that uses it."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors.services import ModelFailed
from democrai_sandbox.guard import Door, door
from democrai_sandbox.guard.interface import RawView
from democrai_sandbox.policy import InvalidInputError, SandboxError, parse_request_url
from democrai_sandbox.runtime.calls.invocation import CallThreads

from .model import Message, ToolCall, ToolOffer

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST_ANSWER = 8 * 1024 * 1024
_MOST_CALLS = 128
_OK = 200


class OpenAiModel:
    """A model by address and name. The host creates it; agents name it, and need ``send`` access to its address.

    It uses ``http.client`` in a thread, which is guarded, is part of the standard library, follows no redirects and
    reads no proxy from the environment. So HTTP requests go only to the endpoint that the agent declared.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        model: str,
        api_key: str = "",
        timeout: float = 60.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Take the address before ``/chat/completions``, and options for each HTTP request (``temperature``, ...)."""
        url = parse_request_url(f"{endpoint.rstrip('/')}/chat/completions")
        if url.scheme not in ("http", "https"):
            raise InvalidInputError.of(f"expected an http or https URL, got {url.scheme}", pointer="/endpoint")
        if not api_key.isprintable() or not api_key.isascii():
            raise InvalidInputError.of(
                "the key contains a character that is not allowed in an HTTP header", pointer="/api_key"
            )
        self.target = url.normalized
        """Target that an agent has to declare for ``send``."""
        self._model = model
        self._timeout = timeout
        self._options = dict(options or {})
        self._key = _locked(api_key)
        self._threads = CallThreads()

    def __repr__(self) -> str:
        return f"OpenAiModel({self.target!r}, model={self._model!r})"

    async def complete(self, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Message:
        """Ask for the next message."""
        body: dict[str, Any] = {
            **self._options,
            "model": self._model,
            "messages": [_message_out(message) for message in messages],
        }
        if tools:
            # A tool offer has the fields of a function in this interface.
            body["tools"] = [
                {"type": "function", "function": {**tool._asdict(), "parameters": dict(tool.parameters)}}
                for tool in tools
            ]
        answer = await self._threads.run(_post, self.target, self._key, json.dumps(body).encode(), self._timeout)
        return _message_in(answer, self.target)


def _locked(api_key: str) -> Door:
    """Return a function that gives the key only to the host and to agents, because tools run inside agents."""

    def key(view: tuple[Any, ...] | None) -> str:
        return api_key if view is None or RawView(*view).actor[0] == "agent" else ""

    return door(key)


def _message_out(message: Message) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    return out


def _post(target: str, key: Door, body: bytes, timeout: float) -> Any:
    """Send an HTTP request and return the JSON of the response. Runs in a thread, under the agent's guard."""
    secret = key()
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if secret:
        headers["Authorization"] = f"Bearer {secret}"
    url = parse_request_url(target)
    path = target.split("/", 3)[3]
    connection = _connection(url, timeout)
    try:
        connection.request("POST", f"/{path}", body, headers)
        response = connection.getresponse()
        text = response.read(LARGEST_ANSWER + 1)
    except SandboxError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise ModelFailed(f"{target}: {_without(secret, str(error)) or type(error).__name__}") from None
    finally:
        connection.close()
    if response.status != _OK:
        shown = _without(secret, text[:300].decode("utf-8", "replace"))
        raise ModelFailed(f"{target} answered {response.status}: {shown}")
    if len(text) > LARGEST_ANSWER:
        raise ModelFailed(f"{target} answered with more than {LARGEST_ANSWER} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ModelFailed(f"{target} did not answer with valid JSON") from None


def _connection(url: Any, timeout: float) -> http.client.HTTPConnection:
    if url.scheme == "http":
        return http.client.HTTPConnection(url.host, url.port, timeout=timeout)
    # A new context each time: other code could turn off verification in a shared one.
    return http.client.HTTPSConnection(url.host, url.port, timeout=timeout, context=ssl.create_default_context())


def _without(secret: str, text: str) -> str:
    """Remove the key from a text, because some servers repeat it in error messages."""
    return text.replace(secret, "***") if secret else text


def _message_in(answer: Any, target: str) -> Message:
    try:
        message = answer["choices"][0]["message"]
        text, wanted = message.get("content") or "", message.get("tool_calls") or []
        calls = tuple(
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in wanted[:_MOST_CALLS]
        )
    except (LookupError, TypeError, AttributeError):
        raise ModelFailed(f"{target} did not answer with a message") from None
    if type(text) is not str or not all(type(part) is str for call in calls for part in call):
        raise ModelFailed(f"{target} did not answer with a message of texts")
    return Message("assistant", text, calls)
