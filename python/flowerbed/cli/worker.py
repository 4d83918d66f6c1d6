"""`flowerbed worker`: Tulip and ROSE alone, on one device."""

from __future__ import annotations

from typing import Annotated

import typer

from flowerbed import config
from flowerbed.cli import options, process
from flowerbed.cli.progress import Loading, Reporting
from flowerbed.ready import Ready


def worker(
    model: options.Model = None,
    _config_file: options.ConfigFile = None,
    listen: Annotated[
        str,
        typer.Option(
            envvar="FLOWERBED_LISTEN",
            callback=options.check_address,
            metavar="ADDR",
            help="host:port or unix:path. Beyond this machine only with FLOWERBED_WORKER_TOKEN.",
        ),
    ] = config.DEFAULT_WORKER_LISTEN,
    metrics_host: Annotated[
        str,
        typer.Option(
            envvar="FLOWERBED_METRICS_HOST",
            help="Address that the metrics are served on, to whoever can reach it.",
        ),
    ] = config.METRICS_HOST,
    metrics_port: Annotated[
        int,
        typer.Option(
            envvar="FLOWERBED_METRICS_PORT",
            min=0,
            max=65_535,
            help="Port that serves GET /metrics; 0 serves none.",
        ),
    ] = config.METRICS_PORT,
    revision: options.Revision = None,
    prompts: options.Prompts = None,
    device: options.Device = config.DEFAULT_DEVICE,
    dtype: options.Dtype = config.DType.AUTO,
    attention: options.Attention = config.Attention.AUTO,
    batch_invariant: options.BatchInvariant = config.BatchInvariant.AUTO,
    graph_capture: options.GraphCapture = config.GraphCapture.START,
    graph_memory_mb: options.GraphMemory = config.GRAPH_MEMORY_MB,
    max_batch_tokens: options.MaxBatchTokens = None,
    saturation_batch_tokens: options.SaturationBatchTokens = None,
    max_batch_sequences: options.MaxBatchSequences = config.MAX_BATCH_SEQUENCES,
    step_timeout: options.StepTimeout = config.STEP_TIMEOUT_S,
    spin_ms: options.Spin = None,
    request_timeout: options.RequestTimeout = config.REQUEST_TIMEOUT_S,
    drain_timeout: options.DrainTimeout = config.DRAIN_TIMEOUT_S,
    log_format: options.Log = config.LogFormat.TEXT,
    log_level: options.Level = config.LogLevel.INFO,
) -> None:
    """Run a model for gateways that may be elsewhere.

    The environment variable FLOWERBED_WORKER_TOKEN holds the secret that gateways must send.
    """
    token = options.worker_token()
    if token is None and not options.is_private(listen):
        raise typer.BadParameter(
            f"{listen} can be reached from other machines and needs a secret: set "
            f"{options.TOKEN_VARIABLE} here and for the gateway, or listen on 127.0.0.1",
            param_hint="'--listen'",
        )
    if "," in device:
        raise typer.BadParameter(
            f"a worker runs on one device, not on {device}: start one worker a device, "
            "or use `flowerbed serve`",
            param_hint="'--device'",
        )
    is_supervised = process.begin(log_format, log_level)
    display = Reporting() if is_supervised else Loading(model or "the packaged model", log_format)
    with display as loading:

        def announce(address: str, model_id: str) -> None:
            loading.finish()
            print(Ready("worker", address, f"model {model_id}"), flush=True)

        from flowerbed import worker as bridge

        code = bridge.run(
            model,
            revision=revision,
            prompts=options.by_name(prompts or []),
            device=device,
            dtype=dtype,
            attention=attention,
            batch_invariant=batch_invariant,
            graph_capture=graph_capture,
            graph_memory_mb=graph_memory_mb,
            listen=listen,
            metrics_listen=(
                options.host_and_port(metrics_host, metrics_port) if metrics_port else None
            ),
            max_batch_tokens=max_batch_tokens,
            saturation_batch_tokens=saturation_batch_tokens,
            max_batch_sequences=max_batch_sequences,
            step_timeout_s=step_timeout,
            spin_ms=spin_ms,
            request_timeout_s=request_timeout,
            drain_timeout_s=drain_timeout,
            token=token,
            on_ready=announce,
            progress=loading.advance,
        )
    raise typer.Exit(code)
