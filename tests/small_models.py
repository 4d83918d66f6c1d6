"""Folders of small random models, one of each architecture; their tokenizers know one word for each id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from flowerbed.folder import ModelFolder, read_folder
from flowerbed.hub import resolve

VOCAB_ROWS = 1_000
MAX_TOKENS = 512
POOLING = {"bert": "mean", "xlm-roberta": "cls", "qwen3": "lasttoken", "pplx": "mean"}
"""By kind: pplx is a Qwen3 that sees both ways."""


def small_model(
    kind: str, path: Path, *, hidden: int = 128, head_dim: int = 64, **settings: Any
) -> ModelFolder:
    """Writes one and reads it.

    Weights are as large as those that training starts with. Five times larger ones, in three layers, put
    bfloat16 itself 4e-4 away from float32, and two right ways to compute as far from each other.

    Args:
        kind: A key of POOLING.
        path: Where; it must not exist.
        hidden: Width.
        head_dim: Of its heads.
        settings: More of transformers' config.
    """
    import transformers

    torch.manual_seed(5)
    num_heads = hidden // head_dim
    sizes: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 3,
        "num_attention_heads": num_heads,
        "max_position_embeddings": MAX_TOKENS + 2,
        "vocab_size": VOCAB_ROWS,
        "initializer_range": 0.02,
    } | settings
    if kind in ("bert", "xlm-roberta"):
        family = "Bert" if kind == "bert" else "XLMRoberta"
        config = getattr(transformers, f"{family}Config")(**sizes)
    else:
        family = "Qwen3"
        heads = {"num_key_value_heads": max(1, num_heads // 2), "head_dim": head_dim}
        config = transformers.Qwen3Config(**sizes, **heads)
    getattr(transformers, f"{family}Model")(config).save_pretrained(path)
    if kind == "pplx":
        edit(path / "config.json", is_causal=False)
    vocabulary = {f"w{number}": number for number in range(VOCAB_ROWS)}
    words = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"}
    tokenizer = {
        "version": "1.0",
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": words,
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (path / "1_Pooling").mkdir()
    pooling = {"embedding_dimension": hidden, "pooling_mode": POOLING[kind]}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return read_folder(resolve(str(path)))


def edit(path: Path, **changes: object) -> None:
    """Changes settings of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
