"""Appends rows that another machine printed to results/h200.jsonl.

`python benchmarks/keep.py --commit HASH [--model NAME] FILE...`; then `readme_table.py`, `facts_tables.py` and
`plots.py` make documents of them. A machine that holds a copy of the files, and no git, cannot tell the commit.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from flowerbed import __version__

RESULTS = Path(__file__).parent / "results" / "h200.jsonl"
UNKNOWN = {"", "unknown", "not installed"}


def main() -> None:
    """Appends."""
    parser = argparse.ArgumentParser(description="Keep rows of another machine.")
    parser.add_argument("files", type=Path, nargs="+", help="JSON lines that a benchmark printed")
    parser.add_argument("--commit", required=True, help="that was measured")
    parser.add_argument("--model", help="what the folder held; else its name stays")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    kept: list[str] = []
    for line in (line for path in options.files for line in path.read_text().splitlines()):
        row = {"benchmark": "engine", **json.loads(line), "commit": options.commit}
        if options.model:
            row["model"] = options.model
        for name in {"version", "flowerbed"} & row.keys():
            row[name] = __version__ if row[name] in UNKNOWN else row[name]
        kept.append(json.dumps(row) + "\n")
    with options.results.open("a", encoding="utf-8") as results:
        results.writelines(kept)
    print(f"{options.results}: {len(kept)} rows more")


if __name__ == "__main__":
    main()
