"""flowerbed serves text-embedding models.

`import flowerbed` is cheap on purpose: each public name is loaded when it is first used, and the
client needs neither torch nor a GPU.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowerbed.client import Client, Embeddings, RequestError
    from flowerbed.errors import FlowerbedError

    __version__: str

__all__ = ["Client", "Embeddings", "FlowerbedError", "RequestError", "__version__"]

_HOMES = {
    "Client": "flowerbed.client",
    "Embeddings": "flowerbed.client",
    "FlowerbedError": "flowerbed.errors",
    "RequestError": "flowerbed.client",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("flowerbed")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
