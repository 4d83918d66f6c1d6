"""`import flowerbed` stays cheap: heavy modules wait until somebody needs them."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "numpy", "transformers", "huggingface_hub", "httpx2", "flowerbed._core")


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_import_flowerbed_loads_nothing_heavy():
    assert not loaded_by("import flowerbed") & set(HEAVY)


def test_the_client_loads_no_engine():
    loaded = loaded_by("from flowerbed import Client")
    assert {"numpy", "httpx2"} <= loaded
    assert not loaded & {"torch", "triton", "transformers", "flowerbed._core"}


@pytest.mark.parametrize("module", ["cli", "supervisor", "launch", "background"])
def test_the_command_line_and_the_supervisor_load_no_engine(module):
    loaded = loaded_by(f"import flowerbed.{module}")
    assert not loaded & {"torch", "triton", "numpy", "transformers", "flowerbed._core"}


def test_public_names_exist_and_unknown_ones_do_not():
    import flowerbed

    for name in flowerbed.__all__:
        assert getattr(flowerbed, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Rose'"):
        _ = flowerbed.Rose
