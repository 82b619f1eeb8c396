"""opentelemetry-sdk: traces and metrics with in-memory exporters."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    from opentelemetry import baggage, context, propagate
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.trace import Status, StatusCode

    simple, batch = InMemorySpanExporter(), InMemorySpanExporter()
    resource = Resource.create({"service.name": "shop"})
    path = os.path.join(folder, "spans.json")
    with open(path, "w", encoding="utf-8") as file:
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(SimpleSpanProcessor(simple))
        provider.add_span_processor(BatchSpanProcessor(batch))
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=file)))
        tracer = provider.get_tracer("use")
        headers = {}
        with tracer.start_as_current_span("parent", attributes={"a": 1}) as parent:
            propagate.inject(headers)
            with tracer.start_as_current_span("child") as child:
                child.add_event("step", {"n": 2})
                child.set_status(Status(StatusCode.ERROR, "bad"))
        try:
            with tracer.start_as_current_span("raises"):
                raise ValueError("x")
        except ValueError:
            pass
        provider.force_flush()
        provider.shutdown()
    spans = {span.name: span for span in simple.get_finished_spans()}
    assert spans["child"].parent.span_id == parent.get_span_context().span_id
    assert os.path.getsize(path) > 100

    reader = InMemoryMetricReader()
    meters = MeterProvider(metric_readers=[reader], resource=resource)
    meter = meters.get_meter("use")
    meter.create_counter("hits").add(3, {"page": "a"})
    meter.create_histogram("time").record(0.5)
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    points = {m.name: m.data.data_points[0] for m in metrics}
    meters.shutdown()
    token = context.attach(baggage.set_baggage("k", "v"))
    value = baggage.get_baggage("k")
    context.detach(token)
    return {
        "names": sorted(spans),
        "batch": sorted(span.name for span in batch.get_finished_spans()),
        "events": [spans["child"].events[0].name, spans["raises"].events[0].name],
        "status": spans["child"].status.status_code.name,
        "headers": sorted(headers),
        "hits": points["hits"].value,
        "time": points["time"].sum,
        "baggage": value,
    }
