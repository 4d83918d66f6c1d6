"""Products with the work that follows them: the choice of a kernel, the references, quack's kernels on a GPU."""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from torch.nn import functional

from flowerbed.rose.kernels import fused_linear, norm_rope, rope
from flowerbed.rose.kernels.linear import linear

HEADS = (4, 2)
DIM = norm_rope.HEAD_DIM
EPS = 1e-6
THETA = 1e6
WIDTH = (HEADS[0] + 2 * HEADS[1]) * DIM
MAX_POSITION = 4_096

# flash-attn-4 and quack import the compiler of torch, which warns of its own code.
WARNS = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def rope_tensors(num_rows, hidden, dtype, device):
    """x, the weight as loaded, the norms' weights, positions."""
    torch.manual_seed(num_rows)
    return (
        torch.randn(num_rows, hidden).to(device, dtype),
        (torch.randn(WIDTH, hidden) / hidden**0.5).to(device, dtype),
        tuple((1 + torch.randn(DIM) / 4).to(device, dtype) for _ in range(2)),
        torch.randint(0, MAX_POSITION, (num_rows,)).to(device, torch.int32),
    )


def in_pairs(heads):
    """[rows, heads, DIM] with the halves of each head brought together."""
    return heads.unflatten(-1, (2, DIM // 2)).transpose(-1, -2).flatten(-2)


def norm_rope_in_steps(x, weight, norms, positions):
    """What a layer computes without `linear_norm_rope`, rounded once between, then in its order."""
    qkv = (x.float() @ weight.float().T).to(x.dtype).float()
    tables = rope.rope_tables(DIM, THETA, MAX_POSITION, torch.device("cpu"))
    tables = [table.to(x.device) for table in tables]
    rope.qk_norm_rope_(qkv, positions, *tables, *(w.float() for w in norms), EPS, *HEADS)
    turned, values = qkv.split(((HEADS[0] + HEADS[1]) * DIM, HEADS[1] * DIM), dim=1)
    return torch.cat([in_pairs(turned.unflatten(1, (-1, DIM))).flatten(1), values], dim=1)


def test_norm_and_rotation_equal_their_steps_in_another_order():
    x, weight, norms, positions = rope_tensors(37, 64, torch.float32, "cpu")
    weights = norm_rope.norm_rope_weights(weight, norms, HEADS, THETA, EPS)
    found = fused_linear.linear_norm_rope(x, weights, positions)
    expected = norm_rope_in_steps(x, weight, norms, positions)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)  # angles reach 4,096
    values = HEADS[1] * DIM
    torch.testing.assert_close(found[:, -values:], x @ weight[-values:].T)


def test_scores_do_not_depend_on_the_order():
    x, weight, norms, positions = rope_tensors(9, 64, torch.float32, "cpu")
    weights = norm_rope.norm_rope_weights(weight, norms, HEADS, THETA, EPS)
    found = fused_linear.linear_norm_rope(x, weights, positions).view(9, -1, DIM)
    qkv = x @ weight.T
    tables = rope.rope_tables(DIM, THETA, MAX_POSITION, torch.device("cpu"))
    rope.qk_norm_rope_(qkv, positions, *tables, *norms, EPS, *HEADS)
    heads = qkv.view(9, -1, DIM)
    scores, expected = (part[:, 0] @ part[:, HEADS[0]].T for part in (found, heads))
    torch.testing.assert_close(scores, expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("num_rows", "shape", "dtype", "fuses"),
    [
        (512, (128, 64), torch.bfloat16, True),
        (511, (128, 64), torch.bfloat16, False),
        (512, (128, 64), torch.float32, False),
        (512, (128, 96), torch.bfloat16, False),
        (512, (100, 64), torch.bfloat16, False),
    ],
)
def test_a_kernel_is_chosen_by_rows_format_and_sizes(num_rows, shape, dtype, fuses, monkeypatch):
    monkeypatch.setattr(fused_linear, "_has_kernels", lambda device: True)
    monkeypatch.setattr(
        fused_linear, "fuses_products", lambda device, dtype: dtype == torch.bfloat16
    )
    x, weight = torch.empty(num_rows, shape[1], dtype=dtype), torch.empty(shape, dtype=dtype)
    choice = fused_linear.Choice(512, fused_linear.SWIGLU.tile)
    assert fused_linear._fuses(choice, x, weight) is fuses


def test_16_bits_have_fused_kernels_on_a_GPU_that_has_them(monkeypatch):
    monkeypatch.setattr(fused_linear, "_has_kernels", lambda device: True)
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    assert [fused_linear.fuses_products(gpu, dtype) for dtype in dtypes] == [False, True, True]
    assert not any(fused_linear.fuses_products(cpu, dtype) for dtype in dtypes)


@pytest.mark.parametrize(
    ("capability", "found", "level", "words"),
    [
        ((8, 0), "0.6.5", None, ""),
        ((10, 0), "0.6.5", None, ""),
        ((9, 0), None, logging.WARNING, "quack-kernels is not installed"),
        ((9, 0), "0.7.0", logging.WARNING, "quack-kernels 0.7.0 is not known"),
        ((9, 0), "0.6.9", logging.INFO, "products of large steps by quack-kernels 0.6.9"),
    ],
)
def test_the_start_says_which_kernels_serve(capability, found, level, words, monkeypatch, caplog):
    def version(name):
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(fused_linear, "version", version)
    monkeypatch.setattr(fused_linear, "quack_linear", lambda: None)
    with caplog.at_level(logging.INFO, logger=fused_linear.log.name):
        has_kernels = fused_linear._has_kernels.__wrapped__(torch.device("cuda", 0))
    assert has_kernels is (level == logging.INFO)
    assert [record.levelno for record in caplog.records] == ([] if level is None else [level])
    assert words in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        ImportError("cannot import name 'HeadRstd'\nfrom a file"),
        TypeError("gemm_epilogue() got an unexpected keyword argument 'mode'"),
        ValueError("unknown mode"),
        RuntimeError("no CUDA"),
    ],
)
def test_kernels_of_another_interface_are_told_in_one_line_and_not_used(error, monkeypatch, caplog):
    def broken():
        raise error

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(fused_linear, "version", lambda name: "0.6.9")
    monkeypatch.setattr(fused_linear, "quack_linear", broken)
    with caplog.at_level(logging.WARNING, logger=fused_linear.log.name):
        assert not fused_linear._has_kernels.__wrapped__(torch.device("cuda", 0))
    [record] = caplog.records
    message = str(error).partition("\n")[0]
    told = f"quack-kernels 0.6.9 does not load ({message}): large steps are slower"
    assert record.getMessage() == told


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "identity"])
def test_a_cpu_has_the_activations_of_linear(activation):
    x, weight, bias = torch.randn(5, 64), torch.randn(128, 64), torch.randn(128)
    found = fused_linear.linear_activation(x, weight, bias, activation)
    assert torch.equal(found, linear(x, weight, bias, activation))
    gate, up = (x @ weight.T).chunk(2, dim=1)
    found = fused_linear.linear_swiglu(x, weight)
    torch.testing.assert_close(found, functional.silu(gate) * up)


