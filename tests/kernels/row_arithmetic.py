"""What each form of a kernel computes of a row, read from its assembly (PTX); prints JSON.

Run by `test_row_arithmetic.py` in a process of its own: interpreted functions cannot be compiled.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from compile_kernels import MODULES, compiled

from flowerbed.rose.kernels import CompileCase, backend

NUM_ROWS = (37, 3_000, 8_192)
CAPABILITY = 90
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
HIDDEN = (128, 384, 768, 1000, 1024, 2560)
HEADS = ((16, 8, 128), (14, 2, 64), (12, 12, 64))
WIDTHS = (1200, 1536, 3072)

STATEMENT = re.compile(r"^(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s+(.*);")
REGISTER = re.compile(r"%\w+")
ARITHMETIC = re.compile(
    r"(add|sub|mul|fma|div|neg|abs|min|max|rsqrt|ex2|cvt)\..*(f32|f16)|selp|shfl"
)
REDUCED = re.compile(r'"tt\.reduce".*?\}\) : \(tensor<[^#]*(#\w+)>', re.DOTALL)
LAYOUT = re.compile(r"^(#\w+) = #ttg\.blocked<\{(.*)\}>$", re.MULTILINE)


def arithmetic(ptx: str) -> list[str]:
    """Digests of all expressions that are stored, each once.

    Leaves are values that are read, told by their place in a vector: rows, chunks and columns of other
    threads are the same. For kernels whose loops hand on no values but integers.
    """
    values: dict[str, str] = {}
    stored: set[str] = set()
    for line in ptx.splitlines():
        statement = STATEMENT.match(line.strip())
        if statement is None:
            continue
        name, text = statement.groups()
        registers = REGISTER.findall(text)
        if name.startswith("st."):
            sources = REGISTER.findall(text[text.index("]") :])
            stored |= {values[source] for source in sources if source in values}
        elif name.startswith("ld."):
            targets = REGISTER.findall(text[: text.index("[")])
            values |= {target: f"{name[:9]} {place}" for place, target in enumerate(targets)}
        elif name.startswith("mov.") and text.startswith("{"):
            *parts, source = registers
            values |= {
                part: _digest("part", str(place), values.get(source, ""))
                for place, part in enumerate(parts)
            }
        elif name.startswith("mov.") and "{" not in text:
            if len(registers) == 2 and registers[1] in values:
                values[registers[0]] = values[registers[1]]
        elif name.startswith("mov.") or ARITHMETIC.match(name):
            target, *sources = re.sub(r"[{}\s]", "", text).split(",")
            shapes = [values.get(s, "" if s.startswith("%") else s) for s in sources]
            if name.startswith(("add.", "mul.")):
                shapes.sort()
            values[target.partition("|")[0]] = _digest(name, *shapes)
    return sorted(stored)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def columns_of_sums(ttgir: str) -> list[str]:
    """How the columns of what is added up are shared out to threads, lanes and warps."""
    layouts = dict(LAYOUT.findall(ttgir))
    return sorted(
        {re.sub(r"\[\d+, (\d+)\]", r"\1", layouts[name]) for name in REDUCED.findall(ttgir)}
    )


def forms() -> Iterator[tuple[str, str, str, str, CompileCase]]:
    """What is computed, module, kernel, dtype, and a way in which it is launched for some number of rows."""
    for dtype, torch_dtype in DTYPES.items():
        for num_rows in NUM_ROWS:
            for hidden in HIDDEN:
                x = torch.empty(num_rows, hidden, dtype=torch_dtype, device="meta")
                yield from _norms(dtype, x, hidden)
            for width in WIDTHS:
                x = torch.empty(num_rows, width, dtype=torch_dtype, device="meta")
                yield from _activations(dtype, x, width)
            for heads in HEADS:
                x = torch.empty(num_rows, 1, dtype=torch_dtype, device="meta")
                yield _rope(dtype, x, *heads)


def _case(module: str, kernel: str, sizes: dict[str, Any], num_warps: int) -> CompileCase:
    """The kernel's first one, or the first with its flags, of other sizes."""
    known = MODULES[module].COMPILE_CASES[kernel]
    first = next(case for case in known if sizes.items() >= _flags(case, sizes).items())
    return CompileCase(first.types, first.constexprs | sizes, {"num_warps": num_warps})


def _flags(case: CompileCase, sizes: dict[str, Any]) -> dict[str, Any]:
    return {name: case.constexprs[name] for name in sizes if name.startswith("HAS_")}


def _norms(dtype: str, x: torch.Tensor, hidden: int):
    norm, embedding = MODULES["triton_norm"], MODULES["triton_embedding"]
    for add in (True, False):
        tile, _, loop = norm._layer_norm_tile(x, add)
        sizes = _sizes(tile, H=hidden, HAS_RESIDUAL=add)
        for kernel, flags in {"_layer_norm_kernel": {"LOOP": loop}, "_rms_norm_kernel": {}}.items():
            if kernel == "_rms_norm_kernel":
                tile = backend.row_tile(x, hidden)
                sizes = _sizes(tile, H=hidden, HAS_RESIDUAL=add)
            case = _case("triton_norm", kernel, sizes | flags, tile.num_warps)
            yield f"{kernel} {hidden} {dtype} residual {add}", "triton_norm", kernel, dtype, case
    tile = embedding._layer_norm_tile(x)
    kernel = "_embed_layer_norm_kernel"
    sizes = _sizes(tile, H=hidden, HAS_TYPES=True)
    case = _case("triton_embedding", kernel, sizes, tile.num_warps)
    yield f"{kernel} {hidden} {dtype}", "triton_embedding", kernel, dtype, case


def _activations(dtype: str, x: torch.Tensor, width: int):
    tile = backend.block_tile(x, width)
    for kernel in ("_swiglu_kernel", "_bias_gelu_kernel"):
        case = _case("triton_activation", kernel, _sizes(tile, F=width), tile.num_warps)
        yield f"{kernel} {width} {dtype}", "triton_activation", kernel, dtype, case


def _rope(dtype: str, x: torch.Tensor, num_heads: int, num_kv_heads: int, head_dim: int):
    form = MODULES["triton_rope"]._form(x, num_heads, num_kv_heads, head_dim // 2)
    sizes = {
        "HAS_NORM": True,
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "HALF": head_dim // 2,
        "BLOCK": form.block,
        "KV_BLOCK": form.kv_block,
        "SPLIT": form.split,
    }
    case = _case("triton_rope", "_rope_kernel", sizes, form.num_warps)
    what = f"_rope_kernel {num_heads} {num_kv_heads} {head_dim} {dtype}"
    return what, "triton_rope", "_rope_kernel", dtype, case


def _sizes(tile: backend.Tile, **others: Any) -> dict[str, Any]:
    return {"ROWS": tile.rows, "COLUMNS": tile.columns, **others}


def compute(form: tuple[str, str, str, str, CompileCase]) -> dict[str, object]:
    """The form's name, and what it computes of a row."""
    what, module, kernel, dtype, case = form
    code = compiled(getattr(MODULES[module], kernel), case, dtype, CAPABILITY).asm
    return {
        "what": what,
        "launch": f"{case.constexprs} {case.options}",
        "stored": arithmetic(code["ptx"]),
        "columns": columns_of_sums(code["ttgir"]),
    }


def main() -> None:
    """Prints a list of all forms."""
    once = {(form[0], str(form[4])): form for form in forms()}
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        print(json.dumps(list(pool.map(compute, once.values()))))


if __name__ == "__main__":
    main()
