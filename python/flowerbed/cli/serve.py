"""`flowerbed serve`: the whole system on this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from flowerbed import config, logs
from flowerbed.cli import options
from flowerbed.cli.progress import Fetching, Loading
from flowerbed.ready import Ready


def serve(
    model: options.Model = None,
    _config_file: options.ConfigFile = None,
    revision: options.Revision = None,
    aliases: options.Aliases = None,
    prompts: options.Prompts = None,
    host: options.Host = config.DEFAULT_HOST,
    port: options.Port = config.DEFAULT_PORT,
    device: options.Device = config.DEFAULT_DEVICE,
    dtype: options.Dtype = config.DType.AUTO,
    attention: options.Attention = config.Attention.AUTO,
    batch_invariant: options.BatchInvariant = config.BatchInvariant.AUTO,
    graph_capture: options.GraphCapture = config.GraphCapture.START,
    graph_memory_mb: options.GraphMemory = config.GRAPH_MEMORY_MB,
    num_workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            envvar="FLOWERBED_WORKERS",
            min=1,
            help="Worker processes. On a CPU they share the cores; on GPUs there is one a device.",
            show_default="one a device",
        ),
    ] = None,
    max_batch_tokens: options.MaxBatchTokens = None,
    saturation_batch_tokens: options.SaturationBatchTokens = None,
    max_batch_sequences: options.MaxBatchSequences = config.MAX_BATCH_SEQUENCES,
    step_timeout: options.StepTimeout = config.STEP_TIMEOUT_S,
    tokenizer_threads: options.TokenizerThreads = config.TOKENIZER_THREADS,
    spin_ms: options.Spin = None,
    auto_truncate: options.AutoTruncate = options.AUTO_TRUNCATE,
    request_timeout: options.RequestTimeout = config.REQUEST_TIMEOUT_S,
    drain_timeout: options.DrainTimeout = config.DRAIN_TIMEOUT_S,
    log_format: options.Log = config.LogFormat.TEXT,
    log_level: options.Level = config.LogLevel.INFO,
) -> None:
    """Serve a model over HTTP: the gateway and one worker a device.

    Prints one line with the address when it is ready. Ctrl-C or SIGTERM finishes open requests and
    ends everything; a second one ends it at once. SIGHUP restarts the workers one after another,
    unless it runs on a terminal, whose end it means there.

    Exit codes: 0 after a clean end, 1 if something could not start or had to be killed, 2 for a
    wrong command line, 128 plus the signal's number after a second signal.
    """
    settings = config.ServeConfig(
        model=model,
        revision=revision,
        aliases=tuple(aliases or ()),
        prompts=options.by_name(prompts or []),
        host=host,
        port=port,
        device=device,
        dtype=dtype,
        attention=attention,
        batch_invariant=batch_invariant,
        graph_capture=graph_capture,
        graph_memory_mb=graph_memory_mb,
        num_workers=num_workers,
        max_batch_tokens=max_batch_tokens,
        saturation_batch_tokens=saturation_batch_tokens,
        max_batch_sequences=max_batch_sequences,
        step_timeout_s=step_timeout,
        tokenizer_threads=tokenizer_threads,
        spin_ms=spin_ms,
        auto_truncate=bool(auto_truncate),
        request_timeout_s=request_timeout,
        drain_timeout_s=drain_timeout,
        log_format=log_format,
        log_level=log_level,
    )
    logs.setup(log_format, log_level)
    raise typer.Exit(_run(settings))


def _run(settings: config.ServeConfig) -> int:
    from flowerbed import devices
    from flowerbed.launch import plan
    from flowerbed.runtime_folder import runtime_folder
    from flowerbed.supervisor import Supervisor

    worker_devices = devices.one_a_worker(settings.device, settings.num_workers)
    settings, model_id = _checked(settings)

    with runtime_folder() as folder, Loading(model_id, settings.log_format) as loading:
        announcer = _Announcer(loading, worker_devices)
        return Supervisor(plan(settings, worker_devices, folder), announcer, loading.relay).run()


@dataclass(frozen=True, slots=True)
class _Announcer:
    """Shows the supervisor's progress, then prints the one line for stdout."""

    loading: Loading
    devices: tuple[str, ...]

    def advance(self, num_bytes: int, total_bytes: int) -> None:
        self.loading.advance(num_bytes, total_bytes)

    def ready(self, gateway: Ready) -> None:
        self.loading.finish()
        facts = f"{gateway.facts}, device {', '.join(dict.fromkeys(self.devices))}"
        if len(self.devices) > 1:
            facts = f"{facts}, {len(self.devices)} workers"
        print(replace(gateway, part="", facts=facts), flush=True)


def _checked(settings: config.ServeConfig) -> tuple[config.ServeConfig, str]:
    """Fetches and reads the model's folder once, before every child does, and names the model."""
    from flowerbed import hub
    from flowerbed.folder import read_folder

    with Fetching(settings.model, settings.log_format) as fetching:
        resolved = hub.resolve(
            settings.model, revision=settings.revision, progress=fetching.advance
        )
    model_id = read_folder(resolved).id
    is_from_hub = settings.model is not None and resolved.revision != hub.LOCAL_REVISION
    if is_from_hub:  # all children take the same commit, even if a branch moves meanwhile
        settings = replace(settings, revision=resolved.revision)
    return settings, model_id
