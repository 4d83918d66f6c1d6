"""The app with its commands, and the one place where errors become text and an exit code."""

from __future__ import annotations

import logging
import sys
from importlib import metadata
from typing import Annotated

import typer

from flowerbed import logs
from flowerbed.cli import bench, models
from flowerbed.cli.doctor import doctor
from flowerbed.cli.gateway import gateway
from flowerbed.cli.serve import serve
from flowerbed.cli.worker import worker
from flowerbed.errors import FlowerbedError

app = typer.Typer(
    name="flowerbed",
    help="Serves text-embedding models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve)
app.command()(gateway)
app.command()(worker)
app.command()(doctor)
app.add_typer(models.app)
app.add_typer(bench.app)

_PARTS = {
    "flowerbed._core": "build the Rust core: make build",
    "torch": "install the engine: pip install 'flowerbed[engine]'",
    "safetensors": "install the engine: pip install 'flowerbed[engine]'",
}
"""Modules that an installation may lack, and what to do about each."""


def main() -> None:
    """Runs the command line and ends the process."""
    try:
        code: object = app(prog_name="flowerbed", standalone_mode=False)
    except typer.TyperException as error:
        sys.exit(_usage_error(error))
    except FlowerbedError as error:
        sys.exit(_error(str(error), getattr(error, "__notes__", [])))
    except ImportError as error:
        name = "flowerbed._core" if "_core" in error.msg else error.name
        if name not in _PARTS:
            raise
        sys.exit(_error(f"cannot import {name}: {error.msg}", [_PARTS[name]]))
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _version(is_asked: bool) -> None:
    if is_asked:
        print(f"flowerbed {metadata.version('flowerbed')}")
        raise typer.Exit


@app.callback()
def _app(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


def _usage_error(error: typer.TyperException) -> int:
    format_message = getattr(error, "format_message", error.__str__)
    message = str(format_message()).replace("Value error, ", "").rstrip(".")
    if not message:  # the help was printed instead
        return 2
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "flowerbed"
    hints = [f"`{path} --help` lists the options"]
    parameter = getattr(error, "param", None)
    if context and parameter and parameter.name in (context.default_map or {}):
        hints.insert(0, "the config file may have set it")
    _error(message[0].lower() + message[1:], hints)
    return int(getattr(error, "exit_code", 2))


def _error(message: str, hints: list[str]) -> int:
    if logs.is_json():
        logging.getLogger("flowerbed").error("%s", ". ".join([message, *hints]))
        return 1
    print(f"error: {message}", file=sys.stderr)
    for hint in hints:
        print(f"hint: {hint}", file=sys.stderr)
    return 1