@pytest.fixture
def quack():
    """The GPU, and kernels for it."""
    device = torch.device("cuda", 0)
    if not fused_linear.fuses_products(device, torch.bfloat16):
        pytest.skip("no quack-kernels for this GPU")
    return device


FINER = {torch.bfloat16: 1, torch.float16: 8}
"""How many steps of a format one of bfloat16 is."""


def assert_near(found, expected, dtype):
    """16 bits of values in fp32: of the norm, 1.7e-3 is bfloat16's rounding, an eighth float16's.

    One sum in thousands lies so near to a tie that another order of adding rounds it the other way, eight
    times as many where steps are that much finer.
    """
    finer = FINER[dtype]
    assert found.dtype == dtype
    assert found.isfinite().all()
    error = torch.linalg.vector_norm(found.float() - expected)
    assert error <= 1.8e-3 / finer * torch.linalg.vector_norm(expected)
    is_other = (found.float() - expected).abs() > (2**-8 * expected.abs() + 1e-3) / finer
    assert is_other.float().mean() <= 1e-3 * finer
    torch.testing.assert_close(found.float(), expected, rtol=2**-6 / finer, atol=2e-2 / finer)


ROWS = (1, 63, 333, 2_049)
SIZES = ((1_024, 3_072), (768, 3_072), (128, 256))


