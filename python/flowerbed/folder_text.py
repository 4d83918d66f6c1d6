"""How a model's text becomes ids: `TextSettings` as sentence-transformers 6.2 would tokenize.

Knows the configuration files that say so, not the tokenizer itself. Called by `flowerbed.folder`.
"""

from __future__ import annotations

from typing import Any

from flowerbed.config import TextSettings
from flowerbed.errors import ModelError
from flowerbed.folder_files import MAX_TOKENIZER_BYTES, FolderFiles, JsonObject, positive, setting

TRANSFORMER_CONFIGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
"""Names under which the Transformer module's settings are saved; the first one found counts."""

TEXT_MODALITY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
SUPPORTED_TRANSFORMER_SETTINGS: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
    "modality_config": (TEXT_MODALITY,),
    "processing_kwargs": ({},),
    "model_args": ({},),
    "model_kwargs": ({},),
    "config_args": ({},),
    "config_kwargs": ({},),
    "tokenizer_name_or_path": (),
    "query_length": (),
    "document_length": (),
    "query_expansion": (),
}
"""Values that can be honoured, beside null; a setting with none must be null or absent."""

POSITIONS_AFTER_PADDING = ("camembert", "roberta", "xlm-roberta")
"""model_types whose first token's position comes after the padding token's id."""
TRAINED_TOKENS = {"bidirectional_pplx_qwen3": 32_768}
"""model_type -> longest text that its makers allow, where the folder's files may allow more."""


def positions_before_first(config: JsonObject) -> int:
    """Rows of the position table before that of a text's first token; ModelError if none is left."""
    if config.get("model_type") not in POSITIONS_AFTER_PADDING:
        return 0
    where = "config.json"
    padding_id = setting(where, config, "pad_token_id", int, 1)
    num_positions = positive(where, config, "max_position_embeddings")
    if not 0 <= padding_id < num_positions - 1:
        raise ModelError(
            f"{where}: pad_token_id={padding_id} leaves no position for text among the "
            f"max_position_embeddings={num_positions}"
        )
    return padding_id + 1


def read_text_settings(
    files: FolderFiles, prefix: str, config: JsonObject, *, pool_prompt: bool
) -> TextSettings:
    """Reads the settings of a folder whose Transformer module lies under `prefix` ("" or "name/")."""
    transformer = _transformer_config(files, prefix)
    tokenizer_config = files.json_object(prefix + "tokenizer_config.json") or {}
    tokenizer = files.json_object(prefix + "tokenizer.json", max_bytes=MAX_TOKENIZER_BYTES) or {}
    _check_lowercase_agrees(tokenizer_config, tokenizer)
    prompts, default_prompt = _prompts(files)
    lowercase = setting("sentence_bert_config.json", transformer, "do_lower_case", bool, False)
    return TextSettings(
        max_length=_max_length(transformer, tokenizer_config, config),
        truncation_side=_truncation_side(tokenizer_config, tokenizer),
        lowercase=lowercase and not _has_lowercase(tokenizer.get("normalizer")),
        strip=False,  # sentence-transformers 6.2 keeps white space, whatever its files say
        prompts=prompts,
        default_prompt=default_prompt,
        pool_prompt=pool_prompt,
    )


def _transformer_config(files: FolderFiles, prefix: str) -> JsonObject:
    for name in TRANSFORMER_CONFIGS:
        values = files.json_object(prefix + name)
        if not values:
            continue
        for key, supported in SUPPORTED_TRANSFORMER_SETTINGS.items():
            value = values.get(key)
            if value is not None and value not in supported:
                raise ModelError(
                    f"{name}: {key}={value!r} is not supported; supported: null"
                    + "".join(f", {choice!r}" for choice in supported)
                )
        return values
    return {}


