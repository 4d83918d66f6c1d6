"""Reads a sentence-transformers folder: what the model is, and what runs after it.

A folder is hostile input (`flowerbed.folder_files`). What it asks for and cannot be had is refused
here with the reason; which architectures exist is known to `flowerbed.rose.models`. No torch, so
the gateway reads a folder too. Called by the command line, the worker and the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from flowerbed.config import TextSettings
from flowerbed.errors import ModelError
from flowerbed.folder_files import FolderFiles, JsonObject, canonical_sha256, positive, setting
from flowerbed.folder_text import read_text_settings
from flowerbed.hub import ResolvedModel

NUMERICS_VERSION = 7
"""Part of every space. Raise it when a change of `flowerbed.rose` moves vectors."""

POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
LEGACY_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Switches of folders saved before version 6, in the order in which their vectors are joined."""
ACTIVATIONS = ("Tanh", "Identity", "ReLU", "GELU", "Sigmoid", "SiLU")
MODULE_KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
MAX_MODULES = 16
Quantizer = Literal["tanh"]
"""How a model that was trained for whole numbers makes them of its vectors."""
QUANTIZERS: dict[str, Quantizer] = {"st_quantize.FlexibleQuantizer": "tanh"}
"""Last modules whose code comes with the folder: it is never run, what it computes is known."""
OWN_ENDS: dict[str, tuple[str, Quantizer]] = {"bidirectional_pplx_qwen3": ("mean", "tanh")}
"""model_type -> pooling mode and quantizer that its own code applies, where no modules are listed."""
DESCRIPTIVE_KEYS = frozenset(
    ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "architectures")
)
"""Entries of config.json that move no vector, so that they do not change the space."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A product after pooling: activation(x W^T + b)."""

    prefix: str  # folder of its weights, such as "2_Dense/"
    in_features: int
    out_features: int
    bias: bool
    activation: str  # one of ACTIVATIONS


@dataclass(frozen=True, slots=True)
class Normalize:
    """Scales each row to length 1."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Keeps the leading values of each row, without scaling what is left."""

    dimensions: int


AfterPooling = Dense | Normalize | Truncate


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model folder, read and checked."""

    path: Path
    id: str
    revision: str
    prefix: str  # where config.json and the weights lie: "" or "0_Transformer/"
    config: JsonObject  # config.json as it is
    hidden_size: int  # values of one token's vector
    pooling: tuple[str, ...]  # of POOLING_MODES; their vectors are joined in this order
    after_pooling: tuple[AfterPooling, ...]  # without a Normalize at the end
    normalize: bool  # the folder ends with a Normalize, which a request may turn off
    dimensions: int
    allowed_dimensions: tuple[int, ...]  # empty: 1 to dimensions
    quantizer: Quantizer | None  # see `kernels.pack`
    text: TextSettings
    text_sha256: str
    tokenizer_file: Path
    tokenizer_sha256: str

    def files(self) -> FolderFiles:
        """Guarded access to the folder's files."""
        return FolderFiles(self.path)

    def weight_digests(self) -> dict[str, str]:
        """The sha256 of each file of weights, by name. Reads all the weights."""
        files = self.files()
        names = weight_files(files, self.prefix)
        for module in self.after_pooling:
            if isinstance(module, Dense):
                names = [*names, *weight_files(files, module.prefix)]
        return {name: files.sha256(name) for name in names}

    def space(
        self,
        dtype: str,
        digests: Mapping[str, str] | None = None,
        kernels: Sequence[str] = (),
    ) -> str:
        """Hash of everything that moves a vector, 16 hexadecimal digits.

        Args:
            dtype: Number format that the model runs in, such as float32.
            digests: What `weight_digests` gave; None reads all the weights.
            kernels: Whose they are, in a number format that makes more of their last bits than roundings.
        """
        moving = {
            "numerics": NUMERICS_VERSION,
            "dtype": dtype,
            "weights": dict(self.weight_digests() if digests is None else digests),
            "config": {k: v for k, v in self.config.items() if k not in DESCRIPTIVE_KEYS},
            "tokenizer": self.tokenizer_sha256,
            "text": self.text_sha256,
            "pooling": self.pooling,
            "modules": [[type(module).__name__, asdict(module)] for module in self.after_pooling],
            "normalize": self.normalize,
        }
        if self.quantizer is not None:
            moving["quantizer"] = self.quantizer
        if kernels:
            moving["kernels"] = list(kernels)
        return canonical_sha256(moving)[:16]


