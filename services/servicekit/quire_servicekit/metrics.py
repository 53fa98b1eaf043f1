"""Prometheus metrics of one service: a registry of its own, and the page that shows it.

One job: hold and expose. What is counted is each service's business. The page is served by a daemon thread, so that a
busy event loop still answers its scraper, and a scrape never waits behind work.
"""

from __future__ import annotations

import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Info,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)

#: Buckets for seconds, from a step to a long generation.
SECONDS_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip


class Metrics:
    """The metrics of one process; give `registry` to every Counter, Gauge and Histogram."""

    def __init__(self, service: str, version: str = "0.1.0") -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        Info("quire_build", "The service and its version.", registry=self.registry).info(
            {"service": service, "version": version}
        )
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def serve(self, listen: str | None) -> int | None:
        """Serve the page on `listen` (host:port) ; returns its port. None does nothing. Raises OSError naming it."""
        if listen is None:
            return None
        host, _, port = listen.rpartition(":")
        try:
            self._server, self._thread = start_http_server(
                int(port), addr=host or "0.0.0.0", registry=self.registry
            )
        except OSError as error:
            raise OSError(f"cannot serve metrics on {listen}: {error.strerror or error}") from error
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = self._thread = None
