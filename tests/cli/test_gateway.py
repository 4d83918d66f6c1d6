"""The gateway's Python side, with a stand-in for the Rust core."""

import errno
import json
import signal
import sys
from types import ModuleType

import pytest

import flowerbed
from flowerbed import gateway
from flowerbed.errors import FlowerbedError
from flowerbed.folder import read_folder
from flowerbed.hub import resolve


class FakeGateway:
    """Keeps what it was told; `start` raises what `start_error` holds."""

    start_error: OSError | None = None
    num_signals = 1
    configs: list[str]
    calls: list[str]

    def __init__(self, config: str) -> None:
        type(self).configs = [config]
        type(self).calls = []

    def start(self) -> str:
        if self.start_error:
            raise self.start_error
        return "127.0.0.1:4321"

    was_cut = False

    def wait(self) -> None:
        for _ in range(self.num_signals):
            signal.raise_signal(signal.SIGTERM)

    def drain(self) -> None:
        self.calls.append("drain")

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.fixture
def core(monkeypatch):
    module = ModuleType("flowerbed._core")
    module.Gateway = type("Gateway", (FakeGateway,), {})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(flowerbed, "_core", module, raising=False)
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    yield module.Gateway
    for each, handler in handlers.items():
        signal.signal(each, handler)


def run(on_ready=lambda address, model: None) -> int:
    return gateway.run(
        None,
        revision=None,
        aliases=("more",),
        prompts={"query": "q: "},
        listen="127.0.0.1:0",
        workers=("unix:/w",),
        token=None,
        request_timeout_s=1.0,
        drain_timeout_s=2.0,
        tokenizer_threads=0,
        spin_ms=0,
        auto_truncate=True,
        on_ready=on_ready,
    )


def test_the_first_signal_drains_and_the_second_stops(core):
    assert run() == 0
    assert core.calls == ["drain"]
    core.num_signals = 2
    assert run() == 128 + signal.SIGTERM
    assert core.calls == ["drain", "stop"]


def test_a_drain_that_was_too_short_is_no_clean_end(core):
    core.was_cut = True
    assert run() == 1


def test_the_address_and_the_model_are_told(core):
    told = []
    run(lambda address, model: told.append((address, model)))
    assert told == [("127.0.0.1:4321", "sentence-transformers/all-MiniLM-L6-v2")]


@pytest.mark.parametrize(
    ("number", "what", "hint"),
    [
        (errno.EADDRINUSE, "Address already in use", "another process .* --port"),
        (errno.EADDRNOTAVAIL, "Cannot assign requested address", "no such address: .* --host"),
        (errno.EACCES, "Permission denied", "below 1024 .* --port"),
    ],
)
def test_an_address_that_cannot_be_bound_is_an_error_that_says_what_to_do(core, number, what, hint):
    core.start_error = OSError(number, "words of the core")
    with pytest.raises(FlowerbedError, match=f"^cannot listen on 127.0.0.1:0: {what}\n.*{hint}"):
        run()


def test_another_failure_of_the_start_is_not_laid_to_the_address(core):
    core.start_error = OSError("the tokenizer is damaged")
    with pytest.raises(FlowerbedError, match="^the tokenizer is damaged$") as caught:
        run()
    assert not hasattr(caught.value, "__notes__")


def test_prompts_are_part_of_the_text_settings_that_both_sides_compare(core):
    run()
    model = json.loads(core.configs[0])["model"]
    assert model["text"]["prompts"] == {"query": "q: ", "document": ""}
    assert model["aliases"] == ["all-MiniLM-L6-v2", "default", "more"]
    folder = read_folder(resolve(None), {"query": "q: "})
    assert model["text_sha256"] == folder.text_sha256 != read_folder(resolve(None)).text_sha256
    assert folder.space("float32") != read_folder(resolve(None)).space("float32")


def test_a_model_answers_to_its_last_part_and_to_default():
    model = gateway.gateway_model(None, None)
    assert model.aliases == ("all-MiniLM-L6-v2", "default")
    assert model.text.max_length == 256
    assert len(model.tokenizer_sha256) == 64