def _max_length(transformer: JsonObject, tokenizer_config: JsonObject, config: JsonObject) -> int:
    """The module's own maximum, else the tokenizer's; never more than the model has positions.

    tokenizer.json's truncation does not count. A tokenizer without a maximum says 1e30.
    sentence-transformers counts the rows before the first position too, and fails on texts so long.
    """
    where = "sentence_bert_config.json"
    own = transformer.get("max_seq_length")
    for group in ("tokenizer_args", "processor_kwargs"):
        arguments = setting(where, transformer, group, dict, {})
        if unknown := set(arguments) - {"model_max_length", "padding_side", "trust_remote_code"}:
            raise ModelError(f"{where}: {group} has {sorted(unknown)}; supported: model_max_length")
        own = arguments.get("model_max_length", own)
    limits: list[Any] = [config.get("max_position_embeddings")]
    if before := positions_before_first(config):
        limits = [positive("config.json", config, "max_position_embeddings") - before]
    limits.append(TRAINED_TOKENS.get(str(config.get("model_type"))))
    limits.append(
        tokenizer_config.get("model_max_length", tokenizer_config.get("max_len"))
        if own is None
        else own
    )
    numbers: list[float] = []
    for limit in limits:
        if limit is None or limit == -1:
            continue
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 1:
            raise ModelError(f"a maximum length of {str(limit)[:80]!r} tokens makes no sense")
        numbers.append(limit)
    if not numbers or min(numbers) > 1 << 24:
        raise ModelError("no file states the maximum length: set max_seq_length in " + where)
    return int(min(numbers))


def _truncation_side(tokenizer_config: JsonObject, tokenizer: JsonObject) -> str:
    baked = tokenizer.get("truncation")
    direction = baked.get("direction") if isinstance(baked, dict) else None
    side = setting("tokenizer_config.json", tokenizer_config, "truncation_side", str, "")
    side = side or (direction.lower() if isinstance(direction, str) else "right")
    if side not in ("left", "right"):
        raise ModelError(f"truncation side {side[:80]!r} is not supported; supported: left, right")
    return side


def _has_lowercase(normalizer: Any) -> bool:
    """True if tokenizer.json itself has a Lowercase step, so that none is put before it."""
    if not isinstance(normalizer, dict):
        return False
    steps = normalizer.get("normalizers") if normalizer.get("type") == "Sequence" else [normalizer]
    return isinstance(steps, list) and any(
        isinstance(step, dict) and step.get("type") == "Lowercase" for step in steps
    )


def _check_lowercase_agrees(tokenizer_config: JsonObject, tokenizer: JsonObject) -> None:
    """Refuses a BERT tokenizer whose two files disagree: transformers goes by the other one."""
    if tokenizer_config.get("tokenizer_class") not in ("BertTokenizer", "BertTokenizerFast"):
        return
    normalizer = tokenizer.get("normalizer")
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        return
    wanted = setting("tokenizer_config.json", tokenizer_config, "do_lower_case", bool, True)
    if normalizer.get("lowercase") is not wanted:
        raise ModelError(
            f"tokenizer_config.json says do_lower_case={wanted}, tokenizer.json says "
            f"lowercase={normalizer.get('lowercase')}: make them agree, else ids differ between libraries"
        )


def _prompts(files: FolderFiles) -> tuple[dict[str, str], str | None]:
    """Prompts by name. `query` and `document` always exist and are empty unless given."""
    where = "config_sentence_transformers.json"
    values = files.json_object(where) or {}
    prompts = {"query": "", "document": ""}
    for name, text in setting(where, values, "prompts", dict, {}).items():
        if text is not None and not isinstance(text, str):
            raise ModelError(f"{where}: prompt {name!r} should be text, not {type(text).__name__}")
        prompts[name] = text or ""
    default = setting(where, values, "default_prompt_name", str, "") or None
    if default is not None and default not in prompts:
        raise ModelError(f"{where}: default_prompt_name {default!r} is none of {sorted(prompts)}")
    return prompts, default
