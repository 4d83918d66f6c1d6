"""Runs `flowerbed-loadgen` (crates/loadgen) from Python: plans in, reports out.

Called by the benchmarks, and by the tests under load.
"""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
_PROGRAM = ROOT / "target" / "release" / "flowerbed-loadgen"
_MARGIN_S = 180.0

Report = dict[str, Any]
"""One stream: `crates/loadgen/src/report.rs` says what each field means."""


@dataclass(frozen=True, slots=True)
class Item:
    """One request, and what its answer must be."""

    body: object = None
    raw_body: str | None = None  # instead of `body`: bytes that need not be JSON
    run: Mapping[str, object] | None = None  # instead, for a worker: `ids` and `lane`
    rows: int = 0
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    expect: tuple[int, ...] = (200,)
    hang_up_ms: int | None = None
    golden: tuple[str | None, ...] = ()  # names of vectors, one a row

    def to_line(self) -> str:
        """As the plan's JSON."""
        line: dict[str, Any] = {
            "rows": self.rows,
            "headers": dict(self.headers),
            "expect": self.expect,
            "golden": self.golden,
        }
        if self.run is not None:
            line["run"] = self.run
        else:
            line |= {"body": self.body} if self.raw_body is None else {"raw_body": self.raw_body}
        if self.hang_up_ms is not None:
            line["hang_up_ms"] = self.hang_up_ms
        return json.dumps(line)


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests and their pace; streams of one run go side by side."""

    name: str
    items: Sequence[Item]
    pace: str  # poisson=RATE, constant=RATE or callers=N
    seconds: float
    options: str = ""  # more of the program's: `seed=7,check=no`


class Process:
    """A generator that runs: streams at once against one address."""

    def __init__(
        self,
        address: str,
        streams: Sequence[Stream],
        golden: Mapping[str, NDArray[np.float32]] | None = None,
        *,
        threads: int = 1,
    ) -> None:
        """Starts it and does not wait; `address` is a gateway's URL, or grpc://host:port of a worker."""
        self._files = ExitStack()
        folder = self._files.enter_context(tempfile.TemporaryDirectory())
        command = [str(program()), "--target", address, "--threads", str(threads)]
        if golden:
            vectors = Path(folder, "golden.jsonl")
            vectors.write_text("".join(_golden_line(name, row) for name, row in golden.items()))
            command += ["--golden", str(vectors)]
        for number, stream in enumerate(streams):
            plan = Path(folder, f"{number}.jsonl")
            plan.write_text("".join(item.to_line() + "\n" for item in stream.items))
            options = f",{stream.options}" if stream.options else ""
            described = f"name={stream.name},plan={plan},{stream.pace},seconds={stream.seconds}"
            command += ["--stream", described + options]
        self._timeout_s = max(stream.seconds for stream in streams) + _MARGIN_S
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def reports(self) -> list[Report]:
        """Waits; one report a stream, in their order."""
        with self._files:
            try:
                out, err = self._process.communicate(timeout=self._timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise
        if self._process.returncode != 0:
            raise SystemExit(f"error: the load generator ended with {err.strip()}")
        return [json.loads(line) for line in out.splitlines()]


def run(
    address: str,
    streams: Sequence[Stream],
    golden: Mapping[str, NDArray[np.float32]] | None = None,
    *,
    threads: int = 1,
) -> list[Report]:
    """Runs the streams at once; one report each, in their order."""
    return Process(address, streams, golden, threads=threads).reports()


def program() -> Path:
    """The built program. `make test-rust` has built it; else this does."""
    sources = (ROOT / "crates" / "loadgen").rglob("*.rs")
    newest = max(path.stat().st_mtime for path in sources)
    if not _PROGRAM.exists() or _PROGRAM.stat().st_mtime < newest:
        command = ["cargo", "build", "--release", "--locked", "--quiet", "-p", "flowerbed-loadgen"]
        subprocess.run(command, cwd=ROOT, check=True)
    return _PROGRAM


def _golden_line(name: str, row: NDArray[np.float32]) -> str:
    vector = base64.b64encode(np.ascontiguousarray(row, dtype="<f4").tobytes()).decode()
    return json.dumps({"id": name, "vector": vector}) + "\n"
