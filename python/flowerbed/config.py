"""Every setting and its default, once. Frozen dataclasses; units are in the names.

The command line reads its defaults from here, and `FLOWERBED_*` variables are read only by
`flowerbed.cli`. Knows nothing of torch or of the network. `to_core()` writes the JSON that the
Rust core takes; its serde structs refuse unknown fields, so the two cannot drift apart.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_DEVICE = "auto"
DEFAULT_WORKER_LISTEN = "127.0.0.1:50051"
METRICS_HOST = "127.0.0.1"
METRICS_PORT = 9100
"""Of a worker that runs alone; beside others, their gateway serves its metrics."""
REQUEST_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 30.0
"""A full queue is 10 s of work, and Kubernetes kills after 30 s."""
CPU_BATCH_TOKENS = 384
"""Knee of a two-core CPU with real lengths: larger steps are hardly more efficient
(docs/measured-facts.md) and make what is behind them wait."""
CPU_SATURATION_BATCH_TOKENS = 512
"""Step of bulk work while nobody waits for queries; the first query after a pause waits for it."""
GPU_BATCH_TOKENS = 4_672
"""Cost of eight texts of 512 tokens of a 0.6B model. An H200 runs 6% more of them than in steps of four, while
queries on streams of their own wait no longer. A knee that `flowerbed doctor --measure` finds may raise it."""
GPU_ONE_STREAM_BATCH_TOKENS = 2_048
"""Where queries have no stream of their own, as without ragged attention: they wait for a step of other work."""
GPU_SATURATION_BATCH_TOKENS = 16_384
GPU_ONLINE_BATCH_TOKENS = 1_024
"""Step of the stream that only queries use; the graphs of that stream end here."""
GPU_BESIDE_BATCH_TOKENS = 128
"""Such a step while other work runs: the kernels of small steps, which find room beside it, end there but for narrow BERTs. A query
waits 1.6 ms for such a step and 5 ms for a larger one (one H200, docs/measured-facts.md)."""
SPIN_MS = 20
MIN_SPIN_CORES = 8
"""Workers on GPUs and their gateway stay awake after a query, if there are so many cores for each GPU."""
MAX_BATCH_SEQUENCES = 128
GRAPH_MEMORY_MB = 4_096
"""What the CUDA graphs of one stream may take; about 10 MB each for a model of 28 layers."""
STEP_TIMEOUT_S = 30.0
TOKENIZER_THREADS = 0
"""One a core."""
AUTO_TRUNCATE = True
"""A longer input is cut to the model's length where a request does not say."""


