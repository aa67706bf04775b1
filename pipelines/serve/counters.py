"""What the server counts, in the format of Prometheus."""

from __future__ import annotations

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Counters:
    """The counters, gauges and histograms of one server, in a registry of their own.

    A label has few values: nothing that a client sends, such as a path, becomes one.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "serve_requests",
            "Requests answered.",
            ["protocol", "kind", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "serve_request_seconds",
            "Seconds from the header of a request to its answer.",
            ["protocol", "kind"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "serve_in_flight",
            "Requests being read, run or answered.",
            ["protocol"],
            registry=self.registry,
        )
        self.memory = Gauge(
            "serve_memory_bytes",
            "Bytes that the requests in flight may take, estimated from above.",
            registry=self.registry,
        )
        self.hang_ups = Counter(
            "serve_hang_ups",
            "Requests whose client has gone before the answer.",
            ["protocol"],
            registry=self.registry,
        )
        self.closed = Counter(
            "serve_connections_closed",
            "HTTP connections that the server closed, for lack of time or room.",
            ["reason"],
            registry=self.registry,
        )
        self.queue = Gauge("serve_queue", "Requests waiting for the model.", registry=self.registry)
        self.batch_requests = Histogram(
            "serve_batch_requests",
            "Requests in a batch.",
            buckets=_SIZES,
            registry=self.registry,
        )
        self.batch_rows = Histogram(
            "serve_batch_rows", "Rows in a batch.", buckets=_SIZES, registry=self.registry
        )
        self.version = Gauge(
            "serve_model_version",
            "Newest version that is served.",
            ["model"],
            registry=self.registry,
        )
        self.loads = Counter(
            "serve_version_loads",
            "Versions that were loaded or failed to load.",
            ["result"],
            registry=self.registry,
        )

    def observe(self, protocol: str, kind: str, status: str, seconds: float) -> None:
        """Counts an answered request."""
        self.requests.labels(protocol, kind, status).inc()
        self.seconds.labels(protocol, kind).observe(seconds)

    def text(self) -> bytes:
        """All values, in the text format of Prometheus."""
        return generate_latest(self.registry)
