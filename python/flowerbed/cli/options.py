"""Options that several commands share. Their defaults live in `flowerbed.config`.

Each is also an environment variable; this is the one place that names them.
"""

from __future__ import annotations

import ipaddress
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from flowerbed import config, devices
from flowerbed.config import DType, LogFormat, LogLevel
from flowerbed.config_file import CONFIG_VARIABLE, read_config_file
from flowerbed.errors import ConfigError

TOKEN_VARIABLE = "FLOWERBED_WORKER_TOKEN"  # noqa: S105 (its name, no secret)


def check_device(word: str) -> str:
    """Refuses words that name no device."""
    try:
        return devices.check(word)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


def check_address(address: str) -> str:
    """Refuses what is neither `host:port` nor `unix:path`."""
    scheme, _, path = address.partition(":")
    host, _, port = address.rpartition(":")
    is_unix = scheme == "unix" and path != ""
    is_tcp = scheme != "unix" and host != "" and port.isdecimal() and int(port) < 65_536
    if not (is_unix or is_tcp):
        raise typer.BadParameter(f"{address!r} is no address: allowed are host:port and unix:path")
    return address


def check_addresses(addresses: list[str]) -> list[str]:
    """Refuses a list with a wrong or a repeated address."""
    for address in addresses:
        check_address(address)
        if addresses.count(address) > 1:
            raise typer.BadParameter(f"the worker {address} is named twice")
    return addresses


def is_private(address: str) -> bool:
    """Whether only this machine can reach the address."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_and_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def take_config_file(context: typer.Context, path: Path | None) -> Path | None:
    """Gives the file's values to the options that neither a flag nor the environment sets."""
    if path is not None:
        context.default_map = read_config_file(path, context.info_name or "")
    return path


def check_prompts(given: list[str] | None) -> list[str]:
    """Refuses what is not NAME=TEXT, and a name that is given twice."""
    prompts = given or []
    names = [prompt.partition("=")[0] for prompt in prompts]
    for prompt, name in zip(prompts, names, strict=True):
        if not name or "=" not in prompt:
            raise typer.BadParameter(f"{prompt!r} is no prompt: write NAME=TEXT")
        if names.count(name) > 1:
            raise typer.BadParameter(f"the prompt {name!r} is given twice")
    return prompts


def by_name(prompts: list[str]) -> dict[str, str]:
    """Texts of checked prompts."""
    return dict(prompt.split("=", 1) for prompt in prompts)


def check_named(name: str | None) -> str | None:
    """Refuses an empty name, such as that of a shell variable that is not set."""
    if name is not None and not name.strip():
        raise typer.BadParameter("it is empty: leave it out, or name one")
    return name


def check_aliases(aliases: list[str] | None) -> list[str]:
    """Refuses an empty name."""
    if not all(alias.strip() for alias in aliases or []):
        raise typer.BadParameter("a model's name cannot be empty")
    return aliases or []


def worker_token() -> str | None:
    """The secret that gateway and workers share. By environment only: argv is public."""
    return os.environ.get(TOKEN_VARIABLE) or None


class Switch(StrEnum):
    """An option that takes true or false: flags with two names leave `--help` no room."""

    TRUE = "true"
    FALSE = "false"

    def __bool__(self) -> bool:
        return self is Switch.TRUE


AUTO_TRUNCATE = Switch(str(config.AUTO_TRUNCATE).lower())

MAX_TIMEOUT_S = 86_400.0
MAX_STEP_TOKENS = 1_048_576
"""No device has its knee beyond."""


def _seconds(variable: str, about: str) -> Any:
    return typer.Option(
        envvar=variable, min=0.001, max=MAX_TIMEOUT_S, metavar="SECONDS", help=about
    )


def _budget(variable: str, about: str, default: str) -> Any:
    return typer.Option(
        envvar=variable, min=1, max=MAX_STEP_TOKENS, help=about, show_default=default
    )


def _spin(default: str) -> Any:
    return typer.Option(
        "--spin-ms",
        envvar="FLOWERBED_SPIN_MS",
        min=0,
        max=1_000,
        metavar="MS",
        help="How long threads stay awake after a query, which takes up to three cores; 0 is never.",
        show_default=default,
    )


