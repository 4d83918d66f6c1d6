"""`flowerbed serve` with two workers on this CPU, and a supervisor that does not back off.

Run as a program by the kill tests: 200 kills with the product's back-off would take an hour.
"""

from __future__ import annotations

import logging

from flowerbed.config import RestartPolicy, ServeConfig
from flowerbed.launch import plan
from flowerbed.ready import Ready
from flowerbed.runtime_folder import runtime_folder
from flowerbed.supervisor import Supervisor

AT_ONCE = RestartPolicy(first_delay_s=0.05, max_delay_s=0.05)


class Announcer:
    def advance(self, num_bytes: int, total_bytes: int) -> None:
        pass

    def ready(self, gateway: Ready) -> None:
        print(gateway.address, flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    with runtime_folder() as folder:
        settings = ServeConfig(port=0, device="cpu")
        code = Supervisor(plan(settings, ("cpu", "cpu"), folder), Announcer(), policy=AT_ONCE).run()
    raise SystemExit(code)
