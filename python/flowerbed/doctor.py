"""What an installation consists of, and whether serving would work. Changes nothing, fetches nothing.

Called by `flowerbed doctor`.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import zlib
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module, metadata, util
from pathlib import Path

from flowerbed import config, devices, hub, hub_cache, hub_download, knee, machine
from flowerbed.errors import DeviceError, FlowerbedError, ModelError
from flowerbed.folder import ModelFolder, read_folder
from flowerbed.report import Report

VERIFIED_CAPABILITIES = ((9, 0),)
"""GPUs that the tests marked gpu ran on: an H200."""
COMPILED_FROM = (8, 0)
MEASURED_HEAD_DIM = 128
"""Of an attention head of Qwen3."""
MIN_OPEN_FILES = 1_024
"""Each open connection takes one."""
_NEEDED = ("torch", "safetensors")
"""Of the engine; the rest of the extras makes something faster or adds a command."""


def examine(
    model: str | None,
    revision: str | None,
    *,
    device: str,
    host: str,
    port: int,
    dtype: config.DType = config.DType.AUTO,
    attention: config.Attention = config.Attention.AUTO,
    batch_invariant: config.BatchInvariant = config.BatchInvariant.AUTO,
    max_batch_tokens: int | None = None,
) -> Report:
    """Looks at everything that serving needs.

    Args:
        model: Folder or hub id, which is only looked up in the cache; None for the packaged default.
        revision: Of a hub id.
        device: As `serve` takes it.
        host: That the gateway would bind.
        port: Its port; 0 for any free one.
        dtype: As `serve` takes it.
        attention: Likewise.
        batch_invariant: Likewise.
        max_batch_tokens: Budget of a step that rules over a measured knee, if one is set.
    """
    report = Report()
    _versions(report)
    _core(report)
    _machine(report, device)
    _engine(report)
    _kernels(report, device)
    _budget(report, max_batch_tokens)
    _extras(report)
    _model(report, model, revision, device, dtype, attention, batch_invariant)
    _hub(report)
    _limits(report, host, port)
    return report


def source_hash(root: Path) -> str:
    """Hash of the Rust sources of a checkout, as crates/python/build.rs stamps it into the core."""
    suffixes = {".rs", ".proto", ".toml"}
    places = ((root / name).rglob("*") for name in ("crates", "proto"))
    files = [path for place in places for path in place if path.suffix in suffixes]
    total = 0
    for path in sorted(path.relative_to(root).as_posix() for path in files if path.is_file()):
        total = zlib.crc32((root / path).read_bytes(), zlib.crc32(path.encode(), total))
    return f"{total:08x}"


def checkout() -> Path | None:
    """Root of the repository that this package runs from; None for an installed wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "crates" / "python" / "build.rs").is_file() else None


def _versions(report: Report) -> None:
    packages = ("flowerbed", "torch", "triton", "flash-attn-4", "quack-kernels", "safetensors", "tokenizers",
                "huggingface_hub")  # fmt: skip
    versions = {name: _version(name) for name in packages}
    report.add("versions", **versions, python=platform.python_version(), path=sys.executable)


def _core(report: Report) -> None:
    try:
        from flowerbed import _core
    except ImportError as error:
        report.error(f"the Rust core cannot be loaded: {error}", "make build")
        return
    build = _core.build_info()
    report.add("core", **build)
    if build["profile"] != "release":
        report.warn(
            f"the core is a {build['profile']} build, which is many times slower", "make build"
        )
    root = checkout()
    if root is None:
        return
    is_stale = build["source_hash"] != source_hash(root)
    report.add("core", stale=is_stale)
    if is_stale:
        report.warn(
            "the core was built from other sources than those of this checkout", "make build"
        )


def _machine(report: Report, device: str) -> None:
    features = machine.cpu_features()
    report.add("cpu", name=machine.cpu_name(), cores=machine.num_cores(), **features)
    for index, (name, capability) in enumerate(machine.gpus()):
        report.add("gpus", **{f"cuda:{index}": f"{name}, {_support(capability)}"})
    try:
        report.add("devices", **{device: ", ".join(devices.expand(device))})
    except FlowerbedError as error:
        report.error(str(error), "; ".join(getattr(error, "__notes__", [])))


