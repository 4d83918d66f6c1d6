"""`flowerbed gateway`: Ivy alone, in front of workers that run elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from flowerbed import config
from flowerbed.cli import options, process
from flowerbed.ready import Ready


def gateway(
    workers: Annotated[
        list[str],
        typer.Option(
            "--worker",
            envvar="FLOWERBED_WORKER",
            callback=options.check_addresses,
            metavar="ADDR",
            help="host:port or unix:path of a worker; repeat it for each.",
        ),
    ],
    model: options.Model = None,
    _config_file: options.ConfigFile = None,
    revision: options.Revision = None,
    aliases: options.Aliases = None,
    prompts: options.Prompts = None,
    host: options.Host = config.DEFAULT_HOST,
    port: options.Port = config.DEFAULT_PORT,
    request_timeout: options.RequestTimeout = config.REQUEST_TIMEOUT_S,
    drain_timeout: options.DrainTimeout = config.DRAIN_TIMEOUT_S,
    tokenizer_threads: options.TokenizerThreads = config.TOKENIZER_THREADS,
    spin_ms: options.GatewaySpin = 0,
    auto_truncate: options.AutoTruncate = options.AUTO_TRUNCATE,
    log_format: options.Log = config.LogFormat.TEXT,
    log_level: options.Level = config.LogLevel.INFO,
) -> None:
    """Answer HTTP requests with the help of workers.

    MODEL and its prompts must be those of the workers: the gateway tokenizes for them, and refuses
    a worker whose tokenizer or prompts are not its own. FLOWERBED_WORKER_TOKEN holds the secret that they share.
    """
    process.begin(log_format, log_level)

    def announce(address: str, model_id: str) -> None:
        print(Ready("gateway", f"http://{address}", f"model {model_id}"), flush=True)

    from flowerbed import gateway as bridge

    code = bridge.run(
        model,
        revision=revision,
        aliases=tuple(aliases or ()),
        prompts=options.by_name(prompts or []),
        listen=options.host_and_port(host, port),
        workers=tuple(workers),
        token=options.worker_token(),
        request_timeout_s=request_timeout,
        drain_timeout_s=drain_timeout,
        tokenizer_threads=tokenizer_threads,
        spin_ms=spin_ms,
        auto_truncate=bool(auto_truncate),
        on_ready=announce,
    )
    raise typer.Exit(code)
