"""Runs Ivy: reads the model's text settings, starts the Rust gateway, waits for its end.

The gateway needs the model's tokenizer and prompts, never its weights. Called by the command line.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from types import FrameType

from flowerbed import hub
from flowerbed.config import GatewayConfig, GatewayModel
from flowerbed.errors import ConfigError, FlowerbedError
from flowerbed.folder import read_folder
from flowerbed.machine import bind_hint, give_large_buffers_back

DEFAULT_ALIAS = "default"
"""A request that names no model, or this, means the one that is served."""


def run(
    model: str | None,
    *,
    revision: str | None,
    aliases: tuple[str, ...],
    prompts: Mapping[str, str],
    listen: str,
    workers: tuple[str, ...],
    token: str | None,
    request_timeout_s: float,
    drain_timeout_s: float,
    tokenizer_threads: int,
    spin_ms: int,
    auto_truncate: bool,
    on_ready: Callable[[str, str], None],
) -> int:
    """Serves until SIGTERM or SIGINT, which let open requests finish; a second one ends at once.

    Args:
        model: Hub id or folder; None for the packaged default.
        revision: Branch, tag or commit on the hub.
        aliases: More names that requests may use for the model.
        prompts: By name, over those of the model; the workers must be given the same.
        listen: `host:port`; port 0 takes a free one.
        workers: Addresses, `host:port` or `unix:path`.
        token: Secret that the workers want.
        request_timeout_s: Longest time of a request.
        drain_timeout_s: Time for open requests once it is told to end.
        tokenizer_threads: For short requests; 0 for one a core.
        spin_ms: How long threads stay awake after a query.
        auto_truncate: Whether longer inputs are cut where a request does not say.
        on_ready: Takes the address with its real port and the model's id.

    Returns:
        The exit code: 0 after a drain, 1 if open requests had to be ended, 128 plus the signal's
        number after a second signal.

    Raises:
        FlowerbedError: The model or a setting cannot be honoured, or the address cannot be bound.
    """
    from flowerbed import _core

    give_large_buffers_back()
    config = GatewayConfig(
        model=gateway_model(model, revision, aliases, prompts),
        workers=workers,
        listen=listen,
        worker_token=token,
        request_timeout_s=request_timeout_s,
        drain_timeout_s=drain_timeout_s,
        tokenizer_threads=tokenizer_threads,
        spin_ms=spin_ms,
        auto_truncate=auto_truncate,
    )
    try:
        gateway = _core.Gateway(config.to_core())
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        address = gateway.start()
    except OSError as error:
        raise _start_error(listen, error) from error
    signals = _end_on_signals(gateway.drain, gateway.stop)
    on_ready(address, config.model.id)
    gateway.wait()
    if len(signals) > 1:
        return 128 + signals[-1]
    return 1 if gateway.was_cut else 0


def gateway_model(
    model: str | None,
    revision: str | None,
    aliases: tuple[str, ...] = (),
    prompts: Mapping[str, str] | None = None,
) -> GatewayModel:
    """What the gateway knows of a model. It answers to its id, the id's last part, and `default`."""
    folder = read_folder(hub.resolve(model, revision=revision, weights=False), prompts)
    names = dict.fromkeys((folder.id.rpartition("/")[2], DEFAULT_ALIAS, *aliases))
    return GatewayModel(
        id=folder.id,
        aliases=tuple(alias for alias in names if alias != folder.id),
        tokenizer_file=str(folder.tokenizer_file),
        tokenizer_sha256=folder.tokenizer_sha256,
        text=folder.text,
        text_sha256=folder.text_sha256,
    )


def _end_on_signals(drain: Callable[[], None], stop: Callable[[], None]) -> list[int]:
    """Returns the signals that came, as they come."""
    signals: list[int] = []

    def end(signum: int, _frame: FrameType | None) -> None:
        signals.append(signum)
        (drain if len(signals) == 1 else stop)()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    return signals


def _start_error(listen: str, error: OSError) -> FlowerbedError:
    hint = bind_hint(error, host_option="--host", port_option="--port")
    if hint is None:
        return FlowerbedError(str(error))
    refused = FlowerbedError(f"cannot listen on {listen}: {os.strerror(error.errno or 0)}")
    refused.add_note(hint)
    return refused
