"""How many additions follow each other in attention of short sequences, by its assembly (PTX); prints JSON.

Run by `test_row_arithmetic.py` in a process of its own: interpreted functions cannot be compiled.
"""

from __future__ import annotations

import json
import re

from compile_kernels import MODULES, compiled

ADDITION = re.compile(r"^\s*add(?:\.rn)?(?:\.ftz)?\.f32\s+(%\w+), (%\w+), (%\w+);", re.MULTILINE)
CAPABILITY = 90


def longest_chain(ptx: str) -> int:
    """Of additions, each of which has the sum of the one before."""
    depths: dict[str, int] = {}
    for target, *parts in ADDITION.findall(ptx):
        depths[target] = 1 + max(depths.get(part, 0) for part in parts)
    return max(depths.values())


def main() -> None:
    """Prints the length of the chain of each case, by its keys."""
    module = MODULES["triton_short_sequences"]
    kernel = "_short_sequences_kernel"
    chains = [
        (
            case.constexprs["BLOCK"],
            longest_chain(compiled(getattr(module, kernel), case, "bf16", CAPABILITY).asm["ptx"]),
        )
        for case in module.COMPILE_CASES[kernel]
        if not case.constexprs["EARLY"] and case.constexprs["WINDOW"] < 0
    ]
    print(json.dumps(chains))


if __name__ == "__main__":
    main()
