"""Flink's own metrics, of processes and jobs, for Prometheus."""

from __future__ import annotations

METRICS_PORT = 9249
"""Where a process of Flink answers Prometheus by custom."""


def prometheus_options(port: int = METRICS_PORT) -> dict[str, str]:
    """Return Flink's options that make a process answer Prometheus at ``port``.

    >>> prometheus_options()["metrics.reporter.prom.port"]
    '9249'
    """
    return {
        "metrics.reporters": "prom",
        "metrics.reporter.prom.factory.class": (
            "org.apache.flink.metrics.prometheus.PrometheusReporterFactory"
        ),
        "metrics.reporter.prom.port": str(port),
    }
