"""Talks to a running gateway over HTTP. Needs neither torch nor a GPU."""

from flowerbed.client.client import Client, Embeddings
from flowerbed.client.errors import RequestError

__all__ = ["Client", "Embeddings", "RequestError"]
