"""What `serve` starts, and with which environment."""

import itertools
from pathlib import Path

import pytest

from flowerbed import devices, launch, machine, ready
from flowerbed.config import MIN_SPIN_CORES, SPIN_MS, DType, ServeConfig
from flowerbed.errors import ConfigError, DeviceError
from flowerbed.runtime_folder import runtime_folder

FOLDER = Path("/run/fb")


@pytest.fixture(autouse=True)
def _no_inherited_settings(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)


def pairs(command: tuple[str, ...]) -> dict[str, str]:
    return dict(itertools.pairwise(command))


def test_gateway_and_worker_meet_at_a_unix_socket():
    plan = launch.plan(ServeConfig(model="-odd-name", revision="r", port=0), ("cpu",), FOLDER)
    gateway, [worker] = plan.gateway_at(4321).command, plan.workers
    assert pairs(gateway)["--worker"] == pairs(worker.command)["--listen"]
    assert pairs(gateway)["--port"] == "4321"
    assert gateway[-2:] == worker.command[-2:] == ("--", "-odd-name")
    assert pairs(worker.command)["--revision"] == "r"


def test_every_setting_reaches_the_worker():
    settings = ServeConfig(
        dtype=DType.FLOAT16, max_batch_tokens=77, request_timeout_s=3.0, step_timeout_s=4.0
    )
    options = pairs(launch.plan(settings, ("cpu",), FOLDER).workers[0].command)
    assert options["--dtype"] == "float16"
    assert options["--max-batch-tokens"] == "77"
    assert options["--request-timeout"] == "3.0"
    assert options["--step-timeout"] == "4.0"
    assert options["--spin-ms"] == "0"  # on a CPU
    assert options["--device"] == "cpu"


def test_threads_stay_awake_where_gpus_have_cores_enough(monkeypatch):
    for num_cores, expected in ((MIN_SPIN_CORES * 2, SPIN_MS), (MIN_SPIN_CORES * 2 - 1, 0)):
        monkeypatch.setattr(machine, "num_cores", lambda count=num_cores: count)
        for asked, found in ((None, expected), (3, 3), (0, 0)):
            plan = launch.plan(ServeConfig(spin_ms=asked), ("cuda:0", "cuda:1"), FOLDER)
            commands = [plan.gateway_at(0).command, *(worker.command for worker in plan.workers)]
            assert [pairs(command)["--spin-ms"] for command in commands] == [str(found)] * 3


def test_whether_inputs_are_cut_reaches_the_gateway():
    for auto_truncate in (True, False):
        settings = ServeConfig(auto_truncate=auto_truncate)
        gateway = launch.plan(settings, ("cpu",), FOLDER).gateway_at(0).command
        assert pairs(gateway)["--auto-truncate"] == str(auto_truncate).lower()


def test_each_worker_sees_its_own_gpu_only(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 7")
    plan = launch.plan(ServeConfig(), ("cuda:0", "cuda:1"), FOLDER)
    seen = [worker.environment["CUDA_VISIBLE_DEVICES"] for worker in plan.workers]
    assert seen == ["5", "7"]
    assert all(pairs(worker.command)["--device"] == "cuda" for worker in plan.workers)
    assert plan.gateway_at(0).environment["CUDA_VISIBLE_DEVICES"] == ""


def test_idle_threads_of_a_worker_leave_the_cores_alone():
    environment = launch.plan(ServeConfig(), ("cpu",), FOLDER).workers[0].environment
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert int(environment["OMP_NUM_THREADS"]) >= 1
    assert environment["TOKENIZERS_PARALLELISM"] == "false"


def test_prompts_reach_both_parts_and_the_file_none(monkeypatch):
    monkeypatch.setenv("FLOWERBED_CONFIG", "changed-meanwhile.toml")
    settings = ServeConfig(prompts={"query": "a = b "}, aliases=("x",))
    plan = launch.plan(settings, ("cpu",), FOLDER)
    for spec in (plan.gateway_at(0), *plan.workers):
        assert "--prompt=query=a = b " in spec.command
        assert "FLOWERBED_CONFIG" not in spec.environment
    assert pairs(plan.gateway_at(0).command)["--alias"] == "x"


def test_workers_on_a_cpu_share_its_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(8))
    for num_workers, num_threads in ((1, "8"), (3, "2"), (16, "1")):
        plan = launch.plan(ServeConfig(), ("cpu",) * num_workers, FOLDER)
        assert {worker.environment["OMP_NUM_THREADS"] for worker in plan.workers} == {num_threads}
        assert len({worker.name for worker in plan.workers}) == num_workers


