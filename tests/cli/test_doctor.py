"""`flowerbed doctor`: what it reports, when it fails, and the knee that it measures."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys

import pytest

import qwen
from flowerbed import _core, doctor, hub, machine
from flowerbed.config import CPU_BATCH_TOKENS
from flowerbed.errors import ModelError
from flowerbed.folder import read_folder
from flowerbed.rose.engine import Engine

SECRET = "hf_TopSecretOfTheGarden"


def problems(report) -> str:
    return "\n".join(f"{p.level}: {p.what} -> {p.fix}" for p in report.problems)


def test_doctor_tells_what_serving_consists_of_and_succeeds(run_doctor):
    outcome = run_doctor("--json", "--device", "cpu")
    found = json.loads(outcome.out)
    assert (outcome.code, outcome.err, found["ok"]) == (0, "", True)
    facts = found["facts"]
    assert facts["versions"].keys() >= {"flowerbed", "python", "torch", "triton", "tokenizers"}
    assert facts["core"].keys() >= {"version", "profile", "source_hash", "stale"}
    assert facts["cpu"]["cores"] == machine.num_cores()
    assert {"avx2", "avx512", "avx512_bf16", "amx_bf16", "vnni"} <= facts["cpu"].keys()
    assert facts["threads"].keys() == {"OMP_NUM_THREADS", "worker", "torch"}
    assert facts["budget"]["without_a_knee"] == CPU_BATCH_TOKENS
    assert facts["packaged model"]["verified"] is True
    assert facts["extras"]["engine"] == "installed"
    assert facts["limits"]["127.0.0.1 port 0"] == "free"
    assert facts["devices"] == {"cpu": "cpu"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--dtype", "fp8"), "dtype fp8 is not supported on a CPU"),
        (("--batch-invariant", "on"), "batch_invariant on cannot be honoured on cpu"),
        (("--attention", "flash-attn-4"), "attention flash-attn-4 cannot be honoured on cpu"),
    ],
)
def test_what_serve_would_refuse_is_an_error(run_doctor, options, reason):
    outcome = run_doctor("--json", "--device", "cpu", *options)
    found = json.loads(outcome.out)
    assert (outcome.code, found["ok"]) == (1, False)
    assert any(reason in problem["what"] for problem in found["problems"])


def test_the_text_for_people_ends_with_the_verdict(run_doctor):
    outcome = run_doctor("--device", "cpu")
    assert outcome.code == 0
    assert outcome.out.endswith("serving would work\n")
    assert "pip install 'flowerbed[cuda]'" in outcome.out


def test_an_extra_that_is_missing_is_told_with_its_command(examine, monkeypatch):
    needed = ["torch>=2.11; extra == 'engine'", "flashinfer-python==0.6.12; extra == 'flashinfer'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: needed)
    assert examine().facts["extras"] == {
        "engine": "installed",
        "flashinfer": "missing flashinfer-python: pip install 'flowerbed[flashinfer]'",
    }


def test_a_missing_engine_is_an_error_with_its_command(examine, monkeypatch):
    find_spec = doctor.util.find_spec
    monkeypatch.setattr(
        doctor.util, "find_spec", lambda name: None if name == "torch" else find_spec(name)
    )
    report = examine()
    assert not report.is_good
    assert "error: the engine cannot be loaded: torch -> pip install 'flowerbed[engine]'" in (
        problems(report)
    )


def test_a_broken_engine_is_an_error_too(examine, monkeypatch):
    def broken(name):
        raise OSError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(doctor, "import_module", broken)
    assert "the engine cannot be loaded: torch, safetensors" in problems(examine())


def test_a_port_that_is_taken_is_an_error(examine):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        report = examine(port=port)
    assert not report.is_good
    assert f"nothing can listen on 127.0.0.1 port {port}: Address already in use" in (
        problems(report)
    )


def test_a_missing_gpu_is_an_error_when_it_is_asked_for(examine, monkeypatch):
    monkeypatch.setattr("flowerbed.devices.count_gpus", lambda: 0)
    assert "error: no GPU was found for --device cuda" in problems(examine(device="cuda"))


def test_a_debug_or_stale_core_is_a_warning(examine, monkeypatch):
    build = {"version": "0.1.0", "profile": "debug", "source_hash": "00000000"}
    monkeypatch.setattr(_core, "build_info", lambda: build)
    report = examine()
    assert report.is_good
    assert "warning: the core is a debug build" in problems(report)
    assert "built from other sources than those of this checkout -> make build" in problems(report)
    build.update(profile="release", source_hash=doctor.source_hash(doctor.checkout()))
    assert "core" not in problems(examine())


def test_the_hash_of_the_sources_changes_with_names_and_contents(tmp_path):
    (tmp_path / "crates" / "ivy").mkdir(parents=True)
    (tmp_path / "proto").mkdir()
    source = tmp_path / "crates" / "ivy" / "lib.rs"
    hashes = set()
    for text in ("fn a() {}", "fn b() {}"):
        source.write_text(text)
        hashes.add(doctor.source_hash(tmp_path))
    source.rename(source.with_name("main.rs"))
    hashes.add(doctor.source_hash(tmp_path))
    (tmp_path / "proto" / "notes.md").write_text("no source")
    hashes.add(doctor.source_hash(tmp_path))
    assert len(hashes) == 3


def test_the_build_script_stamps_the_hash_that_doctor_computes(tmp_path):
    root = doctor.checkout()
    built = tmp_path / "build"
    compiler = ["rustc", "--edition", "2021", "-o", str(built), "build.rs"]
    subprocess.run(compiler, cwd=root / "crates" / "python", check=True)
    stamped = subprocess.run(
        [built], cwd=root / "crates" / "python", capture_output=True, text=True, check=True
    ).stdout
    assert f"FLOWERBED_SOURCE_HASH={doctor.source_hash(root)}" in stamped


def test_a_damaged_default_model_is_an_error_unless_another_is_served(
    examine, monkeypatch, minilm_folder
):
    monkeypatch.setitem(doctor.hub.DEFAULT_SHA256, "config.json", "0" * 64)
    report = examine()
    assert not report.is_good
    assert "the packaged model is damaged: changed: config.json" in problems(report)
    assert report.facts["packaged model"] == {"installed": True, "verified": False}
    assert examine(model=str(minilm_folder)).is_good


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", lambda data: b"{"),
        ("config.json", lambda data: b"[]"),
        ("config.json", lambda data: None),
        ("config.json", lambda data: data.replace(b'"bert"', b'"gpt2"')),
        ("config.json", lambda data: data.replace(b'"num_attention_heads": 12', b'"n": 12')),
        ("config.json", lambda data: data.replace(b'layers": 6', b'layers": 5')),
        ("config.json", lambda data: data.replace(b'layers": 6', b'layers": 7')),
        ("config.json", lambda data: data.replace(b"384", b"385")),
        ("config.json", lambda data: data.replace(b"1536", b"1537")),
        ("1_Pooling/config.json", lambda data: b"null"),
        ("modules.json", lambda data: b"{}"),
        ("tokenizer.json", lambda data: None),
        ("model.safetensors", lambda data: data[:1_000]),
        ("model.safetensors", lambda data: b""),
        ("model.safetensors", lambda data: None),
    ],
)
def test_a_damaged_folder_has_one_verdict_and_message_here_and_where_it_is_served(
    examine, minilm_folder, tmp_path, file, change
):
    folder = tmp_path / "damaged"
    shutil.copytree(minilm_folder, folder)
    assert examine(model=str(folder)).is_good
    data = change((folder / file).read_bytes())
    (folder / file).unlink()
    if data is not None:
        (folder / file).write_bytes(data)
    with pytest.raises(ModelError) as refused:
        Engine.load(read_folder(hub.resolve(str(folder))), device="cpu")
    report = examine(model=str(folder))
    assert not report.is_good
    assert [p.what for p in report.problems if p.level == "error"] == [str(refused.value)]


@pytest.mark.parametrize("weights", [True, False])
def test_a_damaged_package_has_one_verdict_and_message_here_and_where_it_is_served(
    examine, minilm_folder, tmp_path, monkeypatch, weights
):
    shutil.copytree(minilm_folder, tmp_path / "package" / "model")
    config = tmp_path / "package" / "model" / "config.json"
    config.write_bytes(config.read_bytes().replace(b"1e-12", b"1e-05"))

    class Spec:
        submodule_search_locations = (str(tmp_path / "package"),)

    find_spec = doctor.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: Spec if "minilm" in name else find_spec(name)
    )
    with pytest.raises(
        ModelError, match=r"damaged: changed: config\.json .*--force-reinstall$"
    ) as e:
        hub.resolve(None, weights=weights)
    assert f"error: {e.value} -> " in problems(examine())


def test_a_good_folder_of_qwen3_is_checked_without_its_weights(examine, tmp_path, real_texts):
    qwen.write_qwen3_embedding(tmp_path, real_texts)
    qwen.save_weights(tmp_path, with_head=True)
    assert examine(model=str(tmp_path)).is_good
    qwen.edit_json(tmp_path / "config.json", head_dim=6)
    assert "has shape" in problems(examine(model=str(tmp_path)))


def test_a_model_folder_is_read_and_a_hub_id_only_looked_up(examine, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    report = examine(model=str(tmp_path / "empty"))
    assert "error: the folder has neither modules.json" in problems(report)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    report = examine(model="garden/rose")
    assert report.is_good
    assert "garden/rose is not in the cache; serving would fetch it" in problems(report)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert not examine(model="garden/rose").is_good


def test_a_token_is_told_of_and_never_shown(run_doctor, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    outcome = run_doctor("--json", "--device", "cpu")
    assert json.loads(outcome.out)["facts"]["hub"]["token"] is True
    assert SECRET not in outcome.out + outcome.err


def test_more_threads_than_cores_and_few_open_files_are_warnings(examine, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "999")
    monkeypatch.setattr(machine, "max_open_files", lambda: 256)
    report = examine()
    assert report.is_good
    assert "-> unset OMP_NUM_THREADS" in problems(report)
    assert "may only have 256 files" in problems(report)


def test_looking_at_an_installation_imports_no_model_code():
    code = "import sys, flowerbed.doctor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"torch", "flowerbed.rose", "huggingface_hub"}


@pytest.mark.parametrize(
    ("capability", "said"),
    [
        ((9, 0), "sm_90: kernels verified"),
        ((8, 6), "sm_86: kernels are compiled"),
        ((7, 5), "too old"),
    ],
)
def test_a_gpu_is_told_with_what_is_known_of_the_kernels_on_it(
    examine, monkeypatch, capability, said
):
    monkeypatch.setattr("flowerbed.machine.gpus", lambda: [("NVIDIA Test", capability)])
    facts = examine().facts["gpus"]
    assert facts["cuda:0"].startswith("NVIDIA Test, ")
    assert said in facts["cuda:0"]


def test_what_the_steps_of_a_gpu_lack_is_a_warning_with_its_command(examine, monkeypatch):
    from flowerbed.rose import device
    from flowerbed.rose.kernels import flash_attention

    monkeypatch.setattr("flowerbed.devices.count_gpus", lambda: 1)
    report = examine(device="cuda")
    assert "error: device cuda:0 " in problems(report), "torch sees none"
    monkeypatch.setattr(device, "pick_device", lambda name: name)
    for lacks, fix in (
        ("flash-attn-4 is not installed", "pip install 'flowerbed[engine,cuda]'"),
        ("triton does not start (Failed to find C compiler.)", ""),
        (None, None),
    ):
        monkeypatch.setattr(flash_attention, "why_not", lambda *_, lacks=lacks: lacks)
        report = examine(device="cuda")
        assert report.is_good
        assert report.facts["kernels"] == {"cuda:0": lacks or "Triton and flash-attn-4 work"}
        told = f"steps on cuda:0 are slower than they could be: {lacks} -> {fix}"
        assert (told in problems(report)) == (lacks is not None)
