"""A row has the same bits among few and among many: what compiled kernels do with it, on a machine without a GPU."""

from __future__ import annotations

from collections import defaultdict

import pytest


@pytest.fixture(scope="module")
def forms(compiled):
    """Forms by what they compute."""
    found = defaultdict(list)
    for form in compiled("row_arithmetic.py"):
        found[form["what"]].append(form)
    return found


@pytest.mark.timeout(300)  # under a minute where Triton's cache is empty; seconds later
def test_all_forms_do_the_same_with_a_row(forms):
    others = {}
    for what, (first, *rest) in forms.items():
        assert first["stored"]
        for form in rest:
            if any(form[part] != first[part] for part in ("stored", "columns")):
                others[what] = [first["launch"], form["launch"]]
    assert others == {}


@pytest.mark.timeout(300)
def test_sums_of_norms_were_found_and_most_kernels_have_two_forms(forms):
    for what, found in forms.items():
        adds_up = "_swiglu_" not in what and "_gelu_" not in what
        assert all(bool(form["columns"]) == adds_up for form in found)
    assert sum(len(found) > 1 for found in forms.values()) > len(forms) / 2


@pytest.mark.timeout(300)
def test_a_thread_adds_up_its_shares_in_order_as_flash_attention_does(compiled):
    chains = compiled("sum_chains.py")
    assert len(chains) > 4
    for keys, length in chains:
        # A thread of four holds a quarter of the keys; two more additions are those of the four.
        assert length == keys // 4 - 1 + 2
