"""Finds the class of an architecture, importing only that one. Called by `engine`."""

from __future__ import annotations

from importlib import import_module
from typing import ClassVar, Protocol

from torch import Tensor

from flowerbed.config import DType
from flowerbed.errors import ModelError
from flowerbed.folder_files import JsonObject
from flowerbed.rose.inputs import ForwardContext
from flowerbed.rose.weights import Weights

_ROBERTA = ("flowerbed.rose.models.roberta", "Roberta")
_QWEN3 = ("flowerbed.rose.models.qwen3", "Qwen3")
ARCHITECTURES = {
    "bert": ("flowerbed.rose.models.bert", "Bert"),
    "bidirectional_pplx_qwen3": _QWEN3,
    "camembert": _ROBERTA,
    "qwen3": _QWEN3,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}
"""model_type -> module and class."""
KNOWN_WITHOUT_CODE = ("bidirectional_pplx_qwen3",)
"""model_types that transformers itself lacks: their folders bring code, which need not be run."""


class Encoder(Protocol):
    """What every architecture is to the engine."""

    vocab_rows: int
    max_positions: int  # tokens of the longest sequence that it has positions for
    head_dim: int
    attention_scale: float  # L*, tokens: dense FLOPs a token / (4 * heads * head_dim * layers)

    def __call__(self, ids: Tensor, context: ForwardContext) -> Tensor:
        """ids: [num_tokens] int64; returns hidden states, [num_tokens, hidden]."""
        ...


class EncoderClass(Protocol):
    """What makes an encoder of a folder."""

    gpu_dtype: ClassVar[DType]
    """What `auto` means on a GPU: float16 where a norm after each block keeps values within its range."""

    def __call__(self, config: JsonObject, weights: Weights) -> Encoder:
        """Reads the settings and takes the tensors."""
        ...


def encoder_class(config: JsonObject) -> EncoderClass:
    """The class for a config.json; ModelError names what is supported."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise ModelError(
            f"config.json: model_type {str(model_type)[:80]!r} is not supported; "
            f"supported: {', '.join(sorted(ARCHITECTURES))}"
        )
    if config.get("auto_map") and model_type not in KNOWN_WITHOUT_CODE:
        raise ModelError(
            "config.json: auto_map asks for the folder's own code, which is never run; "
            "supported: models of transformers itself, without auto_map"
        )
    if config.get("quantization_config"):
        raise ModelError(
            "config.json: quantization_config is not supported; use the unquantized model"
        )
    module, name = ARCHITECTURES[model_type]
    return getattr(import_module(module), name)
