"""The GPU peers beside ours in one run, on one device: `python benchmarks/peers/run.py FOLDER [--systems ...]`.

FOLDER is a model of `random_models.py`; a reranker is given one of its own, `vllm-rerank=FOLDER`. Each system runs in
processes of its own, one after another; with `--at-once` all peers load first, side by side, since that takes most of the
time, and are measured in turn. JSON lines on stdout, progress on stderr. A system that fails or outlasts its limit is
reported, and what it printed stays.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OURS = [sys.executable, "-m", "flowerbed", "bench", "engine"]
OWN_OPTIONS = ["--budget", "2048", "--budget", "16384"]
READY, DONE = '{"ready_s"', '{"done"'


@dataclass(frozen=True, slots=True)
class System:
    """A command, and whether it waits for its turn once it is loaded."""

    command: list[str]  # after it the folder and the label
    options: list[str] = field(default_factory=list[str])
    waits: bool = True
    compares: bool = True  # takes --reference
    beside: bool = True  # may load beside others


def peer(script: str, *options: str, compares: bool = True, beside: bool = True) -> System:
    """A script of this folder."""
    command = [sys.executable, str(HERE / script)]
    return System(command, list(options), compares=compares, beside=beside)


SYSTEMS: dict[str, System] = {
    "flowerbed": System(OURS, OWN_OPTIONS, waits=False, compares=False, beside=False),
    "flowerbed-serve": peer("http_loads.py"),
    "vllm": peer("vllm_engine.py"),
    "vllm-one-process": peer("vllm_engine.py", "--one-process"),
    "vllm-async": peer("vllm_engine.py", "--async"),
    "vllm-processes": peer("vllm_engine.py", "--processes", "4", compares=False, beside=False),
    "vllm-serve": peer("vllm_serve.py"),
    "vllm-rerank": peer("vllm_rerank.py", compares=False),
    "sentence-transformers": peer("sentence_transformers_fp16.py"),
}
Asked = tuple[str, Path | None]
"""A system, and its folder if it is not that of the run."""
EMBEDDING: list[Asked] = [(name, None) for name in SYSTEMS if name != "vllm-rerank"]


class Running:
    """One system's processes."""

    def __init__(self, asked: Asked, arguments: argparse.Namespace, reference: Path) -> None:
        name, folder = asked
        system = SYSTEMS[name]
        command = [*system.command, str(folder or arguments.folder), "--label", arguments.label]
        if system.compares and folder is None:
            command += ["--reference", str(reference)]
        command += system.options + (["--wait"] if system.waits else [])
        command += [
            part for key, value in arguments.option if key == name for part in value.split()
        ]
        self.name, self.waits, self.benchmark = name, system.waits, "peers"
        self.started = time.monotonic()
        self.is_ready, self.is_done = threading.Event(), threading.Event()
        self.process = subprocess.Popen(
            command,
            env=_environment(arguments.vllm_site if name.startswith("vllm") else None)
            | {"VLLM_CACHE_ROOT": _cache(name, folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def load(self, limit_s: float) -> None:
        """Waits until it is loaded, has ended, or took too long."""
        if self.waits:
            self.is_ready.wait(max(0.0, self.started + limit_s - time.monotonic()))
        print(f"{self.name}: loaded after {time.monotonic() - self.started:.0f} s", file=sys.stderr)

    def measure(self, limit_s: float) -> bool:
        """Lets it measure, ends it, and says whether all went well."""
        start = time.monotonic()
        until = start + (limit_s if self.is_ready.is_set() or not self.waits else 0)
        self._go()
        while not self.is_done.wait(0.05) and self.process.poll() is None:
            if time.monotonic() > until:
                break
        code = self.process.poll()
        is_done = self.is_done.is_set() or code == 0
        self.end()
        reason = "too late" if code is None else f"exit code {code}"
        word = "measured in" if is_done else f"FAILED ({reason}) after"
        print(f"{self.name}: {word} {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        return is_done

    def end(self) -> None:
        """Ends what is left of its processes, which may hold its stdout."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.reader.join()
        self.process.communicate()  # closes the pipes

    def _go(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(READY):
                self.is_ready.set()
            elif line.startswith(DONE):
                self.is_done.set()
            elif line.startswith("{"):
                print(json.dumps({"benchmark": self.benchmark, **json.loads(line)}), flush=True)
        self.is_ready.set()


def run(arguments: argparse.Namespace) -> int:
    """Measures every system; returns how many failed."""
    with tempfile.TemporaryDirectory() as made:
        reference = Path(made, "reference.npy")
        written = _reference(arguments, reference)
        if not arguments.at_once:
            _wait(written)
            return sum(not _alone(asked, arguments, reference) for asked in arguments.systems)
        running: list[Running] = []
        try:
            first = [asked for asked in arguments.systems if SYSTEMS[asked[0]].beside]
            running += [Running(asked, arguments, reference) for asked in first]
            for each in running:
                each.load(arguments.limit_s)
            _wait(written)
            failed = sum(not each.measure(arguments.limit_s) for each in running)
        finally:
            for each in running:
                each.end()
        at_last = (asked for asked in arguments.systems if not SYSTEMS[asked[0]].beside)
        return failed + sum(not _alone(asked, arguments, reference) for asked in at_last)


def _alone(asked: Asked, arguments: argparse.Namespace, reference: Path) -> bool:
    running = Running(asked, arguments, reference)
    try:
        running.load(arguments.limit_s)
        return running.measure(arguments.limit_s)
    finally:
        running.end()


def _reference(arguments: argparse.Namespace, path: Path) -> subprocess.Popen[bytes] | None:
    """Begins to write it, if any system is compared with it."""
    if not any(SYSTEMS[name].compares and not own for name, own in arguments.systems):
        return None
    command = [sys.executable, str(HERE / "reference.py"), str(arguments.folder), str(path)]
    command += ["--device", arguments.device]
    return subprocess.Popen(command, env=_environment(None), stdout=sys.stderr)


def _wait(written: subprocess.Popen[bytes] | None) -> None:
    if written is not None and written.wait() != 0:
        print("reference: FAILED: rows have no min_cosine", file=sys.stderr)


def _cache(name: str, folder: Path | None) -> str:
    """Of vLLM's compiled code: one a system, since engines that start at once would write one folder."""
    root = os.environ.get("VLLM_CACHE_ROOT", str(Path.home() / ".cache" / "vllm"))
    part = f"{name}-{folder.name}" if folder else name.removesuffix("-processes")
    return str(Path(root, part))


def _environment(site: Path | None) -> dict[str, str]:
    """With the benchmarks' own modules first, then those of `site`, or else what the caller has."""
    others = str(site) if site else os.environ.get("PYTHONPATH", "")
    path = [str(HERE.parent), str(ROOT / "python"), others]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def systems(text: str) -> list[Asked]:
    """Names between commas, each with `=FOLDER` where it has a folder of its own."""
    found: list[Asked] = []
    for part in text.split(","):
        name, _, folder = part.partition("=")
        if name not in SYSTEMS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(SYSTEMS)}")
        found.append((name, Path(folder) if folder else None))
    return found


def main(given: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="GPU peers beside ours.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--systems", type=systems, default=EMBEDDING, help="all but rerankers")
    parser.add_argument("--at-once", action="store_true", help="load all peers first")
    parser.add_argument("--limit-s", type=float, default=300.0, help="of a start, of a measurement")
    parser.add_argument("--vllm-site", type=Path, help="for vLLM, in place of PYTHONPATH")
    parser.add_argument("--device", default="cuda", help="of the reference")
    parser.add_argument("--label", default="", help="name of the rows' commit")
    parser.add_argument(
        "--option",
        nargs=2,
        action="append",
        default=[],
        metavar=("SYSTEM", "OPTIONS"),
        help="more options of one system",
    )
    arguments = parser.parse_args(given)
    # As an exception, so that no system outlives this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    raise SystemExit(min(run(arguments), 1))


if __name__ == "__main__":
    main()
