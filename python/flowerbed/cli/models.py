"""`flowerbed models`: fetches models ahead of time, checks them, lists them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flowerbed import config, logs
from flowerbed.cli import options
from flowerbed.cli.progress import Fetching

app = typer.Typer(
    name="models",
    help="Fetch models ahead of time, check their files, list them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="ID", callback=options.check_named, help="Hub id of the model: owner/name."
        ),
    ],
    revision: options.Revision = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Make a plain folder, for machines without a network: `flowerbed serve FOLDER`.",
            show_default="the hub's cache on this machine",
        ),
    ] = None,
    log_format: options.Log = config.LogFormat.TEXT,
) -> None:
    """Download a model and record the sha256 of each of its files in flowerbed-manifest.json.

    Only configurations, tokenizer and safetensors are fetched, and each file is checked against the
    hub's hash. Prints the folder. Private models: HF_TOKEN, or the token that `hf auth login` keeps.
    A folder made with --to keeps the model's id and commit: `serve` shows those, not its path.
    """
    from flowerbed import pull as pulling

    logs.setup(log_format)
    with Fetching(model, log_format) as fetching:
        folder, recorded = pulling.pull(model, revision, to, progress=fetching.advance)
    size = sum(record.size for record in recorded.files.values())
    print(f"{recorded.id} at {recorded.commit}: {len(recorded.files)} files, {size:,} bytes")
    print(folder)


@app.command()
def verify(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID|FOLDER]",
            callback=options.check_named,
            help="Hub id of a model in the cache, or a folder that `pull --to` made.",
            show_default="the packaged all-MiniLM-L6-v2",
        ),
    ] = None,
    revision: options.Revision = None,
    as_json: _Json = False,
    log_format: options.Log = config.LogFormat.TEXT,
) -> None:
    """Read every file of a model again and compare it with what was recorded. Uses no network.

    Prints a line for each file that is missing, changed or extra; exit code 1 if there is one.
    """
    from flowerbed import pull as pulling

    logs.setup(log_format)
    found = pulling.verify(model, revision)
    if as_json:
        print(json.dumps({**asdict(found), "path": str(found.path)}, indent=2))
    else:
        for difference in found.differences:
            print(difference)
        state = f"{len(found.differences)} differences" if found.differences else "all as recorded"
        print(f"{found.id} at {found.revision}: {found.num_files} files, {state}")
    raise typer.Exit(1 if found.differences else 0)


@app.command("list")
def list_models(as_json: _Json = False, log_format: options.Log = config.LogFormat.TEXT) -> None:
    """List the packaged model and the models in the hub's cache: id, revision, branches, size, folder."""
    from flowerbed import hub, hub_cache
    from flowerbed.errors import ModelError

    logs.setup(log_format)
    rows: list[dict[str, str | int]] = []
    try:
        packaged = hub.resolve(None, weights=False)
        size = sum(path.stat().st_size for path in packaged.path.rglob("*") if path.is_file())
        rows.append(_row(packaged.id, packaged.revision, "default", size, packaged.path))
    except ModelError:
        pass  # it is not installed, so it is not listed
    rows += [
        _row(model.id, model.commit, ",".join(model.refs) or "-", model.num_bytes(), model.path)
        for model in hub_cache.listed()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    width = max((len(str(row["id"])) for row in rows), default=0)
    for row in rows:
        megabytes = f"{int(row['bytes']) / 1e6:10,.1f} MB"
        print(
            f"{row['id']:{width}}  {row['revision']:40}  {row['refs']:10} {megabytes}  {row['path']}"
        )


def _row(model_id: str, revision: str, refs: str, size: int, path: Path) -> dict[str, str | int]:
    return {"id": model_id, "revision": revision, "refs": refs, "bytes": size, "path": str(path)}