def read_folder(model: ResolvedModel, prompts: Mapping[str, str] | None = None) -> ModelFolder:
    """Reads and checks the folder of `model`; ModelError tells what is missing or unsupported.

    `prompts` come over the folder's own. They move vectors, so the gateway and all of its workers
    must be given the same.
    """
    files = FolderFiles(model.path)
    modules, quantizer = _modules(files)
    prefix = _prefix(modules[0])
    files.need(prefix + "config.json", "it says which architecture the weights are of")
    config = files.json_object(prefix + "config.json") or {}
    if model.has_weights:
        weight_files(files, prefix)
    tokenizer_file = _tokenizer_file(files, prefix)
    hidden = positive("config.json", config, "hidden_size")
    pooling, pool_prompt = _pooling(files, _prefix(modules[1]), config)
    width = hidden * len(pooling)
    after_pooling: list[AfterPooling] = []
    for kind, path in modules[2:]:
        if kind == "Dense":
            dense = _dense(files, _prefix((kind, path)), width)
            if model.has_weights:
                weight_files(files, dense.prefix)
            after_pooling.append(dense)
            width = dense.out_features
        else:
            after_pooling.append(_normalize(files, _prefix((kind, path))))
    allowed, truncate_to = _dimensions(files, config, width)
    if truncate_to is not None:
        after_pooling.append(Truncate(truncate_to))
    normalize = False
    while quantizer is None and after_pooling and isinstance(after_pooling[-1], Normalize):
        normalize = True
        after_pooling.pop()
    text = read_text_settings(files, prefix, config, pool_prompt=pool_prompt)
    text = replace(text, prompts={**text.prompts, **(prompts or {})})
    return ModelFolder(
        path=model.path,
        id=model.id,
        revision=model.revision,
        prefix=prefix,
        config=config,
        hidden_size=hidden,
        pooling=pooling,
        after_pooling=tuple(after_pooling),
        normalize=normalize,
        dimensions=truncate_to or width,
        allowed_dimensions=allowed,
        quantizer=quantizer,
        text=text,
        text_sha256=canonical_sha256(asdict(text)),
        tokenizer_file=tokenizer_file,
        tokenizer_sha256=files.sha256(prefix + "tokenizer.json"),
    )


def weight_files(files: FolderFiles, prefix: str) -> list[str]:
    """Names of the safetensors files under `prefix`, which must exist; shards in sorted order."""
    single, index = prefix + "model.safetensors", prefix + "model.safetensors.index.json"
    if files.path(single) is not None:
        return [single]
    values = files.json_object(index)
    if values is None:
        if any(files.root.glob(f"{prefix}model-*-of-*.safetensors")):
            raise ModelError(f"the weights are in shards, but their index {index} is missing")
        for pickle in ("pytorch_model.bin", "pytorch_model.bin.index.json"):
            if files.path(prefix + pickle) is not None:
                raise ModelError(
                    f"the weights are only there as {prefix}{pickle}, a pickle, which could run code: "
                    "convert them to safetensors (load and save the model with transformers)"
                )
        raise ModelError(f"the model's folder has no weights: {single} is missing")
    shards = setting(index, values, "weight_map", dict, {}).values()
    if not shards or not all(isinstance(shard, str) for shard in shards):
        raise ModelError(f"{index}: weight_map should name a file for each tensor")
    names = [prefix + shard for shard in sorted(set(shards))]
    for name in names:
        if not name.endswith(".safetensors"):
            raise ModelError(f"{index} names {name!r}; weights are read from safetensors only")
        files.need(name, f"{index} names this shard of the weights; download it again")
    return names


