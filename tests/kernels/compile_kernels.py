"""Compiles every case of every Triton kernel for GPUs that need not be here; prints JSON.

Run by `test_compile.py` in a process of its own: interpreted functions cannot be compiled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from flowerbed.rose import kernels
from flowerbed.rose.kernels import CompileCase

CAPABILITIES = (80, 90, 100)
DTYPES = ("bf16", "fp16", "fp32")

MODULES = {
    path.stem: import_module(f"{kernels.__name__}.{path.stem}")
    for path in sorted(Path(kernels.__path__[0]).glob("triton_*.py"))
}


def functions(module) -> dict[str, triton.JITFunction]:
    """The Triton functions that a module defines."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, triton.JITFunction) and value.fn.__module__ == module.__name__
    }


def uncovered() -> list[str]:
    """Kernels without a case, cases without a kernel, and functions that no other one calls."""
    sources = {f"{m}.{n}": f.src for m in MODULES for n, f in functions(MODULES[m]).items()}
    faults = []
    for name, module in MODULES.items():
        found = functions(module)
        named = {function for function in found if function.endswith("_kernel")}
        faults += [f"{name}.{function}" for function in named ^ set(module.COMPILE_CASES)]
        faults += [
            f"{name}.{n}: no cases" for n, cases in module.COMPILE_CASES.items() if not cases
        ]
        for function in set(found) - named:
            others = [text for key, text in sources.items() if key != f"{name}.{function}"]
            if not any(re.search(rf"\b{function}\(", text) for text in others):
                faults.append(f"{name}.{function}")
    return faults


def jobs() -> Iterator[tuple[str, str, int, str, int]]:
    """Module, kernel, number of the case, dtype, capability."""
    for name, module in MODULES.items():
        for kernel, cases in module.COMPILE_CASES.items():
            for number, case in enumerate(cases):
                for dtype in DTYPES if "*x" in case.types.values() else DTYPES[:1]:
                    for capability in CAPABILITIES:
                        major, minor = case.min_capability
                        if capability < 10 * major + minor:
                            continue
                        yield name, kernel, number, dtype, capability


def compiled(function: triton.JITFunction, case: CompileCase, dtype: str, capability: int) -> Any:
    """The kernel, pointers aligned to 16 bytes as torch's are."""
    types = {argument: t.replace("*x", f"*{dtype}") for argument, t in case.types.items()}
    signature = {a: types.get(a, "constexpr") for a in function.arg_names}
    attributes = {
        (place,): [["tt.divisibility", 16]]
        for place, argument in enumerate(signature)
        if signature[argument].startswith("*")
    }
    kind = GluonASTSource if function.is_gluon() else ASTSource
    source = kind(function, signature, constexprs=case.constexprs, attrs=attributes)
    return triton.compile(source, GPUTarget("cuda", capability, 32), case.options or {})


def compile_one(job: tuple[str, str, int, str, int]) -> dict[str, object]:
    """Compiles to machine code."""
    name, kernel, number, dtype, capability = job
    function = getattr(MODULES[name], kernel)
    case = MODULES[name].COMPILE_CASES[kernel][number]
    label = f"{name}.{kernel}[{number}] {dtype} sm_{capability}"
    try:
        code = compiled(function, case, dtype, capability).asm["cubin"]
    except Exception as error:  # noqa: BLE001  # whatever it is, the test shows it
        while error.__cause__ is not None:  # the outer ones show the whole kernel
            error = error.__cause__
        return {"case": label, "error": f"{type(error).__name__}: {error}", "bytes": 0}
    unknown = (case.types.keys() | case.constexprs.keys()) - set(function.arg_names)
    fault = f"the kernel has no argument {sorted(unknown)}" if unknown else None
    return {"case": label, "error": fault, "bytes": len(code)}


def main() -> None:
    """Prints what is uncovered and the outcome of each case."""
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        results = list(pool.map(compile_one, jobs()))
    print(json.dumps({"uncovered": uncovered(), "results": results}))


if __name__ == "__main__":
    main()
