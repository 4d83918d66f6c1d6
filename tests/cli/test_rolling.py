"""A rolling restart takes no worker from the callers while another one is not up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flowerbed.rolling import RollingRestart


@dataclass(eq=False)
class Worker:
    name: str
    pid: int = 1
    signals: list[int] = field(default_factory=list[int])

    def send(self, signum: int) -> None:
        self.signals.append(signum)


def test_a_worker_that_is_not_up_goes_first_and_the_other_waits_for_it() -> None:
    first, second = workers = [Worker("worker-0"), Worker("worker-1")]
    listed: Any = workers
    up = {"worker-0"}
    rolling = RollingRestart(listed, drain_timeout_s=60)

    def step() -> list[int]:
        rolling.step(lambda worker: worker.name in up)
        return [len(worker.signals) for worker in workers]

    rolling.ask()
    assert step() == [0, 1]
    assert rolling.has_ended(listed[1])
    assert step() == [0, 1]  # it loads
    up.add("worker-1")
    assert step() == [1, 1]
    up.remove("worker-0")
    assert rolling.has_ended(listed[0])
    assert step() == [1, 1]
    up.add("worker-0")
    step()
    assert not rolling.is_on
    assert first.signals == second.signals


def test_none_goes_while_one_that_had_its_turn_is_not_up_again() -> None:
    workers: Any = [Worker(f"worker-{index}") for index in range(3)]
    up = {worker.name for worker in workers}
    rolling = RollingRestart(workers, drain_timeout_s=60)

    def step() -> list[int]:
        rolling.step(lambda worker: worker.name in up)
        return [len(worker.signals) for worker in workers]

    rolling.ask()
    assert step() == [1, 0, 0]
    assert rolling.has_ended(workers[0])
    assert step() == [1, 1, 0]  # the first is up again
    up.remove("worker-0")  # and dies
    assert rolling.has_ended(workers[1])
    assert step() == [1, 1, 0]
    up.remove("worker-2")  # nobody would miss it now
    assert step() == [1, 1, 1]
    assert rolling.has_ended(workers[2])
    up |= {"worker-0", "worker-2"}
    step()
    assert not rolling.is_on


def test_the_last_one_waits_until_all_others_are_up() -> None:
    workers: Any = [Worker("worker-0"), Worker("worker-1")]
    up = {"worker-0", "worker-1"}
    rolling = RollingRestart(workers, drain_timeout_s=60)
    rolling.ask()
    rolling.step(lambda worker: worker.name in up)
    assert rolling.has_ended(workers[0])
    answers = iter([True, False, True])  # up for a moment: asked for it, then for both
    rolling.step(lambda worker: next(answers))
    assert workers[1].signals == []
    rolling.step(lambda worker: worker.name in up)
    assert len(workers[1].signals) == 1
