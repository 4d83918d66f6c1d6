"""Clock and power of a GPU beside a measurement, without a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from flowerbed.rose import device_watch
from flowerbed.rose.device_watch import DeviceWatch

GPU = torch.device("cuda", 0)


def watched(monkeypatch: pytest.MonkeyPatch, clock: Callable[[object], int]) -> DeviceWatch:
    monkeypatch.setattr(device_watch, "INTERVAL_S", 0.001)
    monkeypatch.setattr(torch.cuda, "clock_rate", clock)
    monkeypatch.setattr(torch.cuda, "power_draw", lambda _: 650_400)
    with DeviceWatch(GPU) as watch:
        time.sleep(0.05)
    return watch


def test_medians_of_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter([1_980, 1_500, 1_500])
    watch = watched(monkeypatch, lambda _: next(clocks, 1_500))
    assert (watch.sm_clock_mhz, watch.power_w) == (1_500, 650)


@pytest.mark.parametrize("error", [ModuleNotFoundError("nvidia-ml-py"), Exception("not supported")])
def test_nothing_is_known_where_the_driver_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(_: object) -> int:
        raise error

    watch = watched(monkeypatch, fails)
    assert (watch.sm_clock_mhz, watch.power_w) == (None, None)


def test_a_cpu_is_not_watched() -> None:
    with DeviceWatch(torch.device("cpu")) as watch:
        pass
    assert watch.sm_clock_mhz is None
