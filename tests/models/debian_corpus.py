"""Package descriptions of Debian in four languages, aligned, for retrieval across languages.

apt itself fetches them (12 MB) into a folder of its own; nothing on the system changes. A record's
short description, in any language, is a query; the English long one of the same record its answer.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

LANGUAGES = ("en", "de", "fr", "ja")
CAT_FILE = "/usr/lib/apt/apt-helper"
SYSTEM_SETTINGS = Path("/etc/apt/apt.conf.d")


class CorpusError(Exception):
    """The descriptions cannot be had here; the message says why."""


@dataclass(frozen=True)
class Record:
    """One description in all languages."""

    md5: str
    short: dict[str, str]
    long: dict[str, str]


def read_corpus(cache: Path) -> list[Record]:
    """Records that are there in all languages, in the order of their hashes; fetched only once."""
    file = cache / "debian-descriptions.jsonl"
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        records = _parse(_fetch(cache / "apt"))
        half_made = file.with_suffix(".new")
        half_made.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records))
        half_made.rename(file)
        shutil.rmtree(cache / "apt")
    return [Record(**json.loads(line)) for line in file.read_text().splitlines()]


def _fetch(folder: Path) -> Path:
    """The folder of apt's lists, translations included."""
    if shutil.which("apt-get") is None:
        raise CorpusError("apt-get, which fetches Debian's descriptions, is not there")
    for name in ("lists/partial", "cache/archives/partial", "conf.d"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for setting in SYSTEM_SETTINGS.iterdir():
        if "Acquire::Languages" not in setting.read_text():
            shutil.copy(setting, folder / "conf.d")
    languages = " ".join(f'"{language}";' for language in LANGUAGES)
    config = folder / "apt.conf"
    config.write_text(
        f'Dir::Etc::parts "{folder}/conf.d";\nDir::State::lists "{folder}/lists";\n'
        f'Dir::Cache "{folder}/cache";\nAcquire::Languages {{ {languages} }};\n'
    )
    update = subprocess.run(
        ["apt-get", "update"], env={"APT_CONFIG": str(config), "PATH": "/usr/bin:/bin"}, check=False
    )
    if update.returncode or not list((folder / "lists").glob("*_Translation-de*")):
        raise CorpusError("apt-get update brought no translations: is there a network?")
    return folder / "lists"


def _parse(lists: Path) -> list[Record]:
    short: dict[str, dict[str, str]] = {}
    long: dict[str, dict[str, str]] = {}
    for language in LANGUAGES:
        described = re.compile(rf"^Description-{language}: (.*(?:\n .*)*)", re.MULTILINE)
        for file in sorted(lists.glob(f"*_Translation-{language}*")):
            # apt keeps its lists compressed.
            done = subprocess.run([CAT_FILE, "cat-file", file], capture_output=True, check=True)
            for paragraph in done.stdout.decode(errors="replace").split("\n\n"):
                md5 = re.search(r"^Description-md5: (\w+)$", paragraph, re.MULTILINE)
                text = described.search(paragraph)
                if md5 is None or text is None:
                    continue
                first, *lines = text.group(1).split("\n")
                body = "\n".join("" if line.strip() == "." else line[1:] for line in lines)
                short.setdefault(md5.group(1), {})[language] = first.strip()
                long.setdefault(md5.group(1), {})[language] = body.strip()
    return [
        Record(md5, short[md5], long[md5])
        for md5 in sorted(short)
        if len(short[md5]) == len(LANGUAGES) and all(long[md5].values())
    ]
