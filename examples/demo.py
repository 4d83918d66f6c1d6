"""Semantic search over Python's standard library, with the whole system on this machine.

Starts `flowerbed serve`, embeds the docstrings of a few hundred modules and functions over HTTP,
answers three questions, measures, and stops everything.
"""

from __future__ import annotations

import importlib
import inspect
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from flowerbed import Client
from flowerbed.background import serving

# fmt: off
MODULES = (
    "abc", "argparse", "ast", "asyncio", "base64", "bisect", "calendar", "codecs", "collections",
    "configparser", "contextlib", "copy", "csv", "datetime", "decimal", "difflib", "email",
    "enum", "fnmatch", "fractions", "functools", "gettext", "glob", "gzip", "hashlib", "heapq",
    "hmac", "html", "http.client", "inspect", "io", "ipaddress", "itertools", "json", "locale",
    "logging", "lzma", "math", "mimetypes", "multiprocessing", "operator", "os", "os.path",
    "pathlib", "pickle", "platform", "pprint", "queue", "random", "re", "secrets", "selectors",
    "shlex", "shutil", "signal", "smtplib", "socket", "sqlite3", "ssl", "stat", "statistics",
    "string", "struct", "subprocess", "sys", "tarfile", "tempfile", "textwrap", "threading",
    "time", "timeit", "traceback", "types", "unicodedata", "unittest", "urllib.parse",
    "urllib.request", "uuid", "wave", "weakref", "xml.etree.ElementTree", "zipfile", "zlib",
)
# fmt: on
QUESTIONS = (
    "pick a random element of a list",
    "make a temporary folder",
    "wrap a long paragraph to a width",
)
NUM_TEXTS = 400
NUM_MEASURED = 50
MIN_CHARS = 40


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing of the standard library and what its author says of it."""

    title: str  # such as json.dumps
    text: str


def standard_library() -> list[Entry]:
    """Modules first, then their functions and classes, evenly over all modules."""
    entries: dict[str, Entry] = {}
    members: list[list[Entry]] = []
    for name in MODULES:
        module = importlib.import_module(name)
        found = [(name, module)] + [
            (f"{name}.{member}", value)
            for member, value in inspect.getmembers(module, callable)
            if member in getattr(module, "__all__", ()) and not is_error(value)
        ]
        documented = [
            Entry(title, f"{title}: {text}")
            for title, value in found
            if len(text := inspect.getdoc(value) or "") >= MIN_CHARS
        ]
        members.append(documented)
    for rank in range(max(map(len, members))):
        for documented in members:
            if rank < len(documented) and len(entries) < NUM_TEXTS:
                entries.setdefault(documented[rank].title, documented[rank])
    return list(entries.values())


def is_error(value: object) -> bool:
    """Whether it is the class of an exception; most of those say little."""
    return isinstance(value, type) and issubclass(value, BaseException)


def search(
    console: Console, client: Client, entries: list[Entry], vectors: NDArray[np.float32]
) -> None:
    """Answers the questions; vectors have length one, so a product is a cosine."""
    for question in QUESTIONS:
        scores = vectors @ client.embed([question])[0]
        table = Table(title=f"“{question}”", title_justify="left", expand=True)
        table.add_column("score", justify="right", style="green")
        table.add_column("title", style="cyan", no_wrap=True)
        table.add_column("says", overflow="ellipsis", no_wrap=True, ratio=1)
        for index in np.argsort(-scores)[:3]:
            entry = entries[index]
            says = entry.text.removeprefix(f"{entry.title}: ").splitlines()[0]
            table.add_row(f"{scores[index]:.3f}", entry.title, says)
        console.print(table)


def measure(client: Client, entries: list[Entry]) -> Table:
    """Latency of single short queries, one after another, and the model's share of it."""
    queries = [f"what does {entry.title} do?" for entry in entries[:NUM_MEASURED]]
    totals_ms, steps_ms = [], []
    for query in queries:
        started = time.perf_counter()
        answer = client.embed_detailed([query])
        totals_ms.append((time.perf_counter() - started) * 1e3)
        steps_ms.append((answer.step_us or 0) / 1e3)
    table = Table(title=f"{len(queries)} single queries", title_justify="left")
    for column in ("", "p50", "p99"):
        table.add_column(column, justify="right" if column else "left")
    for name, values in (("client waits", totals_ms), ("of it the model's step", steps_ms)):
        p50, p99 = np.percentile(values, [50, 99])
        table.add_row(name, f"{p50:.1f} ms", f"{p99:.1f} ms")
    return table


def main() -> None:
    """Runs the demo."""
    console = Console()
    started = time.perf_counter()
    with serving() as server, Client(server.address) as client:
        seconds = time.perf_counter() - started
        console.print(f"[bold]{server.address}[/bold] ({server.facts})", soft_wrap=True)
        console.print(f"ready after {seconds:.1f} s")

        entries = standard_library()
        started = time.perf_counter()
        answer = client.embed_detailed([entry.text for entry in entries])
        seconds = time.perf_counter() - started
        console.print(
            f"embedded {len(entries)} docstrings in {seconds:.1f} s: "
            f"{len(entries) / seconds:.0f} texts/s, {answer.num_tokens / seconds:.0f} tokens/s; "
            f"{answer.num_truncated} were longer than the model's maximum\n",
            soft_wrap=True,
        )
        search(console, client, entries, answer.vectors)
        console.print(measure(client, entries))
    console.print("stopped")


if __name__ == "__main__":
    main()
