"""A gateway and Tulip in this process, around any engine: for tests of the joint, without a model.

Knows nothing of torch. Ids are sent as such; a row has WIDTH values in float32 or what the test asks.
"""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowerbed import worker
from flowerbed._core import Gateway, InferenceServer
from flowerbed.config import GatewayConfig, GatewayModel, ModelInfo, TextSettings, WorkerConfig

WIDTH = 8
MAX_LENGTH = 4_096
VOCABULARY = 1_000
TOKENIZER = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
"""Nothing is tokenized."""


class Joint:
    """What runs, and how to ask it."""

    def __init__(self, address: str, server: InferenceServer, pulling: threading.Thread) -> None:
        self.address = f"http://{address}"
        self.server = server
        self.pulling = pulling  # ends by itself when the device fails

    def embed(self, inputs: list[list[int]], lane: str = "online") -> NDArray[np.float32]:
        """[num_inputs, WIDTH]."""
        status, answer = self.ask(inputs, lane)
        assert status == 200, answer
        return np.array([item["embedding"] for item in answer["data"]], dtype=np.float32)

    def ask(self, inputs: list[list[int]], lane: str = "online") -> tuple[int, Any]:
        body = json.dumps({"input": inputs}).encode()
        headers = {"content-type": "application/json", "x-flowerbed-lane": lane}
        request = urllib.request.Request(f"{self.address}/v1/embeddings", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=30) as response:
            return response.read().decode()


@contextmanager
def joint(folder: Path, engine: Any, **config: Any) -> Generator[Joint]:
    """Serves until the end of the block; `config` is over the defaults of `WorkerConfig`."""
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(json.dumps(TOKENIZER))
    digest = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    info = ModelInfo(
        id="joint",
        revision="1",
        space="joint-1",
        tokenizer_sha256=digest,
        text_sha256="joint",
        max_length=MAX_LENGTH,
        vocab_rows=VOCABULARY,
        dimensions=WIDTH,
        allowed_dimensions=(),
        normalize=False,
        heads=("embed",),
        attention_scale=3_840.0,
        dtype="float32",
        device="cpu",
        pooling="mean",
        token_dimensions=WIDTH,
        weights_sha256="none",
    )
    listen = f"unix:{folder}/joint.sock"
    of_engine = {"streams": engine.streams, "steps_in_flight": engine.steps_in_flight}
    server = InferenceServer(WorkerConfig(info, listen=listen, **{**of_engine, **config}).to_core())
    server.start()
    model = GatewayModel("joint", (), str(tokenizer), digest, TextSettings(MAX_LENGTH), "joint")
    gateway = Gateway(GatewayConfig(model, (listen,), "127.0.0.1:0").to_core())
    try:
        address = gateway.start()
        pulling = threading.Thread(target=worker.serve, args=(server, engine), daemon=True)
        pulling.start()
        running = Joint(address, server, pulling)
        _until_ready(running)
        yield running
        server.drain(10.0)
        pulling.join(20.0)
        assert not pulling.is_alive()
    finally:
        gateway.stop()
        server.stop()


def _until_ready(running: Joint) -> None:
    for _ in range(200):
        try:
            with urllib.request.urlopen(f"{running.address}/ready", timeout=5):
                return
        except urllib.error.HTTPError as error:
            error.close()
            threading.Event().wait(0.05)
    raise AssertionError("never ready")