def _support(capability: tuple[int, int]) -> str:
    """What is known of the kernels on a GPU of this compute capability."""
    number = f"sm_{capability[0]}{capability[1]}"
    if capability in VERIFIED_CAPABILITIES:
        return f"{number}: kernels verified and measured"
    if capability >= COMPILED_FROM:
        return f"{number}: kernels are compiled in tests, but were never run on such a GPU"
    return f"{number}: too old for bfloat16 and ragged attention; steps run in float32, one by one"


def _engine(report: Report) -> None:
    given = os.environ.get(machine.THREADS_VARIABLE)
    report.add("threads", **{machine.THREADS_VARIABLE: given}, worker=machine.num_threads())
    broken = [name for name in _NEEDED if not _is_importable(name)]
    if broken:
        report.error(
            f"the engine cannot be loaded: {', '.join(broken)}", "pip install 'flowerbed[engine]'"
        )
        return
    report.add("threads", torch=import_module("torch").get_num_threads())
    if machine.num_threads() > machine.num_cores():
        report.warn(
            f"{machine.THREADS_VARIABLE} is {given}, but only {machine.num_cores()} cores are there",
            f"unset {machine.THREADS_VARIABLE}",
        )


def _kernels(report: Report, device: str) -> None:
    """What steps on the GPUs that would serve lack; as a worker finds at its start."""
    names = [name for name in _devices(device) if name != "cpu"]
    if not names or not all(_is_importable(name) for name in _NEEDED):
        return
    import torch

    from flowerbed.rose.device import pick_device
    from flowerbed.rose.kernels.attention import Backend
    from flowerbed.rose.kernels.flash_attention import why_not

    for name in names:
        try:
            gpu = pick_device(name)
        except FlowerbedError as error:
            report.error(str(error))
            return
        lacks = why_not(Backend.FLASH_ATTN_4, gpu, torch.bfloat16, MEASURED_HEAD_DIM)
        report.add("kernels", **{name: lacks or "Triton and flash-attn-4 work"})
        if lacks is not None:
            is_missing = lacks.endswith("not installed")
            fix = "pip install 'flowerbed[engine,cuda]'" if is_missing else ""
            report.warn(f"steps on {name} are slower than they could be: {lacks}", fix)


def _devices(device: str) -> tuple[str, ...]:
    """Those that would serve; none where `_machine` has told why not."""
    try:
        return devices.expand(device)
    except FlowerbedError:
        return ()


def _budget(report: Report, max_batch_tokens: int | None) -> None:
    report.add(
        "budget",
        max_batch_tokens=max_batch_tokens or "the measured knee",
        without_a_knee=config.CPU_BATCH_TOKENS,
        at_least_on_a_gpu=config.GPU_BATCH_TOKENS,
        without_a_knee_or_ragged_attention_there=config.GPU_ONE_STREAM_BATCH_TOKENS,
        saturation_batch_tokens=config.CPU_SATURATION_BATCH_TOKENS,
        saturation_batch_tokens_on_a_gpu=config.GPU_SATURATION_BATCH_TOKENS,
        max_batch_sequences=config.MAX_BATCH_SEQUENCES,
        request_timeout_s=config.REQUEST_TIMEOUT_S,
        step_timeout_s=config.STEP_TIMEOUT_S,
        measured_in=str(knee.cache_file()),
    )
    for found in knee.stored():
        now = knee.conditions("cpu", found.conditions.space, found.conditions.attention)
        names = {now.device, *machine.gpu_names()}
        is_used = found.conditions.device in names and (
            found.conditions.flowerbed, found.conditions.torch
        ) == (now.flowerbed, now.torch)  # fmt: skip
        if is_used:
            rate = f"{found.tokens_per_second:,.0f} tokens/s on {found.conditions.device}"
            name = f"{found.model} ({found.conditions.space}, {found.conditions.attention})"
            report.add(
                "measured knees",
                **{name: f"{found.tokens} tokens, {rate}"},
            )


