"""What `serve` starts: commands and environments of the gateway and of one worker a device.

Knows the command line of its children, and nothing of how they are kept alive.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flowerbed import devices
from flowerbed.child import ChildSpec
from flowerbed.config import ServeConfig
from flowerbed.config_file import CONFIG_VARIABLE
from flowerbed.knee import default_spin
from flowerbed.supervisor import Plan

PROCESS_DEFAULTS = {
    # Idle threads leave the cores to Ivy,
    "OMP_WAIT_POLICY": "passive",
    # but stay awake for microseconds, as long as a step's next operation takes to come: a query's
    # step takes half the time, a re-index a tenth less (docs/measured-facts.md).
    "GOMP_SPINCOUNT": "1000",
    # Weights and activations in huge pages, and no fast bins, which every large free would empty:
    # a step takes a twentieth less (docs/log.md).
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mxfast=0",
}
"""Environment of a worker and a gateway, where the operator's own says nothing else."""


def plan(config: ServeConfig, worker_devices: tuple[str, ...], folder: Path) -> Plan:
    """One gateway and a worker for each device, joined by Unix sockets in `folder`."""
    addresses = [f"unix:{folder / f'worker-{index}.sock'}" for index in range(len(worker_devices))]
    spin_ms = config.spin_ms
    if spin_ms is None:
        spin_ms = default_spin(worker_devices[0], len(worker_devices))
    num_cores = max(1, len(os.sched_getaffinity(0)) // len(worker_devices))

    def gateway_at(port: int) -> ChildSpec:
        joined = [part for address in addresses for part in ("--worker", address)]
        options = ["--host", config.host, "--port", str(port), *joined]
        options += ["--tokenizer-threads", str(config.tokenizer_threads)]
        options += ["--spin-ms", str(spin_ms)]
        options += ["--auto-truncate", str(config.auto_truncate).lower()]
        options += [part for alias in config.aliases for part in ("--alias", alias)]
        return ChildSpec("gateway", _command("gateway", config, options), _environment("cpu", 1))

    def worker(device: str, address: str) -> tuple[str, ...]:
        kind = device.partition(":")[0]  # it sees one GPU only
        options = ["--listen", address, "--device", kind, "--dtype", config.dtype.value]
        options += ["--attention", config.attention, "--graph-capture", config.graph_capture]
        options += ["--batch-invariant", config.batch_invariant]
        options += ["--graph-memory-mb", str(config.graph_memory_mb)]
        options += ["--metrics-port", "0"]  # the gateway serves them
        if config.saturation_batch_tokens is not None:
            options += ["--saturation-batch-tokens", str(config.saturation_batch_tokens)]
        options += ["--max-batch-sequences", str(config.max_batch_sequences)]
        options += ["--step-timeout", str(config.step_timeout_s), "--spin-ms", str(spin_ms)]
        if config.max_batch_tokens is not None:
            options += ["--max-batch-tokens", str(config.max_batch_tokens)]
        return _command("worker", config, options)

    workers = tuple(
        ChildSpec(f"worker-{index}", worker(device, address), _environment(device, num_cores))
        for index, (device, address) in enumerate(zip(worker_devices, addresses, strict=True))
    )
    return Plan(gateway_at, config.port, workers, config.drain_timeout_s)


def _command(part: str, config: ServeConfig, options: list[str]) -> tuple[str, ...]:
    """Every option is written out, so that no FLOWERBED_* variable or file moves a child."""
    command = [sys.executable, "-m", "flowerbed", part]
    command += [*options, "--request-timeout", str(config.request_timeout_s)]
    command += ["--drain-timeout", str(config.drain_timeout_s)]
    command += ["--log-format", config.log_format.value, "--log-level", config.log_level.value]
    # Both parts are given the same prompts, whatever becomes of the file that they came from.
    command += [f"--prompt={name}={text}" for name, text in config.prompts.items()]
    if config.revision is not None:
        command += ["--revision", config.revision]
    if config.model is not None:
        command += ["--", config.model]
    return tuple(command)


def _environment(device: str, num_cores: int) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != CONFIG_VARIABLE}
    environment["CUDA_VISIBLE_DEVICES"] = devices.visible(device)
    environment.setdefault("OMP_NUM_THREADS", str(num_cores))
    for name, value in PROCESS_DEFAULTS.items():
        environment.setdefault(name, value)
    environment["TOKENIZERS_PARALLELISM"] = "false"  # Ivy has a pool of its own
    return environment
