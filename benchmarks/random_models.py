"""Model folders of real shapes with random weights: speed does not depend on them.

`python benchmarks/random_models.py qwen3-0.6b FOLDER` writes one. Accuracy beside a speed is measured
on the same weights, against the same engine in float32.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

Shape = tuple[int, ...]

QWEN3_0_6B: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3Model"],
    "vocab_size": 151_936,
    "hidden_size": 1_024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3_072,
    "max_position_embeddings": 32_768,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "is_causal": False,  # as pplx-embed-v1: in both directions, mean pooling
}
BERT_BASE: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 30_522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3_072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
BGE_M3: dict[str, Any] = {
    **BERT_BASE,
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaModel"],
    "vocab_size": 250_002,
    "hidden_size": 1_024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4_096,
    "max_position_embeddings": 8_194,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "layer_norm_eps": 1e-5,
}
ONE_LABEL: dict[str, Any] = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
BGE_RERANKER: dict[str, Any] = {
    **BGE_M3,
    **ONE_LABEL,
    "architectures": ["XLMRobertaForSequenceClassification"],
}
QWEN3_RERANKER: dict[str, Any] = {
    **QWEN3_0_6B,
    **ONE_LABEL,
    "architectures": ["Qwen3ForSequenceClassification"],  # the row of `yes` less that of `no`
    "is_causal": True,
    "pad_token_id": 0,
}
SHAPES = {
    "qwen3-0.6b": QWEN3_0_6B,
    "bert-base": BERT_BASE,
    "bge-m3": BGE_M3,
    "bge-reranker-v2-m3": BGE_RERANKER,
    "qwen3-reranker-0.6b": QWEN3_RERANKER,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "[UNK]",
    "pad_token": "[UNK]",
    "eos_token": "</s>",
}
MEAN, CLS = "pooling_mode_mean_tokens", "pooling_mode_cls_token"


def write(name: str, folder: Path, *, device: str = "cpu", tokenizer: Path | None = None) -> None:
    """Writes a folder in bfloat16: sentence-transformers', or transformers' for a reranker.

    Args:
        name: A key of `SHAPES`.
        folder: Where; it may exist.
        device: That makes the random numbers.
        tokenizer: A real tokenizer.json whose ids the shape has; else one that makes an id of each word.
    """
    config = SHAPES[name]
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    shapes = _shapes(config)
    tensors: dict[str, torch.Tensor] = {}
    for key, shape in shapes.items():
        if key.endswith(("norm.weight", "LayerNorm.weight")):
            tensor = torch.ones(shape)
        else:
            tensor = torch.randn(shape, device=device) * 0.02
        tensors[key] = tensor.to(torch.bfloat16).cpu().contiguous()
    save_file(tensors, folder / "model.safetensors")
    padding = 2 if config["model_type"] == "xlm-roberta" else 0
    max_length = config["max_position_embeddings"] - padding
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
    ]
    pooling = {
        "word_embedding_dimension": config["hidden_size"],
        MEAN if config["model_type"] == "qwen3" else CLS: True,
    }
    files: dict[str, Any] = {
        "config.json": config,
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
    }
    if tokenizer is None:
        files["tokenizer_config.json"] = TOKENIZER_CONFIG
    if "id2label" not in config:
        files |= {"modules.json": modules, "1_Pooling/config.json": pooling}
    for path, values in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(values, indent=2))
    if tokenizer is None:
        _tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))
    else:
        shutil.copyfile(tokenizer, folder / "tokenizer.json")


def _shapes(config: dict[str, Any]) -> dict[str, Shape]:
    """Of all tensors, by the names that transformers gives them."""
    is_qwen3, hidden = config["model_type"] == "qwen3", config["hidden_size"]
    shapes = _qwen3(config) if is_qwen3 else _bert(config)
    if "id2label" not in config:
        return shapes
    prefix = "model" if is_qwen3 else "roberta"
    head: dict[str, Shape] = {
        "classifier.dense.weight": (hidden, hidden),
        "classifier.dense.bias": (hidden,),
        "classifier.out_proj.weight": (1, hidden),
        "classifier.out_proj.bias": (1,),
    }
    named = {f"{prefix}.{name}": shape for name, shape in shapes.items()}
    return named | ({"score.weight": (1, hidden)} if is_qwen3 else head)


def _qwen3(config: dict[str, Any]) -> dict[str, Shape]:
    hidden, dim, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: dict[str, Shape] = {
        "embed_tokens.weight": (config["vocab_size"], hidden),
        "norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"layers.{layer}"
        shapes |= {
            f"{at}.self_attn.q_proj.weight": (heads, hidden),
            f"{at}.self_attn.k_proj.weight": (kv_heads, hidden),
            f"{at}.self_attn.v_proj.weight": (kv_heads, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, heads),
            f"{at}.self_attn.q_norm.weight": (dim,),
            f"{at}.self_attn.k_norm.weight": (dim,),
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.mlp.gate_proj.weight": (inner, hidden),
            f"{at}.mlp.up_proj.weight": (inner, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, inner),
        }
    return shapes


def _bert(config: dict[str, Any]) -> dict[str, Shape]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, Shape] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], hidden),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        for part, (rows, columns) in {
            "attention.self.query": (hidden, hidden),
            "attention.self.key": (hidden, hidden),
            "attention.self.value": (hidden, hidden),
            "attention.output.dense": (hidden, hidden),
            "intermediate.dense": (inner, hidden),
            "output.dense": (hidden, inner),
        }.items():
            shapes |= {f"{at}.{part}.weight": (rows, columns), f"{at}.{part}.bias": (rows,)}
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{at}.{part}.weight": (hidden,), f"{at}.{part}.bias": (hidden,)}
    return shapes


def _tokenizer(vocab_size: int) -> Tokenizer:
    """One id a word or number: `w17` is id 17 + 10. Enough for texts of known lengths."""
    # vLLM refuses a text unread that is longer than its tokens could be, by the longest name here.
    vocab = {"[UNK]": 0, "<s>": 1, "</s>": 2, "<a word and a space>": 3}
    vocab |= {f"w{number}": number + 10 for number in range(min(vocab_size - 10, 20_000))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))  # noqa: S106 (no secret)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    return tokenizer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a model folder with random weights.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json instead of one id a word")
    options = parser.parse_args()
    write(options.shape, options.folder, device=options.device, tokenizer=options.tokenizer)