def _extras(report: Report) -> None:
    for extra, packages in _packages_of_extras().items():
        missing = [name for name in packages if _version(name) == "not installed"]
        command = f"missing {', '.join(missing)}: pip install 'flowerbed[{extra}]'"
        report.add("extras", **{extra: command if missing else "installed"})


def _model(
    report: Report,
    model: str | None,
    revision: str | None,
    device: str,
    dtype: config.DType,
    attention: config.Attention,
    batch_invariant: config.BatchInvariant,
) -> None:
    try:
        packaged = hub.resolve(None)
    except ModelError as error:
        is_installed = util.find_spec(hub.DEFAULT_PACKAGE.replace("-", "_")) is not None
        facts = {"verified": False} if is_installed else {}
        report.add("packaged model", installed=is_installed, **facts)
        (report.error if model is None else report.warn)(str(error))
        if model is None:
            return
    else:
        report.add("packaged model", id=packaged.id, installed=True, verified=True)
    try:
        folder = _read_folder(report, model, revision)
        if folder is None:
            return
        if all(_is_importable(name) for name in _NEEDED):
            from flowerbed.rose.engine import check

            with suppress(DeviceError):  # told by `_kernels`
                check(folder, _devices(device), dtype, attention, batch_invariant)
    except FlowerbedError as error:
        report.error(str(error), "; ".join(getattr(error, "__notes__", [])))
        return
    if model is not None:
        report.add("model", id=folder.id, revision=folder.revision, dimensions=folder.dimensions)
        report.add("model", max_length=folder.text.max_length, pooling="+".join(folder.pooling))


def _read_folder(report: Report, model: str | None, revision: str | None) -> ModelFolder | None:
    """As `serve` would read it; none where it would have to be fetched."""
    if model is None or Path(model).expanduser().exists():
        return read_folder(hub.resolve(model, revision=revision))
    cached = hub_cache.find(model, revision)
    if cached is not None:
        return read_folder(hub.ResolvedModel(cached.path, cached.id, cached.commit))
    (report.error if hub_cache.is_offline() else report.warn)(
        f"{model} is not in the cache; serving would fetch it from the hub",
        f"flowerbed models pull {model}",
    )
    return None


def _hub(report: Report) -> None:
    report.add("hub", token=hub_download.has_token(), HF_HUB_OFFLINE=hub_cache.is_offline())
    report.add("hub", cache=str(hub_cache.root()))


def _limits(report: Report, host: str, port: int) -> None:
    refusal = machine.why_not_bindable(host, port)
    where = f"{host} port {port}"
    if refusal is None:
        report.add("limits", **{where: "free"})
    else:
        reason = refusal.strerror or str(refusal)
        hint = machine.bind_hint(refusal, host_option="--host", port_option="--port")
        report.add("limits", **{where: reason})
        report.error(
            f"nothing can listen on {where}: {reason}", hint or "choose another with --host"
        )
    limit = machine.max_open_files()
    report.add("limits", open_files=limit)
    if limit < MIN_OPEN_FILES:
        report.warn(
            f"a process may only have {limit} files and connections open", "ulimit -n 65536"
        )


def _packages_of_extras() -> dict[str, list[str]]:
    """Packages of each extra but `dev`, as the installed metadata lists them."""
    try:
        required: Iterable[str] = metadata.requires("flowerbed") or ()
    except metadata.PackageNotFoundError:
        required = ()
    found: dict[str, list[str]] = {}
    for line in required:
        match = re.match(r"([\w.-]+).*extra == ['\"](\w+)['\"]", line)
        if match and match[2] != "dev":
            found.setdefault(match[2], []).append(match[1])
    return found


def _is_importable(name: str) -> bool:
    if util.find_spec(name) is None:
        return False
    try:
        import_module(name)
    except (ImportError, OSError):  # a library that it links to is missing or broken
        return False
    return True


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
