"""Writes MiniLM as ONNX, from ids to unit vectors: `model.onnx`, and `optimized.onnx` for ONNX Runtime.

Run as `python cpu_export.py FOLDER`, in a process of its own, since the exporter prints and stays in memory.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModel

from flowerbed.hub import resolve


class UnitVectors(nn.Module):
    """The model, then the mean over real tokens, then length 1."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(
            path, attn_implementation="eager", dtype=torch.float32, add_pooling_layer=False
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Both [num_sequences, num_tokens] int64; returns [num_sequences, hidden] float32."""
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))


def main() -> None:
    """Exports and optimizes."""
    folder = Path(sys.argv[1])
    model = UnitVectors(resolve(None).path).eval()
    ids = torch.ones(2, 16, dtype=torch.int64)
    axes = {0: "num_sequences", 1: "num_tokens"}
    # The older exporter: of the newer one's graph ONNX Runtime's optimizer finds neither attention nor
    # residual norms, and OpenVINO 2026.4 computes wrong vectors.
    torch.onnx.export(
        model,
        (ids, ids),
        folder / "model.onnx",
        input_names=["input_ids", "attention_mask"],
        output_names=["vectors"],
        dynamic_axes={"input_ids": axes, "attention_mask": axes},
        opset_version=17,
        dynamo=False,
    )
    optimizer = import_module("onnxruntime.transformers.optimizer")
    config = model.model.config
    optimized = optimizer.optimize_model(
        str(folder / "model.onnx"),
        model_type="bert",
        num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
    )
    fused = optimized.get_fused_operator_statistics()
    assert fused["Attention"] == config.num_hidden_layers, fused
    optimized.save_model_to_file(str(folder / "optimized.onnx"))


if __name__ == "__main__":
    main()