class DType(StrEnum):
    """Number format of the weights and the activations."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FP8 = "fp8"  # products in float8_e4m3fn with a scale a row, all else in bfloat16; experimental


class GraphCapture(StrEnum):
    """When the steps of a GPU become CUDA graphs."""

    START = "start"  # all of them before the first request
    LAZY = "lazy"  # each when a step of its size comes for the second time
    OFF = "off"


class Attention(StrEnum):
    """What computes attention."""

    AUTO = "auto"  # the best that the device, the number format and the model's heads allow
    FLASH_ATTN_4 = "flash-attn-4"
    TORCH_FLASH = "torch-flash"
    FLASHINFER = "flashinfer"  # by this name alone
    SDPA = "sdpa"


class BatchInvariant(StrEnum):
    """Whether a vector has the same bits alone and among others, on a GPU."""

    AUTO = "auto"  # where 16 bits make too much of a difference otherwise: `rose.device.pick_batch_invariance`
    ON = "on"
    OFF = "off"


class LogFormat(StrEnum):
    """How log lines look on stderr."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """Which log lines are written: these and worse ones."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How a model's text becomes ids. Part of its space; a gateway and its workers must agree on it."""

    max_length: int  # tokens a sequence, special tokens included
    truncation_side: str = "right"  # right or left
    lowercase: bool = False  # before tokenizing, as sentence_bert_config.json asks
    strip: bool = False  # white space at both ends, before tokenizing
    prompts: dict[str, str] = field(default_factory=dict[str, str])  # name -> text put before
    default_prompt: str | None = None  # name of the prompt used when a request names none
    pool_prompt: bool = True  # False: the prompt's tokens are left out of pooling


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a worker tells of its model (`ModelInfo` in the proto)."""

    id: str
    revision: str
    space: str
    tokenizer_sha256: str
    text_sha256: str
    max_length: int  # tokens
    vocab_rows: int
    dimensions: int
    allowed_dimensions: tuple[int, ...]  # empty: 1 to dimensions
    normalize: bool
    heads: tuple[str, ...]
    attention_scale: float  # L*, tokens
    dtype: str
    device: str
    pooling: str
    token_dimensions: int  # of the head tokens
    weights_sha256: str  # of the one file, or of the list of all files' digests


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Settings of Tulip in one worker process."""

    model: ModelInfo
    listen: str = DEFAULT_WORKER_LISTEN  # host:port or unix:path
    metrics_listen: str | None = None  # host:port that serves nothing but the metrics
    token: str | None = None  # shared secret; needed for a TCP bind that is not loopback
    max_batch_tokens: int = CPU_BATCH_TOKENS
    saturation_batch_tokens: int = CPU_SATURATION_BATCH_TOKENS  # bulk alone, no query lately
    online_batch_tokens: int = GPU_ONLINE_BATCH_TOKENS  # on the stream "online"
    beside_batch_tokens: int = GPU_BESIDE_BATCH_TOKENS  # there, while other work runs
    max_batch_sequences: int = MAX_BATCH_SEQUENCES
    streams: tuple[str, ...] = ("normal",)  # served in this order; GPUs have "online" before it
    steps_in_flight: int = 1  # a stream; GPUs have 2
    request_timeout_s: float = REQUEST_TIMEOUT_S  # for callers that set no deadline
    step_timeout_s: float = STEP_TIMEOUT_S  # a longer step hangs: the worker ends, to be restarted
    spin_ms: int = 0  # threads stay awake for so long after a query
    cost_per_second: float = 0.0  # measured at warm-up; sizes the queue until steps have run

    def to_core(self) -> str:
        """JSON for `_core.InferenceServer`."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class GatewayModel:
    """One served model, as the gateway sees it."""

    id: str
    aliases: tuple[str, ...]
    tokenizer_file: str  # path of tokenizer.json
    tokenizer_sha256: str
    text: TextSettings
    text_sha256: str


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Settings of Ivy."""

    model: GatewayModel
    workers: tuple[str, ...]  # host:port or unix:path
    listen: str = f"{DEFAULT_HOST}:{DEFAULT_PORT}"
    worker_token: str | None = None
    request_timeout_s: float = REQUEST_TIMEOUT_S
    drain_timeout_s: float = DRAIN_TIMEOUT_S  # for open requests, once it is told to end
    tokenizer_threads: int = TOKENIZER_THREADS
    spin_ms: int = 0  # threads stay awake for so long after a query
    auto_truncate: bool = AUTO_TRUNCATE

    def to_core(self) -> str:
        """JSON for `_core.Gateway`."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How `serve` starts a child again that ended by itself."""

    first_delay_s: float = 0.1  # doubles with every end
    max_delay_s: float = 10.0
    healthy_after_s: float = 60.0  # a child that lived this long starts at first_delay_s again


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Settings of `flowerbed serve`: the gateway and one worker a device, on this machine."""

    model: str | None = None  # hub id or folder; None: the packaged all-MiniLM-L6-v2
    revision: str | None = None
    aliases: tuple[str, ...] = ()  # more names that requests may use
    prompts: dict[str, str] = field(default_factory=dict[str, str])  # over those of the folder
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT  # 0: any free one
    device: str = DEFAULT_DEVICE  # auto, cpu, cuda or cuda:0,1
    dtype: DType = DType.AUTO
    attention: Attention = Attention.AUTO
    batch_invariant: BatchInvariant = BatchInvariant.AUTO
    graph_capture: GraphCapture = GraphCapture.START
    graph_memory_mb: int = GRAPH_MEMORY_MB  # of one stream
    num_workers: int | None = None  # None: one on a CPU, one a GPU
    max_batch_tokens: int | None = None  # None: the device's knee
    saturation_batch_tokens: int | None = None  # the device's
    max_batch_sequences: int = MAX_BATCH_SEQUENCES
    step_timeout_s: float = STEP_TIMEOUT_S
    tokenizer_threads: int = TOKENIZER_THREADS
    spin_ms: int | None = None  # None: SPIN_MS on GPUs with cores enough, else 0
    auto_truncate: bool = AUTO_TRUNCATE
    request_timeout_s: float = REQUEST_TIMEOUT_S
    drain_timeout_s: float = DRAIN_TIMEOUT_S
    log_format: LogFormat = LogFormat.TEXT
    log_level: LogLevel = LogLevel.INFO
