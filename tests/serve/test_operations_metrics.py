"""Metrics: what docs/metrics.md says is what a live server exposes, in valid Prometheus text."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from flowerbed.background import RunningServer
from serve.callers import Http
from serve.systems import families

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"\| `(flowerbed_\w+)` \| (\w+) \| (.*?) \|")
OF_THE_FORMAT = {"le"}


def test_the_table_of_the_docs_is_what_a_live_server_exposes(
    server: RunningServer, http: Http
) -> None:
    assert http.post({"input": ["a", "b " * 300]}).status_code == 200
    response = http.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    rows = ROW.findall(DOCS.read_text())
    documented = {name: kind for name, kind, _ in rows}
    assert families(response.text) == documented
    labels = {name: set(re.findall(r"`(\w+)`", cell)) for name, _, cell in rows}
    for family in text_string_to_metric_families(response.text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        for sample in family.samples:
            assert set(sample.labels) - OF_THE_FORMAT == labels[name], name
    assert 'replica="worker-0"' in response.text
    assert "/tmp" not in response.text
