"""Folders laid out as Qwen3-Embedding and pplx-embed, from text to vectors through `flowerbed serve`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import numpy as np
import torch

import qwen
from flowerbed.background import serving
from references import reference_model
from serve.callers import Http, cosines
from serve.parity import MIN_COSINE, check_ids, check_parity

ODD_TEXTS = ["naïve café ﬁn", "年 漢字 🙂", "  two  spaces\n\n", "<think>it's 12345</think>", "<|im_end|>"]  # fmt: skip


@contextmanager
def served(folder: Path) -> Generator[Http]:
    with (
        serving(str(folder), "--device", "cpu") as running,
        httpx2.Client(base_url=running.address, timeout=60) as client,
    ):
        yield Http(client)


def test_qwen3_embedding_equals_sentence_transformers(
    tmp_path: Path, real_texts: list[str]
) -> None:
    folder = tmp_path / "Qwen3-Embedding-Tiny"
    qwen.write_qwen3_embedding(folder, real_texts)
    qwen.save_weights(folder, with_head=True)
    reference = reference_model(folder)
    texts = ["", *real_texts[::8], *ODD_TEXTS]
    with served(folder) as http:
        check_ids(http, reference, texts)
        check_parity(http, reference, texts)
        asked = http.embed(texts[:5], prompt_name="query")
        expected = reference.encode(texts[:5], prompt_name="query")
        assert cosines(asked, expected).min() >= MIN_COSINE


def test_pplx_embed_gives_its_levels_as_floats(tmp_path: Path, real_texts: list[str]) -> None:
    from tokenizers import Tokenizer
    from transformers import Qwen3Model

    folder = tmp_path / "pplx-embed-tiny"
    qwen.write_pplx_embed(folder, real_texts)
    qwen.save_weights(folder, with_head=False)
    texts = [*real_texts[::20], *ODD_TEXTS]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(qwen.MAX_POSITIONS)
    model = Qwen3Model.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    model.config.is_causal = False
    with served(folder) as http, torch.inference_mode():
        for text in texts:
            ids = tokenizer.encode(text).ids
            mean = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
            answer = http.post({"input": text, "dimensions": 24}).json()
            assert answer["usage"]["prompt_tokens"] == len(ids)
            levels = np.array(answer["data"][0]["embedding"])
            assert np.array_equal(levels, np.rint(levels))
            assert np.abs(levels - 127 * np.tanh(mean.numpy()[:24])).max() <= 0.501
        assert "the model adds none of its own" in http.refused({"input": ["a", ""]})["message"]
