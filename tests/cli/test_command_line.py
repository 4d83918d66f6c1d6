"""The command line: what it accepts, what it refuses and how it says so."""

import subprocess
import sys
from dataclasses import dataclass
from types import ModuleType

import pytest

import flowerbed
from flowerbed import config
from flowerbed.cli import main
from flowerbed.errors import FlowerbedError

serve_module = sys.modules["flowerbed.cli.serve"]


@dataclass
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command line in this process."""

    def command(*arguments: str, **environment: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["flowerbed", *arguments])
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return Outcome(end.value.code, captured.out, captured.err)

    return command


@pytest.fixture
def served(monkeypatch) -> list[config.ServeConfig]:
    """`serve` starts nothing; what it would have started is put here."""
    settings: list[config.ServeConfig] = []
    monkeypatch.setattr(serve_module, "_run", lambda given: settings.append(given) or 0)
    return settings


def fake_bridge(monkeypatch, name: str, result=0) -> list[dict]:
    """Puts a stand-in where `flowerbed.worker` or `flowerbed.gateway` is."""
    calls: list[dict] = []

    def run(model, **settings):
        calls.append({"model": model, **settings})
        if isinstance(result, Exception):
            raise result
        return result

    core = {"init_logging": lambda log_format, level: None}
    for module, members in ((name, {"run": run}), ("_core", core)):
        fake = ModuleType(f"flowerbed.{module}")
        vars(fake).update(members)
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
        monkeypatch.setattr(flowerbed, module, fake, raising=False)
    return calls


def test_help_prints_every_command_and_loads_no_torch():
    code = "import sys; from flowerbed.cli import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", code, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in ("serve", "gateway", "worker", "--version"))
    assert not set(done.stderr.split()) & {"torch", "numpy", "flowerbed._core"}


@pytest.mark.parametrize("command", ["serve", "gateway", "worker"])
def test_every_command_explains_its_options(run, command):
    outcome = run(command, "--help")
    assert outcome.code == 0
    assert "--request-timeout" in outcome.out
    assert "FLOWERBED_REVISION" in outcome.out


def test_threads_of_a_gateway_alone_sleep_unless_it_is_told_otherwise(run, monkeypatch):
    calls = fake_bridge(monkeypatch, "gateway")
    assert run("gateway", "--worker", "unix:/a").code == 0
    assert run("gateway", "--worker", "unix:/a", "--spin-ms", "7").code == 0
    assert [call["spin_ms"] for call in calls] == [0, 7]
    default = {name: words(run(name, "--help").out) for name in ("gateway", "worker")}
    assert "[default: (20 on GPUs with 8 cores each, else 0)]" in default["worker"]
    assert "[default: (0; its workers' GPUs may be elsewhere)]" in default["gateway"]


def words(help_text: str) -> str:
    """Without the frame, and wherever the lines were broken."""
    return " ".join(help_text.replace("│", " ").split())


def test_version(run):
    assert run("--version").out == f"flowerbed {flowerbed.__version__}\n"


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--device", "gpu", ("auto", "cpu", "cuda", "cuda:0,1")),
        ("--dtype", "int4", ("auto", "float32", "bfloat16", "float16")),
        ("--log-format", "xml", ("text", "json")),
        ("--log-level", "loud", ("debug", "info", "warn", "error")),
    ],
)
def test_an_unknown_word_is_answered_with_the_allowed_ones(run, option, value, allowed):
    outcome = run("serve", option, value)
    assert outcome.code == 2
    assert outcome.out == ""
    assert option in outcome.err
    assert value in outcome.err
    assert all(word in outcome.err for word in allowed)


def test_an_unknown_word_in_the_environment_is_refused_too(run):
    outcome = run("serve", FLOWERBED_DEVICE="tpu")
    assert outcome.code == 2
    assert "FLOWERBED_DEVICE" in outcome.err
    assert "'tpu'" in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--port", "65536"),
        ("serve", "--port", "-1"),
        ("serve", "--max-batch-tokens", "0"),
        ("serve", "--request-timeout", "0"),
        ("serve", "--device", "cuda:1,1"),
        ("serve", "--workers", "0"),
        ("serve", "--drain-timeout", "0"),
        ("serve", "--step-timeout", "-1"),
        ("serve", "--prompt", "query"),
        ("serve", "--prompt", "q=a", "--prompt", "q=b"),
        ("serve", "--alias", ""),
        ("serve", ""),
        ("serve", "  "),
        ("serve", "owner/name", "--revision", ""),
        ("gateway", "", "--worker", "unix:/a"),
        ("worker", ""),
        ("doctor", ""),
        ("bench", "engine", ""),
        ("models", "pull", ""),
        ("models", "verify", ""),
        ("worker", "--metrics-port", "65536"),
        ("serve", "one", "two"),
        ("serve", "--no-such-option"),
        ("gateway",),
        ("gateway", "--worker", "nowhere"),
        ("gateway", "--worker", "unix:"),
        ("gateway", "--worker", "unix:/a", "--worker", "unix:/a"),
        ("worker", "--listen", "127.0.0.1"),
        ("worker", "--listen", "127.0.0.1:70000"),
        ("worker", "--device", "cuda:0,1"),
        ("no-such-command",),
    ],
)
def test_a_wrong_command_line_ends_with_code_2_and_a_hint(run, served, arguments):
    outcome = run(*arguments)
    assert outcome.code == 2
    error, hint = outcome.err.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: `flowerbed")


def test_defaults_are_those_of_the_config(run, served):
    assert run("serve").code == 0
    assert served == [config.ServeConfig()]


def test_each_option_of_serve_is_also_an_environment_variable(run, served):
    by_option = ("serve", "a/model", "--revision", "main", "--host", "::1", "--port", "0")
    by_option += ("--device", "cpu", "--dtype", "float32", "--max-batch-tokens", "64")
    by_option += ("--request-timeout", "2.5", "--log-format", "json", "--log-level", "debug")
    by_option += ("--drain-timeout", "9", "--step-timeout", "8", "--tokenizer-threads", "3")
    by_option += ("--workers", "2", "--saturation-batch-tokens", "128")
    by_option += ("--max-batch-sequences", "7", "--alias", "a", "--alias", "b")
    by_option += ("--auto-truncate", "false", "--spin-ms", "5")
    assert run(*by_option).code == 0
    outcome = run(
        "serve",
        FLOWERBED_MODEL="a/model",
        FLOWERBED_REVISION="main",
        FLOWERBED_HOST="::1",
        FLOWERBED_PORT="0",
        FLOWERBED_DEVICE="cpu",
        FLOWERBED_DTYPE="float32",
        FLOWERBED_MAX_BATCH_TOKENS="64",
        FLOWERBED_REQUEST_TIMEOUT="2.5",
        FLOWERBED_LOG_FORMAT="json",
        FLOWERBED_LOG_LEVEL="debug",
        FLOWERBED_DRAIN_TIMEOUT="9",
        FLOWERBED_STEP_TIMEOUT="8",
        FLOWERBED_SPIN_MS="5",
        FLOWERBED_TOKENIZER_THREADS="3",
        FLOWERBED_WORKERS="2",
        FLOWERBED_SATURATION_BATCH_TOKENS="128",
        FLOWERBED_AUTO_TRUNCATE="false",
        FLOWERBED_MAX_BATCH_SEQUENCES="7",
        FLOWERBED_ALIAS="a b",
    )
    assert outcome.code == 0
    assert served[0] == served[1]
    assert served[0].max_batch_tokens == 64
    assert served[0].request_timeout_s == 2.5


def test_an_option_rules_over_its_environment_variable(run, served):
    run("serve", "--port", "9000", FLOWERBED_PORT="9001")
    assert served[0].port == 9000


@pytest.mark.parametrize("address", ["0.0.0.0:50051", "192.168.1.5:50051", "[::]:1", "gpu-7:50051"])
def test_a_worker_that_others_can_reach_needs_a_token(run, monkeypatch, address):
    calls = fake_bridge(monkeypatch, "worker")
    monkeypatch.delenv("FLOWERBED_WORKER_TOKEN", raising=False)
    outcome = run("worker", "--listen", address)
    assert outcome.code == 2
    assert "FLOWERBED_WORKER_TOKEN" in outcome.err
    assert calls == []
    assert run("worker", "--listen", address, FLOWERBED_WORKER_TOKEN="secret").code == 0
    assert calls[0]["token"] == "secret"


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:50051", "[::1]:50051", "unix:/a/b"])
def test_a_private_worker_needs_no_token(run, monkeypatch, address):
    calls = fake_bridge(monkeypatch, "worker")
    monkeypatch.delenv("FLOWERBED_WORKER_TOKEN", raising=False)
    assert run("worker", "--listen", address).code == 0
    assert calls[0]["listen"] == address
    assert calls[0]["token"] is None


def test_gateway_takes_many_workers(run, monkeypatch):
    calls = fake_bridge(monkeypatch, "gateway")
    assert run("gateway", "--worker", "unix:/a", "--worker", "gpu-7:50051", "--port", "0").code == 0
    assert run("gateway", FLOWERBED_WORKER="unix:/a gpu-7:50051", FLOWERBED_PORT="0").code == 0
    assert calls[0]["workers"] == calls[1]["workers"] == ("unix:/a", "gpu-7:50051")
    assert calls[0]["listen"] == "127.0.0.1:0"


@pytest.mark.parametrize(("host", "listen"), [("::1", "[::1]:80"), ("[::]", "[::]:80")])
def test_an_ipv6_host_is_put_in_brackets(run, monkeypatch, host, listen):
    calls = fake_bridge(monkeypatch, "gateway")
    run("gateway", "--worker", "unix:/a", "--host", host, "--port", "80")
    assert calls[0]["listen"] == listen


def test_our_errors_are_one_line_and_a_hint_without_a_traceback(run, monkeypatch):
    error = FlowerbedError("the tokenizer is missing")
    error.add_note("add tokenizer.json to the folder")
    fake_bridge(monkeypatch, "worker", error)
    outcome = run("worker")
    assert outcome.code == 1
    assert outcome.out == ""
    assert outcome.err == (
        "error: the tokenizer is missing\nhint: add tokenizer.json to the folder\n"
    )


def test_a_missing_engine_says_how_to_install_it(run, monkeypatch):
    fake_bridge(monkeypatch, "worker", ModuleNotFoundError("No module named 'torch'", name="torch"))
    outcome = run("worker")
    assert outcome.code == 1
    assert "pip install 'flowerbed[engine]'" in outcome.err


def test_serve_refuses_a_model_that_does_not_exist_before_it_starts_anything(run, tmp_path):
    outcome = run("serve", str(tmp_path), "--device", "cpu", "--port", "0")
    assert outcome.code == 1
    assert outcome.err.startswith("error: ")
    assert "Traceback" not in outcome.err
