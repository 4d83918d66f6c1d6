"""Steps of a start build the kernels that products of any number of rows take, so that no later step waits for one.

The kernels need a GPU; here they only say that they were built and launched.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flowerbed.rose.engine import WARM_UP_TOKENS
from flowerbed.rose.kernels import fused_linear, triton_small_linear
from flowerbed.rose.kernels.fused_linear import linear_activation
from flowerbed.rose.kernels.small_linear import NARROW_SMALL_STEP_TOKENS
from flowerbed.rose.staging import TOKEN_MULTIPLE

PRODUCTS = [
    (2304, 768, "identity"),
    (768, 768, "identity"),
    (3072, 768, "gelu"),
    (4096, 1024, "gelu"),
    (1536, 384, "gelu_tanh"),
    (1024, 1024, "identity"),
    (1024, 4096, "identity"),
    (384, 384, "identity"),
]
"""Outputs, inputs and activation."""
MAX_TOKENS = 20_000
SIZES = range(TOKEN_MULTIPLE, MAX_TOKENS, TOKEN_MULTIPLE)
"""Rows of steps without a graph."""


class Kernels:
    """In the place of `quack_linear`."""

    def __init__(self) -> None:
        self.built: set[tuple[Any, ...]] = set()
        self.launched: list[tuple[int, tuple[Any, ...]]] = []

    def build_linear(self, x: Any, weight: Any, bias: Any, tile: Any) -> None:
        self.built.add(("linear", tile, bias is not None))

    def linear(self, x: Any, weight: Any, bias: Any, tile: Any) -> torch.Tensor:
        return self._launch(x, weight, ("linear", tile, bias is not None))

    def linear_gelu(self, x: Any, weight: Any, bias: Any, tile: Any) -> torch.Tensor:
        return self._launch(x, weight, ("gelu", tile))

    def _launch(self, x: Any, weight: Any, kernel: tuple[Any, ...]) -> torch.Tensor:
        self.launched.append((len(x), kernel))
        return nothing(x, weight)


def nothing(x: torch.Tensor, weight: torch.Tensor, *_: Any, **_options: Any) -> torch.Tensor:
    return x.new_zeros(1, 1).expand(len(x), len(weight))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    kernels = Kernels()
    monkeypatch.setattr(fused_linear, "quack_linear", lambda: kernels)
    monkeypatch.setattr(fused_linear, "fuses_products", lambda device, dtype: True)
    monkeypatch.setattr(fused_linear, "use_triton", lambda x: True)
    monkeypatch.setattr(fused_linear, "linear", nothing)
    monkeypatch.setattr(fused_linear, "bias_gelu", lambda x, bias, approximate: x)
    monkeypatch.setattr(triton_small_linear, "small_linear", nothing)
    return kernels


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(("outputs", "inputs", "activation"), PRODUCTS)
def test_no_number_of_rows_launches_what_a_start_has_not_built(
    kernels: Kernels, outputs: int, inputs: int, activation: str, fixed: bool
) -> None:
    weight = torch.zeros(1, 1, dtype=torch.bfloat16).expand(outputs, inputs)
    bias = weight[:, 0]

    def run(num_rows: int) -> None:
        x = weight[:1].expand(num_rows, inputs)
        linear_activation(x, weight, bias, activation, batch_invariant=fixed)

    # Smaller steps may be those of `small_linear`.
    for num_tokens in (size for size in WARM_UP_TOKENS if size > NARROW_SMALL_STEP_TOKENS):
        run(-(-num_tokens // TOKEN_MULTIPLE) * TOKEN_MULTIPLE)
    built = set(kernels.built)
    kernels.launched.clear()
    for num_rows in SIZES:
        run(num_rows)
    products = {kernel for _, kernel in kernels.launched if kernel[0] == "linear"}
    assert products <= built
    # From some rows on, so that the largest step, which a start runs, has it.
    of_gelu = [rows for rows, kernel in kernels.launched if kernel[0] == "gelu"]
    assert of_gelu == [rows for rows in SIZES if of_gelu and rows >= of_gelu[0]]
    deep = not fixed and inputs > fused_linear.MAX_DEPTH
    assert bool(kernels.launched) is not deep


def test_a_product_before_gelu_has_a_kernel_at_sizes_that_few_steps_have(kernels: Kernels) -> None:
    weight = torch.zeros(1, 1, dtype=torch.bfloat16).expand(3072, 768)
    for num_rows in SIZES:
        linear_activation(weight[:1].expand(num_rows, 768), weight, weight[:, 0], "gelu")
    tile = fused_linear.plain_tile(3072)
    found = [rows for rows, kernel in kernels.launched if kernel == ("linear", tile, False)]
    assert found == [1_856, 1_920, 1_984]