def _modules(files: FolderFiles) -> tuple[list[tuple[str, str]], Quantizer | None]:
    """Kind and folder of each module, in order: a Transformer, a Pooling, then others. And the quantizer."""
    listed = files.json("modules.json")
    if listed is None:
        return _modules_without_list(files)
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_MODULES:
        raise ModelError(f"modules.json should list 1 to {MAX_MODULES} modules")
    modules: list[tuple[str, str]] = []
    quantizer = None
    for entry in listed:
        if not isinstance(entry, dict):
            raise ModelError(f"modules.json: a module should be an object, not {str(entry)[:80]!r}")
        kind = setting("modules.json", entry, "type", str, "")
        if kind in QUANTIZERS and entry is listed[-1]:
            _check_quantizer(entry)
            quantizer = QUANTIZERS[kind]
            continue
        name = kind.rpartition(".")[2]
        if not kind.startswith("sentence_transformers.") or name not in MODULE_KINDS:
            raise ModelError(
                f"modules.json: module type {kind[:200]!r} is not supported: leaving it out would give "
                f"other vectors; supported: {', '.join(MODULE_KINDS)} of sentence_transformers, and "
                f"as the last one {', '.join(QUANTIZERS)}"
            )
        if entry.get("kwargs"):
            raise ModelError(f"modules.json: kwargs of {name} are not supported; leave them out")
        modules.append((name, setting("modules.json", entry, "path", str, "")))
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & set(kinds[2:]):
        raise ModelError(
            f"modules.json lists {', '.join(kinds)}; supported: Transformer, Pooling, then any number "
            "of Dense and Normalize"
        )
    return modules, quantizer


def _check_quantizer(entry: JsonObject) -> None:
    """Its kwargs name what a caller of `encode` may choose, which our callers choose by format."""
    if entry.get("kwargs") not in (None, [], {}, ["quantization"]):
        raise ModelError(
            f"modules.json: kwargs={str(entry['kwargs'])[:80]} of {entry['type']} are not supported; "
            'supported: ["quantization"]'
        )


def _modules_without_list(files: FolderFiles) -> tuple[list[tuple[str, str]], Quantizer | None]:
    model_type = (files.json_object("config.json") or {}).get("model_type")
    _, quantizer = OWN_ENDS.get(str(model_type), ("", None))
    if files.path("1_Pooling/config.json") is None and quantizer is None:
        raise ModelError(
            "the folder has neither modules.json nor 1_Pooling/config.json, so how tokens become one "
            "vector is not known and is not guessed: add modules.json with a Transformer and a Pooling "
            'module, and 1_Pooling/config.json such as {"embedding_dimension": 384, "pooling_mode": '
            '"mean"}; SentenceTransformer(...).save(...) writes both'
        )
    others = sorted(path.name for path in files.root.glob("[2-9]_*"))
    if others:
        raise ModelError(
            f"the folder has {', '.join(others)} but no modules.json that says in which order"
        )
    return [("Transformer", ""), ("Pooling", "1_Pooling")], quantizer


def _prefix(module: tuple[str, str]) -> str:
    return module[1].rstrip("/") + "/" if module[1] else ""


