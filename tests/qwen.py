"""Tiny random Qwen3 models in folders like those that are published: names, keys and tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NUM_WORDS = 1_000
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLAIN_ADDED_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
END_ID = NUM_WORDS
"""Of <|endoftext|>, the first id after the vocabulary, as in Qwen's own tokenizer."""
VOCAB_ROWS = NUM_WORDS + len(SPECIAL_TOKENS) + len(PLAIN_ADDED_TOKENS) + 9  # padded
MAX_POSITIONS = 256
QUERY_PROMPT = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)

QWEN3_EMBEDDING_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": END_ID,
    "eos_token_id": END_ID,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.2,
    "intermediate_size": 48,
    "max_position_embeddings": MAX_POSITIONS,
    "max_window_layers": 3,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.3",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCAB_ROWS,
}
PPLX_CONFIG: dict[str, Any] = {
    key: value
    for key, value in QWEN3_EMBEDDING_CONFIG.items()
    if key not in ("rope_scaling", "rope_theta", "torch_dtype")
} | {
    "architectures": ["PPLXQwen3Model"],
    "auto_map": {
        "AutoConfig": "configuration.PPLXQwen3Config",
        "AutoModel": "modeling.PPLXQwen3Model",
    },
    "dtype": "float32",
    "layer_types": ["full_attention"] * 3,
    "model_type": "bidirectional_pplx_qwen3",
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "use_bidirectional_attention": True,
    "use_cache": False,
}
POOLING = {
    "word_embedding_dimension": 32,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
    "pooling_mode_weightedmean_tokens": False,
    "pooling_mode_lasttoken": False,
    "include_prompt": True,
}
QUANTIZER = {"type": "st_quantize.FlexibleQuantizer", "path": "", "kwargs": ["quantization"]}


def module(kind: str, path: str) -> dict[str, Any]:
    return {"type": f"sentence_transformers.models.{kind}", "path": path}


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def edit_json(path: Path, **changes: object) -> None:
    write_json(path, json.loads(path.read_text()) | changes)


def write_modules(folder: Path, *modules: dict[str, Any]) -> None:
    listed = [{"idx": at, "name": str(at), **entry} for at, entry in enumerate(modules)]
    write_json(folder / "modules.json", listed)


def write_tokenizer(folder: Path, texts: Sequence[str], *, appends_end: bool) -> None:
    """Byte-level BPE as Qwen's, trained on `texts`; Qwen3-Embedding's appends <|endoftext|>."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_WORDS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in PLAIN_ADDED_TOKENS])
    assert tokenizer.token_to_id(SPECIAL_TOKENS[0]) == END_ID
    bytes_only = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    end = processors.TemplateProcessing(
        single="$A <|endoftext|>",
        pair="$A <|endoftext|> $B:1 <|endoftext|>:1",
        special_tokens=[("<|endoftext|>", END_ID)],
    )
    tokenizer.post_processor = processors.Sequence([bytes_only, end]) if appends_end else bytes_only
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "add_prefix_space": False,
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 131072,
            "pad_token": "<|endoftext|>",
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
    )


def write_qwen3_embedding(folder: Path, texts: Sequence[str]) -> None:
    """All of a Qwen3-Embedding folder but the weights."""
    write_tokenizer(folder, texts, appends_end=True)
    write_json(folder / "config.json", QWEN3_EMBEDDING_CONFIG)
    write_modules(
        folder,
        module("Transformer", ""),
        module("Pooling", "1_Pooling"),
        module("Normalize", "2_Normalize"),
    )
    write_json(folder / "1_Pooling/config.json", POOLING | {"pooling_mode_lasttoken": True})
    write_json(
        folder / "config_sentence_transformers.json",
        {
            "prompts": {"query": QUERY_PROMPT, "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    )


def write_pplx_embed(folder: Path, texts: Sequence[str]) -> None:
    """All of a pplx-embed-v1 folder but the weights. Its code would end whoever runs it."""
    write_tokenizer(folder, texts, appends_end=False)
    write_json(folder / "config.json", PPLX_CONFIG)
    write_modules(folder, module("Transformer", ""), module("Pooling", "1_Pooling"), QUANTIZER)
    write_json(folder / "1_Pooling/config.json", POOLING | {"pooling_mode_mean_tokens": True})
    for name in ("configuration.py", "modeling.py", "st_quantize.py"):
        (folder / name).write_text("raise SystemExit('code of a model folder was run')\n")


def save_weights(folder: Path, *, with_head: bool, seed: int = 17, **options: Any) -> None:
    """Random weights for `folder`'s config.json, under the names of Qwen3ForCausalLM or Qwen3Model."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3Model

    config_file = folder / "config.json"
    kept = config_file.read_text()
    values = {k: v for k, v in json.loads(kept).items() if k not in ("model_type", "auto_map")}
    torch.manual_seed(seed)
    model = (Qwen3ForCausalLM if with_head else Qwen3Model)(Qwen3Config(**values))
    for name, tensor in model.named_parameters():
        if name.endswith("norm.weight"):  # not the ones that it starts with
            tensor.data.uniform_(0.5, 1.5)
    model.float().eval().save_pretrained(folder, **options)
    config_file.write_text(kept)
    (folder / "generation_config.json").unlink(missing_ok=True)
