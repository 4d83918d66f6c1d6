"""Loads a model for the commands that measure it in their own process, with what a person sees meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowerbed import config
from flowerbed.cli.progress import Fetching, Loading

if TYPE_CHECKING:  # imports torch, which takes seconds
    from flowerbed.rose.engine import Engine


def load_engine(
    model: str | None,
    revision: str | None,
    device: str,
    dtype: config.DType,
    attention: config.Attention,
    batch_invariant: config.BatchInvariant,
    log_format: config.LogFormat,
) -> Engine:
    """The engine of `bench engine` and of `doctor --measure`.

    Args:
        model: Hub id, folder, or None for the packaged model.
        revision: Of the hub repository.
        device: One, as `devices.expand` names it.
        dtype: Number format of weights and activations.
        attention: What computes attention.
        batch_invariant: Whether a vector has the same bits alone and among others.
        log_format: Of stderr; text alone shows bars.

    Raises:
        FlowerbedError: The model or a setting cannot be honoured.
    """
    from flowerbed import hub
    from flowerbed.folder import read_folder
    from flowerbed.rose.engine import Engine

    with Fetching(model, log_format) as fetching:
        folder = read_folder(hub.resolve(model, revision=revision, progress=fetching.advance))
    with Loading(folder.id, log_format) as loading:
        return Engine.load(
            folder,
            device=device,
            dtype=dtype,
            attention=attention,
            batch_invariant=batch_invariant,
            progress=loading.advance,
        )
