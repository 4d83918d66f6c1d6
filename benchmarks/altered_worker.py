"""`flowerbed worker`, altered for a measurement: `python altered_worker.py blocking|counted OPTIONS`.

blocking: a step returns when its rows are on the host, and one runs at a time; what the LazyTensor saves is
seen beside it. counted: after the drain it tells, as one JSON line on stdout, which graphs it captured and
how long each kept the worker.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from flowerbed import worker
from flowerbed.rose.engine import Engine
from flowerbed.rose.graphs import Graph, GraphKey
from flowerbed.rose.inputs import Batch
from flowerbed.rose.lane import Lane
from flowerbed.rose.lazy import LazyTensor


class BlockingEngine(Engine):
    """One step at a time, waited for."""

    @property
    def steps_in_flight(self) -> int:
        """Of each stream."""
        return 1

    def step(self, batch: Batch) -> LazyTensor:
        """See `Engine.step`; the rows are on the host."""
        result = super().step(batch)
        result.wait()
        return result


class CountedLane(Lane):
    """Keeps how long each capture took."""

    captures: list[dict[str, Any]] = []  # noqa: RUF012 (of all lanes)

    def _capture_key(self, key: GraphKey) -> Graph:
        start = time.perf_counter()
        graph = super()._capture_key(key)
        milliseconds = (time.perf_counter() - start) * 1e3
        self.captures.append(
            {
                "stream": "online" if self._is_urgent else "normal",
                "num_tokens": key.num_tokens,
                "num_slots": key.num_slots,
                "num_bytes": graph.num_bytes,
                "ms": round(milliseconds, 3),
                "at": time.time(),  # s since 1970
            }
        )
        return graph


def main() -> None:
    """Alters, then runs the command."""
    change, *options = sys.argv[1:]
    if change == "blocking":
        worker.Engine = BlockingEngine
    elif change == "counted":
        from flowerbed.rose import ragged

        ragged.Lane = CountedLane
    else:
        raise SystemExit(f"error: {change!r} is not known; use blocking or counted")
    from flowerbed.cli import main as command

    sys.argv = ["flowerbed", "worker", *options]
    try:
        command()
    finally:
        if change == "counted":
            print(json.dumps(CountedLane.captures), flush=True)


if __name__ == "__main__":
    main()