def poison(device):
    """Fills free memory of the sizes that outputs take, so that what is not written shows."""
    for num_rows in ROWS:
        torch.full((num_rows, 6_144), float("nan"), device=device, dtype=torch.bfloat16)


@pytest.mark.gpu
@WARNS
@pytest.mark.parametrize("dtype", FINER)
@pytest.mark.parametrize(("hidden", "inner"), SIZES)
def test_feed_forward_kernels_round_their_sums_and_their_results(
    hidden, inner, dtype, quack, monkeypatch
):
    monkeypatch.setattr(fused_linear, "SWIGLU", fused_linear.SWIGLU._replace(min_rows=1))
    monkeypatch.setattr(fused_linear, "BIAS_GELU_MIN_ROWS", 1)
    torch.manual_seed(hidden)
    weight = torch.randn(2 * inner, hidden, device=quack, dtype=dtype) / hidden**0.5
    bias = torch.randn(2 * inner, device=quack, dtype=dtype)
    for num_rows in ROWS:
        x = torch.randn(num_rows, hidden, device=quack, dtype=dtype)
        sums = (x.float() @ weight.float().T).to(x.dtype).float()
        poison(quack)
        gate, up = sums.chunk(2, dim=1)
        found = fused_linear.linear_swiglu(x, weight)
        assert_near(found, functional.silu(gate) * up, dtype)
        expected = functional.gelu(sums + bias.float())
        assert_near(fused_linear.linear_activation(x, weight, bias, "gelu"), expected, dtype)
        monkeypatch.setattr(fused_linear, "BIAS_GELU_MIN_ROWS", 1 << 30)
        in_steps = fused_linear.linear_activation(x, weight, bias, "gelu")
        assert_near(in_steps, expected, dtype)
        monkeypatch.setattr(fused_linear, "BIAS_GELU_MIN_ROWS", 1)
        # A row alone is the row among others.
        assert torch.equal(fused_linear.linear_swiglu(x[-1:], weight), found[-1:])


@pytest.mark.gpu
@WARNS
@pytest.mark.parametrize("dtype", FINER)
def test_norm_and_rotation_round_their_sums_and_their_results(dtype, quack):
    x, weight, norms, positions = rope_tensors(2_049, 1_024, dtype, quack)
    weights = norm_rope.norm_rope_weights(weight, norms, HEADS, THETA, EPS)
    expected = norm_rope_in_steps(x, weight, norms, positions)
    for num_rows in ROWS:
        poison(quack)
        found = fused_linear.linear_norm_rope(x[:num_rows], weights, positions[:num_rows])
        assert_near(found, expected[:num_rows], dtype)
        wide = fused_linear.linear_norm_rope(x[:num_rows], weights, positions[:num_rows].long())
        assert torch.equal(wide, found)


@pytest.mark.gpu
@WARNS
def test_a_graph_replays_them_on_other_rows(quack):
    x, weight, norms, positions = rope_tensors(1_024, 1_024, torch.bfloat16, quack)
    weights = norm_rope.norm_rope_weights(weight, norms, HEADS, THETA, EPS)
    gate_up = torch.randn(512, WIDTH, device=quack, dtype=torch.bfloat16) / WIDTH**0.5

    def step():
        qkv = fused_linear.linear_norm_rope(x, weights, positions)
        return fused_linear.linear_swiglu(qkv, gate_up)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(torch.randn_like(x))
        positions.copy_(torch.randint(0, MAX_POSITION, (1_024,)))
        captured.fill_(float("nan"))
        graph.replay()
        assert torch.equal(captured, step())
