"""Typed surface of the Rust core (crates/python). Checked against the module by tests/test_core_stub.py."""

from typing import Literal, Protocol, final

import numpy as np
from numpy.typing import NDArray

class Rows(Protocol):
    """What `InferenceServer.launched` takes: a `flowerbed.rose.lazy.LazyTensor`.

    It holds uint8 [`batch.num_result_bytes` + `batch.num_rows`]: the packed rows, then one status a
    row (0 good, 1 not finite, 2 all zero).
    """

    mode: str
    """eager, capture or replay."""
    padding_tokens: int
    """Tokens that belong to no sequence."""

    def device_rows(self) -> tuple[int, int, int, int] | None:
        """None if `host()` has the rows at once, as on a CPU. Else the rows come from a GPU.

        These are a CUevent of a blocking event that was recorded behind their copy, the address of
        the pinned memory that they are copied to, its bytes, and the CUDA ordinal of the device. The
        event and the memory must live until the batch's slot was given to another batch, and nobody
        may write there until then.
        """
    def host(self) -> memoryview:
        """Waits for the device; a readable buffer. Not called where `device_rows()` has a value."""

@final
class Batch:
    """Sequences that one step runs together, packed end to end without padding. Immutable."""

    @property
    def id(self) -> int: ...
    @property
    def head(self) -> str:
        """embed, score, sparse or tokens; one for the whole batch."""
    @property
    def stream(self) -> str:
        """online or normal."""
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_sequences(self) -> int: ...
    @property
    def num_segments(self) -> int: ...
    @property
    def num_rows(self) -> int:
        """Output rows: one for each segment and each format asked of it."""
    @property
    def max_seqlen(self) -> int:
        """Longest sequence, tokens."""
    @property
    def num_result_bytes(self) -> int:
        """Bytes of all packed rows, statuses excluded."""
    @property
    def has_pairs(self) -> bool:
        """Whether any sequence holds two texts."""
    def pack_into(
        self,
        buffer: NDArray[np.int32] | memoryview,
        num_tokens_padded: int,
        num_slots: int,
        num_rows_padded: int,
    ) -> None:
        """Writes all of the batch's integers into `buffer`, padded, for one copy to the device.

        In this order, and what lies behind is left as it is:

        - status offset (`num_result_bytes`), `num_tokens`, 0, 0
        - `cu_seqlens` [num_slots + 2]; unused slots repeat `num_tokens`, the last is
          `num_tokens_padded`
        - `pair_starts` [num_slots]; 2**31 - 1 where a sequence has no second text, and unused ones
        - `segments` [num_rows_padded, 2]; unused ones 0
        - `row_formats` [num_rows_padded, 5]; unused ones 0
        - `ids` [num_tokens_padded]; padding 0

        Args:
            buffer: Writable and contiguous; a memoryview is cast to "i".
            num_tokens_padded: At least `num_tokens`.
            num_slots: At least `num_sequences`.
            num_rows_padded: At least `num_rows` and `num_segments`.

        Raises:
            ValueError: The batch does not fit, or the buffer is too small or read-only; nothing was
                written.
            BufferError: It holds no int32.
        """
    def ids(self) -> bytearray:
        """int32 [num_tokens]."""
    def cu_seqlens(self) -> bytearray:
        """int32 [num_sequences + 1]."""
    def pair_starts(self) -> bytearray | None:
        """int32 [num_sequences], first token of the second text; None if the batch has no pairs."""
    def segments(self) -> bytearray:
        """int32 [num_segments, 2]: start and end of each segment's tokens, counted from the batch's start."""
    def row_formats(self) -> bytearray:
        """int32 [num_rows, 5]: segment, byte offset, dtype code of the proto, dimensions, normalize (0 or 1)."""

@final
class InferenceServer:
    """Tulip: the gRPC server, its scheduler and its queue. The owner of the main thread pulls batches."""

    def __new__(cls, config: str) -> InferenceServer:
        """Takes `WorkerConfig.to_core()` as JSON; ValueError names the field at fault."""
    def start(self) -> str:
        """Binds and serves; returns the address, with the real port. OSError if it cannot."""
    def next_batch(self) -> Batch | None:
        """Waits, with the interpreter released, for the next batch; None when drained.

        Wakes every 100 ms to let signal handlers run.
        """
    def launched(self, batch_id: int, result: Rows) -> None:
        """Hands over what `step` returned; the rows are answered when the device is done."""
    def failed(
        self, batch_id: int, reason: str, *, fault: Literal["input", "memory", "device"]
    ) -> None:
        """Tells that the step raised. `reason` goes to the log, never to a caller.

        Without a fault of the device the batch is rerun in halves until the culprit is alone: a
        sequence that cannot be run, or one that lacks memory by itself. The latter twice within a
        minute is taken for a fault of the device.
        """
    @property
    def is_faulted(self) -> bool:
        """The device failed, so that only a restart helps."""
    @property
    def was_cut(self) -> bool:
        """A drain was too short for what was queued."""
    def drain(self, timeout_s: float) -> None:
        """Refuses new work; `next_batch` returns None once the queue is empty. Safe in a signal handler.

        What is still queued after `timeout_s` is refused too.
        """
    def stop(self) -> None:
        """Stops serving at once. Waits until the runtime has ended."""

@final
class Gateway:
    """Ivy: the HTTP gateway. Runs on its own threads."""

    def __new__(cls, config: str) -> Gateway:
        """Takes `GatewayConfig.to_core()` as JSON; ValueError names the field at fault."""
    def start(self) -> str:
        """Binds and serves; returns `host:port`, with the real port. OSError if it cannot."""
    @property
    def was_cut(self) -> bool:
        """It stopped before every open request was answered."""
    def wait(self) -> None:
        """Waits, with the interpreter released, until stopped. Wakes every 100 ms for signal handlers."""
    def drain(self) -> None:
        """Not ready from now on; open requests finish, then `wait` returns. Safe in a signal handler."""
    def stop(self) -> None:
        """Stops serving at once."""

def build_info() -> dict[str, str]:
    """`version`, `profile` (debug or release) and `source_hash` of the compiled core."""

def init_logging(log_format: str, level: str) -> None:
    """Sends the core's logs to stderr as `text` or `json`. ValueError on an unknown word."""
