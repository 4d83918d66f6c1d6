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


def add_dense(folder: ModelFolder, *widths: int) -> ModelFolder:
    """Adds a Normalize after pooling and then Dense modules of random weights, each of so many columns, and reads it again.

    As sentence-transformers saves them; the first has GELU, the last neither bias nor activation.
    """
    from safetensors.torch import save_file

    torch.manual_seed(6)
    paths = ["", "1_Pooling", "2_Normalize", *(f"{i}_Dense" for i, _ in enumerate(widths, 3))]
    kinds = ["Transformer", "Pooling", "Normalize", *("Dense" for _ in widths)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    (folder.path / "modules.json").write_text(json.dumps(modules))
    inputs = folder.hidden_size
    for i, (path, outputs) in enumerate(zip(paths[3:], widths, strict=True)):
        is_last = i == len(widths) - 1
        weights = {"linear.weight": torch.randn(outputs, inputs) / inputs**0.5}
        if not is_last:
            weights["linear.bias"] = torch.randn(outputs) / 8
        activation = "linear.Identity" if is_last else "activation.GELU"
        config = {
            "in_features": inputs,
            "out_features": outputs,
            "bias": not is_last,
            "activation_function": f"torch.nn.modules.{activation}",
        }
        (folder.path / path).mkdir()
        (folder.path / path / "config.json").write_text(json.dumps(config))
        save_file(weights, folder.path / path / "model.safetensors")
        inputs = outputs
    return read_folder(resolve(str(folder.path)))


def edit(path: Path, **changes: object) -> None:
    """Changes settings of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
