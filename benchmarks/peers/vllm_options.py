"""vLLM's settings, as engine options and as flags of `vllm serve`: its best ones for texts to vectors.

Against its defaults: steps of 16,384 tokens and up to 1,024 sequences; graphs for every multiple of 256 up to
4,096 tokens, where it stops at 512; no prefix cache, which nothing here could hit; a key-value cache of fixed
size, so that several engines can start side by side. It makes graphs of pieces only: for pooling models
it refuses whole ones, and it turns asynchronous scheduling off. Loads no vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from rows import longest

BATCH_TOKENS, MAX_SEQUENCES, MAX_LENGTH = 16_384, 1_024, 8_192
GRAPH_TOKENS = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16), *range(768, 4_097, 256))
CACHE_BYTES = 4 << 30
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # no text is generated here, and it would need flashinfer
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for rows
}


def engine_options(options: argparse.Namespace) -> dict[str, Any]:
    """Of an engine for this folder, with those of the command line over them."""
    found: dict[str, Any] = {
        "runner": "pooling",
        "dtype": options.dtype,
        "max_model_len": min(longest(options.folder), MAX_LENGTH),
        "max_num_batched_tokens": BATCH_TOKENS,
        "max_num_seqs": MAX_SEQUENCES,
        "enable_prefix_caching": False,
        # Beside its cost: with statistics an answer of some 400 texts passes 64 KB, and zmq then reads a
        # buffer that vLLM writes to again (docs/log.md).
        "disable_log_stats": True,
        "gpu_memory_utilization": 0.1,
        "kv_cache_memory_bytes": CACHE_BYTES,
        "compilation_config": {"cudagraph_capture_sizes": list(GRAPH_TOKENS)},
    }
    return found | {key: json.loads(value) for key, value in options.set}


def shown(found: dict[str, Any]) -> dict[str, Any]:
    """As a row's flags: the list of sizes in few words."""
    graphs = f"1 to 4096 tokens, {len(GRAPH_TOKENS)} sizes"
    is_ours = found.get("compilation_config") == {"cudagraph_capture_sizes": list(GRAPH_TOKENS)}
    return found | ({"compilation_config": {"cudagraph_capture_sizes": graphs}} if is_ours else {})


def server_flags(found: dict[str, Any]) -> list[str]:
    """The same for `vllm serve`."""
    flags: list[str] = []
    for key, value in found.items():
        name = key.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--no-{name}")
        else:
            flags += [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return flags


def add_to(parser: argparse.ArgumentParser) -> None:
    """Options of every script that runs vLLM."""
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--set",
        nargs=2,
        action="append",
        default=[],
        metavar=("OPTION", "JSON"),
        help="another engine option, such as: --set max_num_seqs 256",
    )


def offline_engine(folder: Path, found: dict[str, Any]) -> Any:
    """The `LLM` of vLLM."""
    os.environ.update({key: os.environ.get(key, value) for key, value in ENVIRONMENT.items()})
    from vllm import LLM  # pyright: ignore[reportMissingImports]

    return LLM(model=str(folder), **found)


def prompts(given: list[list[int]]) -> list[dict[str, list[int]]]:
    """Sequences as vLLM takes them, past its tokenizer."""
    return [{"prompt_token_ids": ids} for ids in given]
