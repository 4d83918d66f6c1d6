"""Tables of a GPU in documents say what its results say: `benchmarks/readme_table.py` and `facts_tables.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
README, FACTS = ROOT / "README.md", ROOT / "docs" / "measured-facts.md"
RESULTS = ROOT / "benchmarks" / "results" / "h200.jsonl"


def run(script: str, *options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / script), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("script", ["readme_table.py", "facts_tables.py"])
def test_documents_say_what_the_results_say(script: str) -> None:
    outcome = run(script, "--check")
    assert outcome.returncode == 0, outcome.stderr


def test_a_changed_figure_is_refused_and_written_anew(tmp_path: Path) -> None:
    original = README.read_text(encoding="utf-8")
    hours = next(line for line in original.splitlines() if "H200-hours" in line)
    readme = tmp_path / "README.md"
    readme.write_text(original.replace(hours, hours.replace("H200", "A100")), encoding="utf-8")
    refused = run("readme_table.py", "--check", "--readme", readme)
    assert refused.returncode == 1
    assert "run benchmarks/readme_table.py" in refused.stderr
    assert run("readme_table.py", "--readme", readme).returncode == 0
    assert readme.read_text(encoding="utf-8") == original


def test_rows_of_another_machine_are_kept_and_the_last_commit_counts(tmp_path: Path) -> None:
    facts, results, printed = (tmp_path / name for name in ("facts.md", "all.jsonl", "new.jsonl"))
    facts.write_text(FACTS.read_text(encoding="utf-8"), encoding="utf-8")
    results.write_text(RESULTS.read_text(encoding="utf-8"), encoding="utf-8")
    for commit, p50 in (("0000000001", 7.5), ("0000000002", 8.5)):
        printed.write_text(json.dumps(ablation_row(p50)) + "\n", encoding="utf-8")
        options = ("--commit", commit, "--model", "a model", "--results", results, printed)
        assert run("keep.py", *options).returncode == 0
    assert run("facts_tables.py", "--results", results, "--facts", facts).returncode == 0
    text = facts.read_text(encoding="utf-8")
    assert "a GPU, a model, bfloat16, 0000000002:" in text
    assert "| all on | 8.50 / 9.00, 1,234 | 1.000000 |" in text
    assert "| all on | 7.50" not in text


def ablation_row(p50_ms: float) -> dict[str, Any]:
    """As `ablation.py` prints it."""
    return {
        "benchmark": "ablation",
        "system": "all on",
        "load": "one query at a time",
        "p50_ms": p50_ms,
        "p99_ms": 9.0,
        "answers_per_s": 1_234.0,
        "min_cosine_to_first": 1.0,
        "gpu": "a GPU",
        "dtype": "bfloat16",
        "model": "/tmp/folder",
        "commit": "unknown",
    }
