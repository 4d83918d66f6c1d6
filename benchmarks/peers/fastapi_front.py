"""A minimal front in Ivy's place: FastAPI on uvicorn, Hugging Face's tokenizers, one gRPC call a request.

`python fastapi_front.py WORKER FOLDER [--processes N]` serves `/v1/embeddings` on a free port. It speaks
proto/flowerbed/v1 to the same worker as Ivy, and asks for the same lane and rows. What it leaves out: limits,
admission, splitting, several replicas, errors in the caller's words, metrics. `ablation.py` starts it.
"""

from __future__ import annotations

import argparse
import base64
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel
from tokenizers import Tokenizer

from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.ready import Ready

# Of the extra bench; the types of none of them are needed here.
fastapi, grpc, uvicorn = (import_module(name) for name in ("fastapi", "grpc", "uvicorn"))
supervisors, aio = import_module("uvicorn.supervisors"), import_module("grpc.aio")

ROOT = Path(__file__).resolve().parents[2]
WORKER_VARIABLE, TOKENIZER_VARIABLE = "FRONT_WORKER", "FRONT_TOKENIZER"
MAX_MESSAGE_BYTES = 64 << 20
TIMEOUT_S = 60.0

# Where grpc looks for the definition; a module named flowerbed.v1 cannot stand beside our package.
sys.path.insert(0, str(ROOT / "proto" / "flowerbed"))
messages, services = grpc.protos_and_services("v1/inference.proto")


class Body(BaseModel):
    """What OpenAI's client sends for texts."""

    input: str | list[str]
    model: str = "default"
    encoding_format: Literal["float", "base64"] = "float"


@asynccontextmanager
async def lifespan(app: Any) -> AsyncGenerator[None]:
    """Opens the connection and asks the worker what it serves."""
    sizes = [(f"grpc.max_{way}_message_length", MAX_MESSAGE_BYTES) for way in ("send", "receive")]
    async with aio.insecure_channel(os.environ[WORKER_VARIABLE], options=sizes) as channel:
        app.state.stub = services.InferenceStub(channel)
        described = await app.state.stub.Describe(messages.DescribeRequest(), timeout=TIMEOUT_S)
        app.state.model = described.models[0]
        app.state.tokenizer = Tokenizer.from_file(os.environ[TOKENIZER_VARIABLE])
        app.state.tokenizer.no_padding()
        app.state.tokenizer.enable_truncation(app.state.model.max_length)
        yield


app = fastapi.FastAPI(lifespan=lifespan)


@app.post("/v1/embeddings")
async def embeddings(body: Body, response: fastapi.Response) -> dict[str, Any]:  # pyright: ignore[reportInvalidTypeForm]
    """Vectors in the order of the texts."""
    state = app.state
    texts = [body.input] if isinstance(body.input, str) else body.input
    ids = [state.tokenizer.encode(text).ids for text in texts]
    asked = messages.RunRequest(
        model=state.model.id,
        space=state.model.space,
        head=messages.HEAD_EMBED,
        ids=np.concatenate(ids).astype("<u4").tobytes(),
        lengths=np.array([len(one) for one in ids], "<u4").tobytes(),
        outputs=[messages.OutputSpec(dtype=messages.DTYPE_FLOAT32)],
        lane=messages.LANE_ONLINE,
    )
    answer = await state.stub.Run(asked, timeout=TIMEOUT_S)
    rows = np.frombuffer(answer.outputs[0].data, "<f4").reshape(len(texts), -1)
    response.headers["x-flowerbed-queue-us"] = str(answer.stats.queue_us)
    response.headers["x-flowerbed-step-us"] = str(answer.stats.step_us)
    is_base64 = body.encoding_format == "base64"
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(row.tobytes()).decode() if is_base64 else row.tolist(),
        }
        for index, row in enumerate(rows)
    ]
    num_tokens = sum(map(len, ids))
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return {"object": "list", "data": data, "model": state.model.id, "usage": usage}


def main() -> None:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser(description="A front of FastAPI for one worker.")
    parser.add_argument("worker", help="host:port")
    parser.add_argument("folder", nargs="?", help="model; without it the packaged one")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    os.environ[WORKER_VARIABLE] = options.worker
    os.environ[TOKENIZER_VARIABLE] = str(read_folder(resolve(options.folder)).tokenizer_file)
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    config = uvicorn.Config("fastapi_front:app", log_level="warning", workers=options.processes)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2_048)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    facts = f"FastAPI {fastapi.__version__}, processes {options.processes}"
    print(Ready("gateway", address, facts), flush=True)
    if options.processes == 1:
        uvicorn.Server(config).run(sockets=[listener])
    else:
        supervisors.Multiprocess(config, sockets=[listener]).run()


if __name__ == "__main__":
    main()
