"""`--config FILE.toml`: what it sets, what rules over it, and what it may not hold."""

import re
import sys
from pathlib import Path

import pytest

from flowerbed import config
from flowerbed.cli import main
from flowerbed.config_file import read_config_file
from flowerbed.errors import ConfigError

FULL = """
[gateway]
host = "::1"
port = 9000
request_timeout_s = 5
drain_timeout_s = 2.5
tokenizer_threads = 3
spin_ms = 4
auto_truncate = false
log_format = "json"
log_level = "debug"

[[models]]
path = "bge"
aliases = ["search", "text-embedding-3-small"]
prompts = { query = "query: a = b", document = "" }
replicas = 2

[worker]
device = "cpu"
dtype = "float32"
max_batch_tokens = 256
saturation_batch_tokens = 1024
max_batch_sequences = 16
step_timeout_s = 7
"""


@pytest.fixture
def file(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "server.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def serve(monkeypatch):
    """Runs `serve` as far as its settings."""

    def run(*arguments: object, **environment: str) -> config.ServeConfig:
        settings: list[config.ServeConfig] = []
        module = sys.modules["flowerbed.cli.serve"]
        monkeypatch.setattr(module, "_run", lambda given: settings.append(given) or 0)
        monkeypatch.setattr(sys, "argv", ["flowerbed", "serve", *map(str, arguments)])
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
        return settings[0]

    return run


def test_every_setting_of_serve_can_stand_in_the_file(serve, file):
    path = file(FULL)
    settings = serve("--config", path)
    assert settings == config.ServeConfig(
        model=str(path.parent / "bge"),
        aliases=("search", "text-embedding-3-small"),
        prompts={"query": "query: a = b", "document": ""},
        host="::1",
        port=9000,
        device="cpu",
        dtype=config.DType.FLOAT32,
        num_workers=2,
        max_batch_tokens=256,
        saturation_batch_tokens=1024,
        max_batch_sequences=16,
        step_timeout_s=7.0,
        tokenizer_threads=3,
        spin_ms=4,
        auto_truncate=False,
        request_timeout_s=5.0,
        drain_timeout_s=2.5,
        log_format=config.LogFormat.JSON,
        log_level=config.LogLevel.DEBUG,
    )


def test_flags_rule_over_variables_over_the_file_over_defaults(serve, file):
    path = file("[gateway]\nport = 1\nhost = '::1'\nlog_format = 'json'\n")
    settings = serve(
        "--port", 3, FLOWERBED_PORT="2", FLOWERBED_HOST="::2", FLOWERBED_CONFIG=str(path)
    )
    assert (settings.port, settings.host) == (3, "::2")
    assert settings.log_format is config.LogFormat.JSON
    assert settings.drain_timeout_s == config.DRAIN_TIMEOUT_S


def test_an_empty_file_changes_nothing(serve, file):
    assert serve("--config", file("")) == config.ServeConfig()


def test_gateway_and_worker_take_their_parts_and_the_same_prompts(file):
    path = file(FULL + 'listen = "unix:/a"\nmetrics_host = "::"\nmetrics_port = 0\n')
    gateway = read_config_file(path, "gateway")
    worker = read_config_file(path, "worker")
    assert gateway["prompts"] == worker["prompts"] == ["query=query: a = b", "document="]
    assert "listen" not in gateway
    assert "num_workers" not in gateway
    assert worker["listen"] == "unix:/a"
    assert "host" not in worker
    assert gateway["drain_timeout"] == worker["drain_timeout"] == 2.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gateway]\nprot = 1", ("[gateway]", "'prot'", "port", "drain_timeout_s")),
        ("[gate]\nport = 1", ("[gate]", "[gateway]", "[[models]]")),
        ("port = 1", ("[port]", "[gateway]")),
        ("[gateway]\nport = '80'", ("port", "whole number", "'80'")),
        ("[gateway]\nport = true", ("port", "whole number")),
        ("[gateway]\nhost = 7", ("host", "text")),
        ("[[models]]\nid = ''", ("id", "text")),
        ("[[models]]\npath = ' '", ("path", "text")),
        ("[gateway]\nrequest_timeout_s = '1'", ("request_timeout_s", "a number")),
        ("[[models]]\naliases = [1]", ("aliases", "list of texts")),
        ("[[models]]\nprompts = {a = 1}", ("prompts", "table of texts")),
        ("[[models]]\nid = 'a'\n[[models]]\nid = 'b'", ("2 models", "serves one")),
        ("[[models]]\nid = 'a'\npath = 'b'", ("id and path",)),
        ("[models]\nid = 'a'", ("[[models]]", "list of tables")),
        ("[worker]\nlisten = 'unix:/a'", ("listen", "flowerbed worker")),
        ("[gateway]\nworkers = ['unix:/a']", ("workers", "flowerbed gateway")),
        ("[gateway", ("no TOML",)),
        ("worker = 3", ("[worker]", "should be a table")),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_file_key_and_what_is_allowed(file, text, words):
    path = file(text)
    with pytest.raises(ConfigError, match=re.escape(str(path))) as caught:
        read_config_file(path, "serve")
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_file_that_is_missing_is_an_error_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["flowerbed", "serve", "--config", "/no/such.toml"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert capsys.readouterr().err.startswith("error: cannot read the config file /no/such.toml")


def test_a_value_out_of_range_says_that_the_file_may_have_set_it(monkeypatch, capsys, file):
    path = file("[gateway]\nport = 70000")
    monkeypatch.setattr(sys, "argv", ["flowerbed", "serve", "--config", str(path)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert "65535" in error
    assert "hint: the config file may have set it" in error