Model = Annotated[
    str | None,
    typer.Argument(
        envvar="FLOWERBED_MODEL",
        callback=check_named,
        help="Hub id or folder of the model.",
        show_default="the packaged all-MiniLM-L6-v2",
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(
        envvar="FLOWERBED_REVISION",
        callback=check_named,
        help="Branch, tag or commit on the hub.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar=CONFIG_VARIABLE,
        is_eager=True,  # before the options that it sets
        callback=take_config_file,
        metavar="FILE.toml",
        help="Settings in tables: [gateway], [[models]], [worker]. Options rule over it.",
    ),
]
Aliases = Annotated[
    list[str] | None,
    typer.Option(
        "--alias",
        envvar="FLOWERBED_ALIAS",
        callback=check_aliases,
        metavar="NAME",
        help="One more name of the model in requests; repeat it for each.",
    ),
]
Prompts = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt",  # no variable: texts hold spaces, which would part them
        callback=check_prompts,
        metavar="NAME=TEXT",
        help="A prompt, over the model's own; repeat it for each. Gateway and workers need the same.",
    ),
]
Host = Annotated[
    str, typer.Option(envvar="FLOWERBED_HOST", help="Address that the HTTP server binds.")
]
Port = Annotated[
    int,
    typer.Option(envvar="FLOWERBED_PORT", min=0, max=65_535, help="HTTP port; 0 takes a free one."),
]
Device = Annotated[
    str,
    typer.Option(
        envvar="FLOWERBED_DEVICE",
        callback=check_device,
        metavar="auto|cpu|cuda|cuda:0,1",
        help="Where the model runs: one worker a device. auto is all GPUs, else the CPU.",
    ),
]
Dtype = Annotated[
    DType,
    typer.Option(
        envvar="FLOWERBED_DTYPE",
        help="Number format of the weights. fp8, for newer GPUs and index builds, is experimental.",
    ),
]
Attention = Annotated[
    config.Attention,
    typer.Option(envvar="FLOWERBED_ATTENTION", help="What computes attention on a GPU."),
]
BatchInvariant = Annotated[
    config.BatchInvariant,
    typer.Option(
        envvar="FLOWERBED_BATCH_INVARIANT",
        help="Whether a vector has the same bits alone and among others; on a GPU, small steps are slower.",
    ),
]
GraphCapture = Annotated[
    config.GraphCapture,
    typer.Option(
        envvar="FLOWERBED_GRAPH_CAPTURE",
        help="When steps of a GPU become CUDA graphs: all at start, each when its size comes again, never.",
    ),
]
GraphMemory = Annotated[
    int,
    typer.Option(
        "--graph-memory-mb",
        envvar="FLOWERBED_GRAPH_MEMORY_MB",
        min=1,
        metavar="MB",
        help="Device memory that the CUDA graphs of one stream may take.",
    ),
]
MaxBatchTokens = Annotated[
    int | None,
    _budget("FLOWERBED_MAX_BATCH_TOKENS", "Budget of one step.", "the device's knee"),
]
SaturationBatchTokens = Annotated[
    int | None,
    _budget(
        "FLOWERBED_SATURATION_BATCH_TOKENS",
        "Budget of a step of bulk work while nobody waits for queries.",
        "the device's",
    ),
]
MaxBatchSequences = Annotated[
    int,
    typer.Option(envvar="FLOWERBED_MAX_BATCH_SEQUENCES", min=1, help="Most sequences of one step."),
]
StepTimeout = Annotated[
    float,
    _seconds(
        "FLOWERBED_STEP_TIMEOUT",
        "A step that takes longer hangs: the worker ends, to be restarted.",
    ),
]
TokenizerThreads = Annotated[
    int,
    typer.Option(
        envvar="FLOWERBED_TOKENIZER_THREADS",
        min=0,
        max=1_024,
        help="Threads that tokenize short requests; 0 is one a core.",
    ),
]
Spin = Annotated[
    int | None,
    _spin(f"{config.SPIN_MS} on GPUs with {config.MIN_SPIN_CORES} cores each, else 0"),
]
GatewaySpin = Annotated[int, _spin("0; its workers' GPUs may be elsewhere")]
AutoTruncate = Annotated[
    Switch,
    typer.Option(
        envvar="FLOWERBED_AUTO_TRUNCATE",
        help="Whether a longer input than the model takes is cut, where its request does not say.",
    ),
]
RequestTimeout = Annotated[
    float,
    _seconds("FLOWERBED_REQUEST_TIMEOUT", "Longest time of a request, queueing included."),
]
DrainTimeout = Annotated[
    float,
    _seconds(
        "FLOWERBED_DRAIN_TIMEOUT",
        "Time for accepted requests after SIGTERM; what is left then is ended.",
    ),
]
Log = Annotated[
    LogFormat, typer.Option(envvar="FLOWERBED_LOG_FORMAT", help="Shape of log lines on stderr.")
]
Level = Annotated[
    LogLevel,
    typer.Option(
        envvar="FLOWERBED_LOG_LEVEL",
        help="Least severe log lines that are written; debug is one a request.",
    ),
]