def _tokenizer_file(files: FolderFiles, prefix: str) -> Path:
    path = files.path(prefix + "tokenizer.json")
    if path is not None:
        return path
    old = [
        name
        for name in ("vocab.txt", "sentencepiece.bpe.model", "spiece.model", "vocab.json")
        if files.path(prefix + name) is not None
    ]
    raise ModelError(
        f"the model's folder has no {prefix}tokenizer.json"
        + (f", only {old[0]}" if old else "")
        + ": write one with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    )


def _pooling(files: FolderFiles, prefix: str, config: JsonObject) -> tuple[tuple[str, ...], bool]:
    """Modes of the pooling module, and whether the prompt's tokens are pooled too."""
    where = prefix + "config.json"
    own_mode, _ = OWN_ENDS.get(str(config.get("model_type")), ("", None))
    if own_mode and files.path(where) is None and files.path("modules.json") is None:
        return (own_mode,), True
    files.need(where, "it says how tokens become one vector, which is not guessed")
    values = files.json_object(where) or {}
    if unknown := [
        k for k in values if k.startswith("pooling_mode_") and k not in LEGACY_POOLING_KEYS
    ]:
        raise ModelError(
            f"{where}: {unknown[0]} is not supported; supported: {', '.join(POOLING_MODES)}"
        )
    modes: Any = values.get("pooling_mode")
    if modes is None:
        if not values.keys() & LEGACY_POOLING_KEYS.keys():
            raise ModelError(f"{where} names no pooling mode; set pooling_mode")
        modes = [
            m for k, m in LEGACY_POOLING_KEYS.items() if setting(where, values, k, bool, False)
        ]
        modes = modes or ["mean"]  # as sentence-transformers reads a folder with every switch off
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(m in POOLING_MODES for m in modes):
        raise ModelError(
            f"{where}: pooling_mode={str(modes)[:80]} is not supported; "
            f"supported: {', '.join(POOLING_MODES)}, or a list of these"
        )
    key = "embedding_dimension" if "embedding_dimension" in values else "word_embedding_dimension"
    hidden = positive("config.json", config, "hidden_size")
    if positive(where, values, key) != hidden:
        raise ModelError(f"{where}: {key}={values[key]}, but the model's hidden_size is {hidden}")
    return tuple(modes), setting(where, values, "include_prompt", bool, True)


def _dense(files: FolderFiles, prefix: str, width: int) -> Dense:
    where = prefix + "config.json"
    files.need(where, "it gives the sizes of this Dense module")
    values = files.json_object(where) or {}
    _check_names(where, values)
    if setting(where, values, "use_residual", bool, False):
        raise ModelError(f"{where}: use_residual=true is not supported; supported: false")
    path = setting(where, values, "activation_function", str, "torch.nn.modules.activation.Tanh")
    activation = path.rpartition(".")[2]
    if not path.startswith("torch.nn.") or activation not in ACTIVATIONS:
        raise ModelError(
            f"{where}: activation_function {path[:200]!r} is not supported; "
            f"supported: torch.nn's {', '.join(ACTIVATIONS)}"
        )
    dense = Dense(
        prefix=prefix,
        in_features=positive(where, values, "in_features"),
        out_features=positive(where, values, "out_features"),
        bias=setting(where, values, "bias", bool, True),
        activation=activation,
    )
    if dense.in_features != width:
        raise ModelError(
            f"{where}: in_features={dense.in_features}, but what comes before gives {width}"
        )
    return dense


def _normalize(files: FolderFiles, prefix: str) -> Normalize:
    _check_names(prefix + "config.json", files.json_object(prefix + "config.json") or {})
    return Normalize()


def _check_names(where: str, values: JsonObject) -> None:
    """Refuses a module that reads or writes something else than the pooled vector."""
    for key in ("module_input_name", "module_output_name"):
        name = setting(where, values, key, str, "sentence_embedding")
        if name != "sentence_embedding":
            raise ModelError(
                f"{where}: {key}={name[:80]!r} is not supported; supported: sentence_embedding"
            )


def _dimensions(
    files: FolderFiles, config: JsonObject, width: int
) -> tuple[tuple[int, ...], int | None]:
    """Sizes that a request may ask for (empty: any), and the size that the folder itself cuts to."""
    where = "config_sentence_transformers.json"
    values = files.json_object(where) or {}
    kind = setting(where, values, "model_type", str, "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise ModelError(
            f"{where}: model_type {kind[:80]!r} is not supported; supported: SentenceTransformer"
        )
    truncate_to = None
    if values.get("truncate_dim") is not None:
        truncate_to = positive(where, values, "truncate_dim")
        truncate_to = truncate_to if truncate_to < width else None
    listed = setting("config.json", config, "matryoshka_dimensions", list, [])
    if not all(type(size) is int and 0 < size <= width for size in listed):
        raise ModelError(f"config.json: matryoshka_dimensions should be sizes from 1 to {width}")
    return tuple(sorted({size for size in listed if size <= (truncate_to or width)})), truncate_to
