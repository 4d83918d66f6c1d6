"""A model that can give no good vector is refused at start, not request by request."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from flowerbed.errors import ModelError
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose.engine import Engine


@pytest.mark.parametrize(("value", "what"), [(float("nan"), "not finite"), (0.0, "all zero")])
def test_NU_03_damaged_weights_are_refused_at_start(
    minilm_folder: Path, tmp_path: Path, value: float, what: str
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(minilm_folder, folder)
    weights = load_file(folder / "model.safetensors")
    for part in ("weight", "bias"):
        weights[f"encoder.layer.5.output.LayerNorm.{part}"].fill_(value)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelError, match=what):
        Engine.load(read_folder(resolve(str(folder))))
