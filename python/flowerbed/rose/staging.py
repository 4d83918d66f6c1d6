"""A batch as one buffer of int32, so that one copy brings it to the device.

Its layout depends on padded sizes alone, not on lengths: a CUDA graph that reads it serves every batch
that fits them. For attention the padding is a sequence of its own: kernels read whole tiles of keys and
values past a sequence's end, and what nobody computed there may be no number, which no mask removes.
Called by `ragged`. The Rust core's batches write themselves (`pack_into` of
`flowerbed._core`); this file does it for batches made in this process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from torch import Tensor

from flowerbed.rose.inputs import Batch, Int32s, check_tables

HEADER_WORDS = 4
"""Status offset, number of real tokens, two zeros."""
NO_PAIR = 2**31 - 1
"""Start of the second text where there is none."""
TOKEN_MULTIPLE, SLOT_MULTIPLE = 64, 16


@dataclass(frozen=True, slots=True)
class StagedInputs:
    """Views of a staged batch on the device, all int32."""

    status_offset: Tensor  # [1], where the rows' statuses stand in the result
    cu_seqlens: Tensor  # [num_slots + 1]; unused slots are empty and stand last
    padded_cu_seqlens: Tensor  # [num_slots + 2], the same, and the padding as one more sequence
    pair_starts: Tensor  # [num_slots], from the sequence's start; NO_PAIR: one text
    segments: Tensor  # [num_rows, 2], first token and the one after the last; unused: empty
    formats: Tensor  # [num_rows, 5], see `kernels.pack`; unused rows have no dimensions
    ids: Tensor  # [num_tokens], padding: 0


@dataclass(frozen=True, slots=True, order=True)
class StagingLayout:
    """Padded sizes of a step, and where each table stands in its buffer."""

    num_tokens: int
    num_slots: int
    num_rows: int

    @classmethod
    def around(cls, batch: Batch) -> Self:
        """The smallest layout of round sizes that holds a batch."""
        rows = max(batch.num_rows, batch.num_segments)
        return cls(
            _round_up(batch.num_tokens, TOKEN_MULTIPLE),
            _round_up(batch.num_sequences, SLOT_MULTIPLE),
            _round_up(rows, SLOT_MULTIPLE),
        )

    @property
    def num_words(self) -> int:
        """Size of the buffer, in int32."""
        return self._ends()[-1]

    def views(self, buffer: Tensor) -> StagedInputs:
        """The tables in `buffer`, [at least num_words] int32."""
        cu_seqlens, pairs, segments, formats, ids = (
            buffer[start:end]
            for start, end in zip((HEADER_WORDS, *self._ends()), self._ends(), strict=False)
        )
        return StagedInputs(
            status_offset=buffer[:1],
            cu_seqlens=cu_seqlens[:-1],
            padded_cu_seqlens=cu_seqlens,
            pair_starts=pairs,
            segments=segments.view(self.num_rows, 2),
            formats=formats.view(self.num_rows, 5),
            ids=ids,
        )

    def pack(self, batch: Batch, words: Int32s) -> None:
        """Writes a batch into `words`, [at least num_words].

        Raises:
            ValueError: The batch's parts do not fit each other, or not this layout.
        """
        pack_into = getattr(batch, "pack_into", None)
        if pack_into is not None:
            pack_into(words, self.num_tokens, self.num_slots, self.num_rows)
            return
        ids, cu_seqlens, spans, formats = check_tables(batch)
        num_tokens, num_slots = len(ids), len(cu_seqlens) - 1
        if (
            num_tokens > self.num_tokens
            or num_slots > self.num_slots
            or max(len(formats), len(spans)) > self.num_rows
        ):
            raise ValueError("the batch is larger than the step it was put into")
        words[: self.num_words] = 0
        words[0], words[1] = batch.num_result_bytes, num_tokens
        at_cu, at_pairs, at_segments, at_formats, at_ids = (HEADER_WORDS, *self._ends()[:-1])
        words[at_cu : at_pairs - 1] = num_tokens
        words[at_pairs - 1] = self.num_tokens
        words[at_cu : at_cu + num_slots + 1] = cu_seqlens
        words[at_pairs:at_segments] = NO_PAIR
        if (pair_starts := batch.pair_starts()) is not None:
            starts = np.frombuffer(pair_starts, np.int32)
            lengths = np.diff(cu_seqlens)
            words[at_pairs : at_pairs + num_slots] = np.where(starts >= lengths, NO_PAIR, starts)
        words[at_segments : at_segments + spans.size] = spans.ravel()
        words[at_formats : at_formats + formats.size] = formats.ravel()
        words[at_ids : at_ids + num_tokens] = ids

    def _ends(self) -> tuple[int, ...]:
        cu_seqlens = HEADER_WORDS + self.num_slots + 2
        pairs = cu_seqlens + self.num_slots
        segments = pairs + 2 * self.num_rows
        formats = segments + 5 * self.num_rows
        return cu_seqlens, pairs, segments, formats, formats + self.num_tokens


def _round_up(value: int, multiple: int) -> int:
    return max(1, -(-value // multiple)) * multiple