def test_a_cpu_has_some_workers_a_core_and_a_gpu_one(monkeypatch):
    assert devices.one_a_worker("cpu", 3) == ("cpu",) * 3
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _: {0, 1})
    assert devices.one_a_worker("cpu", 8) == ("cpu",) * 8
    for too_many in (9, 100_000):
        with pytest.raises(ConfigError, match=f"^{too_many} workers .* more than 8 would only"):
            devices.one_a_worker("cpu", too_many)
    monkeypatch.setattr(devices, "count_gpus", lambda: 2)
    assert devices.one_a_worker("auto", 2) == devices.one_a_worker("cuda", None)
    with pytest.raises(ConfigError, match="each has one worker"):
        devices.one_a_worker("cuda:0", 2)


def test_secrets_never_stand_in_a_command(monkeypatch):
    monkeypatch.setenv("FLOWERBED_WORKER_TOKEN", "s3cret")
    plan = launch.plan(ServeConfig(), ("cpu",), FOLDER)
    for spec in (plan.gateway_at(0), *plan.workers):
        assert not any("s3cret" in part for part in spec.command)
        assert spec.environment["FLOWERBED_WORKER_TOKEN"] == "s3cret"


@pytest.mark.parametrize(
    ("word", "num_gpus", "expected"),
    [
        ("auto", 0, ("cpu",)),
        ("auto", 2, ("cuda:0", "cuda:1")),
        ("cpu", 2, ("cpu",)),
        ("cuda", 1, ("cuda:0",)),
        ("cuda:1", 2, ("cuda:1",)),
        ("cuda:1,0", 2, ("cuda:1", "cuda:0")),
    ],
)
def test_device_words(monkeypatch, word, num_gpus, expected):
    monkeypatch.setattr(devices, "count_gpus", lambda: num_gpus)
    assert devices.expand(word) == expected


@pytest.mark.parametrize("word", ["gpu", "", "cuda:", "cuda:x", "cuda:0,", "CUDA", "cuda:0,0"])
def test_wrong_device_words_are_refused(word):
    with pytest.raises(ConfigError):
        devices.expand(word)


@pytest.mark.parametrize(("word", "num_gpus"), [("cuda", 0), ("cuda:2", 2), ("cuda:0", 0)])
def test_missing_devices_are_refused(monkeypatch, word, num_gpus):
    monkeypatch.setattr(devices, "count_gpus", lambda: num_gpus)
    with pytest.raises(DeviceError):
        devices.expand(word)


def test_the_runtime_folder_is_private_short_and_gone_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / ("long" * 30)))
    with runtime_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert len(str(folder / "worker-10.sock")) < 100
        (folder / "worker-0.sock").touch()
    assert not folder.exists()


def test_what_a_killed_owner_left_is_removed_and_what_is_in_use_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")
    monkeypatch.setattr("flowerbed.runtime_folder._PREFIX", f"flowerbed-test-{tmp_path.name}-")
    monkeypatch.setattr("flowerbed.runtime_folder._YOUNG_S", -1.0)
    with runtime_folder() as in_use:
        left_behind = in_use.with_name(in_use.name + "x")
        left_behind.mkdir()
        (left_behind / "owner.lock").touch()
        with runtime_folder():
            assert in_use.exists()
            assert not left_behind.exists()


def test_the_ready_line_is_read_as_it_is_written():
    for part in ("", "gateway", "worker"):
        message = ready.Ready(part, "http://127.0.0.1:8000", "model a/b, device cpu")
        assert ready.parse(f"{message}\n") == message
    assert ready.parse("something else") is None
