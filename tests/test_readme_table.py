"""README's figures of a GPU are those of the results: `benchmarks/readme_table.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "readme_table.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_the_readme_says_what_the_results_say() -> None:
    outcome = run("--check")
    assert outcome.returncode == 0, outcome.stderr


def test_a_changed_figure_is_refused_and_written_anew(tmp_path: Path) -> None:
    original = (ROOT / "README.md").read_text(encoding="utf-8")
    hours = next(line for line in original.splitlines() if "H200-hours" in line)
    readme = tmp_path / "README.md"
    readme.write_text(original.replace(hours, hours.replace("H200", "A100")), encoding="utf-8")
    refused = run("--check", "--readme", str(readme))
    assert refused.returncode == 1
    assert "run benchmarks/readme_table.py" in refused.stderr
    assert run("--readme", str(readme)).returncode == 0
    assert readme.read_text(encoding="utf-8") == original
