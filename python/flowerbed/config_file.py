"""`--config FILE.toml`: the same settings as the options, in tables, for all commands.

Flags and FLOWERBED_* variables rule over the file, the file over the defaults, which
`flowerbed.config` owns. What the file asks for and cannot be had is refused by name. Called by the
command line, which gives each value to the option of the same meaning.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from flowerbed.errors import ConfigError

CONFIG_VARIABLE = "FLOWERBED_CONFIG"

_TEXT = "text"
_WHOLE = "a whole number"
_NUMBER = "a number"
_BOOLEAN = "true or false"
_LIST = "a list of texts"
_TABLE = "a table of texts"


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of a table and the parameter of the commands that it sets."""

    option: str
    kind: str = _TEXT
    commands: tuple[str, ...] = ("serve", "gateway", "worker")


_FRONT = ("serve", "gateway")
_ENGINE = ("serve", "worker")

_TABLES: dict[str, dict[str, _Key]] = {
    "gateway": {
        "host": _Key("host", commands=_FRONT),
        "port": _Key("port", _WHOLE, _FRONT),
        "workers": _Key("workers", _LIST, ("gateway",)),
        "tokenizer_threads": _Key("tokenizer_threads", _WHOLE, _FRONT),
        "spin_ms": _Key("spin_ms", _WHOLE),
        "auto_truncate": _Key("auto_truncate", _BOOLEAN, _FRONT),
        "request_timeout_s": _Key("request_timeout", _NUMBER),
        "drain_timeout_s": _Key("drain_timeout", _NUMBER),
        "log_format": _Key("log_format"),
        "log_level": _Key("log_level"),
    },
    "worker": {
        "listen": _Key("listen", commands=("worker",)),
        "metrics_host": _Key("metrics_host", commands=("worker",)),
        "metrics_port": _Key("metrics_port", _WHOLE, ("worker",)),
        "device": _Key("device", commands=_ENGINE),
        "dtype": _Key("dtype", commands=_ENGINE),
        "attention": _Key("attention", commands=_ENGINE),
        "batch_invariant": _Key("batch_invariant", commands=_ENGINE),
        "graph_capture": _Key("graph_capture", commands=_ENGINE),
        "graph_memory_mb": _Key("graph_memory_mb", _WHOLE, _ENGINE),
        "max_batch_tokens": _Key("max_batch_tokens", _WHOLE, _ENGINE),
        "saturation_batch_tokens": _Key("saturation_batch_tokens", _WHOLE, _ENGINE),
        "max_batch_sequences": _Key("max_batch_sequences", _WHOLE, _ENGINE),
        "step_timeout_s": _Key("step_timeout", _NUMBER, _ENGINE),
    },
    "models": {
        "id": _Key("model"),
        "path": _Key("model"),
        "revision": _Key("revision"),
        "aliases": _Key("aliases", _LIST, _FRONT),
        "prompts": _Key("prompts", _TABLE),
        "replicas": _Key("num_workers", _WHOLE, ("serve",)),
    },
}


def read_config_file(path: Path, command: str) -> dict[str, Any]:
    """Values for the parameters of `command`, by their names.

    One file may serve all commands: what belongs to another part is checked, then left to it.

    Raises:
        ConfigError: The file cannot be read, or holds what cannot be honoured.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}") from error
    except ValueError as error:  # no UTF-8 or no TOML
        raise ConfigError(f"{path} is no TOML: {error}") from error
    values: dict[str, Any] = {}
    for name, table in tables.items():
        where = f"{path}: [[models]]" if name == "models" else f"{path}: [{name}]"
        if name not in _TABLES:
            raise ConfigError(f"{where} is unknown; allowed are [gateway], [worker] and [[models]]")
        for key, value in _entry(where, name, table).items():
            known = _checked(where, _TABLES[name], key, value)
            if command in known.commands:
                values[known.option] = _as_option(path, key, value)
            elif command == "serve":
                raise ConfigError(
                    f"{where} {key} is for `flowerbed {known.commands[0]}`: `serve` joins its own "
                    "workers; leave it out"
                )
    return values


def _entry(where: str, name: str, table: object) -> dict[str, object]:
    """The keys of a table; of `[[models]]`, those of its one entry."""
    if name != "models":
        if not isinstance(table, dict):
            raise ConfigError(f"{where} should be a table")
        return cast("dict[str, object]", table)
    entries = cast("list[object]", table)
    if not isinstance(table, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{where} should be a list of tables, written [[models]]")
    if len(entries) > 1:
        raise ConfigError(
            f"{where} lists {len(entries)} models, but a server serves one: start one for each"
        )
    entry = cast("dict[str, object]", entries[0] if entries else {})
    if "id" in entry and "path" in entry:
        raise ConfigError(f"{where} has both id and path: give one of them")
    return entry


def _checked(where: str, keys: dict[str, _Key], key: str, value: object) -> _Key:
    known = keys.get(key)
    if known is None:
        raise ConfigError(f"{where} has no key {key!r}; allowed are {', '.join(keys)}")
    if not _is(known.kind, value):
        raise ConfigError(f"{where} {key} should be {known.kind}, not {value!r:.80}")
    return known


def _is(kind: str, value: object) -> bool:
    if isinstance(value, list | dict):
        is_table = isinstance(value, dict)
        parts = cast(
            "list[object]", list(cast("dict[str, object]", value).values()) if is_table else value
        )
        return kind == (_TABLE if is_table else _LIST) and all(isinstance(p, str) for p in parts)
    match value:
        case bool():
            return kind == _BOOLEAN
        case str():
            return kind == _TEXT and value.strip() != ""
        case int():
            return kind in (_WHOLE, _NUMBER)
        case float():
            return kind == _NUMBER
        case _:
            return False


def _as_option(path: Path, key: str, value: Any) -> Any:
    if key == "path":  # beside the file, wherever the command was started
        return str(path.parent / Path(value).expanduser())
    if isinstance(value, bool):
        return str(value).lower()
    if key == "prompts":
        return [f"{name}={text}" for name, text in value.items()]
    return value
