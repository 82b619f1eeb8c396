"""sentry-sdk: messages, exceptions, breadcrumbs and transactions with an in-memory transport."""

from __future__ import annotations


def main(folder: str) -> object:
    import logging
    import os

    import sentry_sdk
    from sentry_sdk.transport import Transport

    class MemoryTransport(Transport):
        def __init__(self, options: object = None) -> None:
            super().__init__(options)
            self.payloads = []

        def capture_envelope(self, envelope: object) -> None:
            for item in envelope.items:
                if item.payload.json is not None:
                    self.payloads.append((item.type, item.payload.json))

    transport = MemoryTransport()

    def clean(event: dict, hint: dict) -> dict:
        event.setdefault("tags", {})["cleaned"] = "yes"
        return event

    sentry_sdk.init(
        dsn="http://key@sentry.example/1",
        transport=transport,
        traces_sample_rate=1.0,
        before_send=clean,
        release="1.0",
        server_name="test",
        auto_session_tracking=False,
        auto_enabling_integrations=False,
        enable_backpressure_handling=False,
    )
    sentry_sdk.set_tag("shop", "a")
    sentry_sdk.set_user({"id": "7"})
    sentry_sdk.add_breadcrumb(category="auth", message="logged in")
    sentry_sdk.capture_message("hello", level="warning")
    try:
        with open(os.path.join(folder, "missing.txt"), encoding="utf-8") as file:
            file.read()
    except FileNotFoundError as error:
        sentry_sdk.capture_exception(error)
    logging.getLogger("use_sentry").error("logged %s", "error")
    with sentry_sdk.start_transaction(op="task", name="work"):
        with sentry_sdk.start_span(op="step", name="one"):
            pass
    with sentry_sdk.new_scope() as scope:
        scope.set_extra("x", 1)
        sentry_sdk.capture_message("scoped")
    sentry_sdk.flush(1)
    sentry_sdk.get_client().close()
    events = [data for kind, data in transport.payloads if kind == "event"]
    traces = [data for kind, data in transport.payloads if kind == "transaction"]
    assert all(event["tags"]["cleaned"] == "yes" and event["user"]["id"] == "7" for event in events)
    failure = events[1]["exception"]["values"][0]
    return {
        "messages": [e.get("message") or e.get("logentry", {}).get("message") for e in events],
        "levels": [e["level"] for e in events],
        "failure": [failure["type"], failure["stacktrace"]["frames"][-1]["function"]],
        "breadcrumbs": [b["message"] for b in events[0]["breadcrumbs"]["values"]],
        "traces": [[t["transaction"], [s["op"] for s in t["spans"]]] for t in traces],
        "extra": events[-1]["extra"].get("x"),
    }
