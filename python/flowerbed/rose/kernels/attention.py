"""Ragged self-attention: sequences packed end to end, none sees another.

Knows no models. Called by `layers.attention`; who makes a step chooses its `AttentionPlan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from flowerbed.rose.kernels.backend import has_known_sums
from flowerbed.rose.kernels.short_sequences import MAX_SHORT_SEQLEN, attend_short_sequences

MAX_SHORT = 64
"""Rows of a step of one short sequence, which a CPU attends by products."""
MIN_FLASH_CAPABILITY = (8, 0)
"""Where torch has flash attention."""


class Backend(StrEnum):
    """Who computes attention."""

    SDPA = "sdpa"  # torch's, one call for each group of equal lengths; any device and dtype
    TORCH_FLASH = "torch-flash"  # torch's own ragged kernel; GPUs from sm_80 on, 16-bit
    FLASH_ATTN_4 = "flash-attn-4"  # the extra cuda; GPUs from sm_90 on, 16-bit
    FLASHINFER = "flashinfer"  # the extra of this name; GPUs from sm_80 on, 16-bit


class LengthGroup(NamedTuple):
    """Neighbouring sequences of one length, which one call can attend together."""

    start: int  # first token
    num_sequences: int
    seqlen: int  # tokens of each


class HostPlan(Protocol):
    """What a backend worked out on the host for one step."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool, window: int | None
    ) -> Tensor:
        """As `attention`, without windows to both sides."""
        ...


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Where the sequences of a step lie, in the form that its backend reads."""

    backend: Backend
    cu_seqlens: Tensor  # [num_slots + 1] int32; unused slots are empty; the last may be padding
    max_seqlen: int  # no sequence is longer; a bound that is too large is right and may be slower
    groups: tuple[LengthGroup, ...] = ()  # of SDPA: cover the real tokens from the first on
    on_host: HostPlan | None = None  # of FLASHINFER
    batch_invariant: bool = False  # rows have the same bits whatever else is in the step

    @property
    def is_short(self) -> bool:
        """Whether sequences are so short that the padding, which is last, may be longer than the bound."""
        has_kernel = self.backend is Backend.FLASH_ATTN_4
        if self.batch_invariant and not has_known_sums():
            has_kernel = False  # other bits than flash-attn-4's for longer sequences
        return has_kernel and self.max_seqlen <= MAX_SHORT_SEQLEN


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: AttentionPlan,
    *,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(head_dim)) v for each sequence and head.

    Query head h reads key and value head h // (num_heads / num_kv_heads).

    Args:
        query: [num_tokens, num_heads, head_dim]; may be a view whose last axis is contiguous.
        key: [num_tokens, num_kv_heads, head_dim].
        value: [num_tokens, num_kv_heads, head_dim].
        plan: Of this step. Tokens that belong to no sequence are padding.
        causal: A token sees itself and what is before it, not what is after.
        window: How far it sees to each side it sees at all, in tokens; None: all of it.

    Returns:
        [num_tokens, num_heads * head_dim], dtype of query. Rows of padding tokens hold anything.
    """
    if plan.backend is Backend.SDPA:
        dtype = query.dtype
        if dtype == torch.bfloat16 and not query.is_cuda:
            # torch's kernel for CPUs takes longer in bfloat16, measured on Zen 5.
            query, key, value = query.float(), key.float(), value.float()
        return _grouped(query, key, value, plan.groups, causal, window).to(dtype)
    if plan.on_host is not None and (causal or window is None):
        return plan.on_host.attend(query, key, value, causal=causal, window=window)
    if plan.is_short:
        return attend_short_sequences(
            query,
            key,
            value,
            plan.cu_seqlens,
            max_seqlen=plan.max_seqlen,
            causal=causal,
            window=window,
        )
    # Imported only where it is used: flash-attn-4 takes seconds.
    from flowerbed.rose.kernels.flash_attention import flash_attention

    return flash_attention(query, key, value, plan, causal=causal, window=window)


def _grouped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: tuple[LengthGroup, ...],
    causal: bool,
    window: int | None,
) -> Tensor:
    num_tokens, num_heads, head_dim = query.shape
    shares_keys = key.shape[1] != num_heads
    is_alone = len(groups) == 1 and groups[0].num_sequences == 1 and num_tokens <= MAX_SHORT
    if is_alone and not (query.is_cuda or causal or shares_keys or window is not None):
        return _short(query, key, value, groups[0].seqlen)
    parts: list[Tensor] = []
    end = 0
    for start, num_sequences, seqlen in groups:
        end = start + num_sequences * seqlen
        q, k, v = (
            rows[start:end].view(num_sequences, seqlen, rows.shape[1], head_dim).transpose(1, 2)
            for rows in (query, key, value)
        )
        mask = None
        if window is not None and window + 1 < seqlen:
            mask = _window_mask(seqlen, window, causal, query.device)
        takes_shared = takes_shared_keys(query.device, query.dtype, has_mask=mask is not None)
        if shares_keys and not takes_shared:
            k, v = (rows.repeat_interleave(num_heads // rows.shape[1], 1) for rows in (k, v))
        mixed = functional.scaled_dot_product_attention(
            q,
            k,
            v,
            mask,
            is_causal=causal and mask is None,
            enable_gqa=shares_keys and takes_shared,
        )
        parts.append(mixed.transpose(1, 2).reshape(end - start, num_heads * head_dim))
    if end < num_tokens:
        parts.append(query.new_zeros(num_tokens - end, num_heads * head_dim))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def takes_shared_keys(device: torch.device, dtype: torch.dtype, *, has_mask: bool) -> bool:
    """Whether torch's attention serves keys that several heads share without holding all their scores.

    On a GPU only flash attention does: else 32,768 tokens of 16 heads in float32 take 69 GB twice.
    """
    if device.type != "cuda":
        return True
    has_flash = torch.cuda.get_device_capability(device) >= MIN_FLASH_CAPABILITY
    return has_flash and dtype.itemsize == 2 and not has_mask


def _short(query: Tensor, key: Tensor, value: Tensor, seqlen: int) -> Tensor:
    """Attention of one sequence with the padding behind it, which is masked, not cut off.

    For 14 tokens on two cores it takes 15 µs, torch's own kernel 30: products of 16 rows are its best.
    """
    q, k, v = (rows.transpose(0, 1) for rows in (query, key, value))
    mask = _end_mask(seqlen, len(query), query.dtype)
    scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=query.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(-1), v).transpose(0, 1).flatten(1)


@lru_cache(maxsize=MAX_SHORT)
def _end_mask(seqlen: int, num_tokens: int, dtype: torch.dtype) -> Tensor:
    """[1, 1, num_tokens], 0 for a sequence's tokens and -inf for what is behind them."""
    mask = torch.zeros(1, 1, num_tokens, dtype=dtype)
    mask[..., seqlen:] = float("-inf")
    return mask


def _window_mask(seqlen: int, window: int, causal: bool, device: torch.device) -> Tensor:
    """[seqlen, seqlen] bool, true where a token (row) sees another (column)."""
    place = torch.arange(seqlen, device=device)
    ahead = place[None, :] - place[:, None]
    return (ahead >= -window) & (ahead <= (0 if causal else window))
