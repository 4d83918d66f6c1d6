"""Model folders: what is read, what is refused, and with which message. No torch."""

from __future__ import annotations

import json
import shutil

import pytest

from flowerbed.errors import ModelError
from flowerbed.folder import Dense, Normalize, Truncate, read_folder
from flowerbed.hub import ResolvedModel, resolve

MODULES = "sentence_transformers.models."


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def edit(path, **changes):
    write(path, (json.loads(path.read_text()) if path.exists() else {}) | changes)


def modules(*kinds):
    paths = ["" if kind == "Transformer" else f"{at}_{kind}" for at, kind in enumerate(kinds)]
    return [
        {"idx": i, "name": str(i), "path": p, "type": MODULES + k}
        for i, (p, k) in enumerate(zip(paths, kinds, strict=True))
    ]


@pytest.fixture
def folder(tmp_path, minilm_folder):
    """MiniLM's folder with empty weights, which reading does not open."""
    copy = tmp_path / "model"
    shutil.copytree(
        minilm_folder, copy, ignore=shutil.ignore_patterns("*.safetensors", "README.md")
    )
    (copy / "model.safetensors").write_bytes(b"weights")
    return copy


def read(path):
    return read_folder(resolve(str(path)))


def refuses(path, message):
    with pytest.raises(ModelError, match=message):
        read(path)


# === what is read ===


def test_minilm_is_read_as_sentence_transformers_reads_it(folder):
    model = read(folder)
    assert (model.id, model.revision) == ("model", "local")
    assert (model.pooling, model.normalize, model.dimensions) == (("mean",), True, 384)
    assert model.after_pooling == ()
    assert model.allowed_dimensions == ()
    assert model.text.prompts == {"query": "", "document": ""}
    assert len(model.tokenizer_sha256) == len(model.text_sha256) == 64


def test_new_names_of_module_types_are_known(folder):
    listed = modules("Transformer", "Pooling", "Normalize")
    listed[0]["type"] = "sentence_transformers.base.modules.transformer.Transformer"
    listed[1]["type"] = "sentence_transformers.sentence_transformer.modules.pooling.Pooling"
    listed[2]["type"] = "sentence_transformers.base.modules.normalize.Normalize"
    write(folder / "modules.json", listed)
    assert read(folder).normalize


def test_NU_13_dense_modules_are_kept_in_order(folder):
    write(
        folder / "modules.json",
        modules("Transformer", "Pooling", "Normalize", "Dense", "Dense", "Normalize"),
    )
    for at, (wide, narrow) in ((3, (384, 256)), (4, (256, 64))):
        write(
            folder / f"{at}_Dense/config.json",
            {"in_features": wide, "out_features": narrow, "bias": False},
        )
        (folder / f"{at}_Dense/model.safetensors").write_bytes(b"")
    model = read(folder)
    assert model.after_pooling == (
        Normalize(),
        Dense("3_Dense/", 384, 256, False, "Tanh"),
        Dense("4_Dense/", 256, 64, False, "Tanh"),
    )
    assert (model.dimensions, model.normalize) == (64, True)


def test_truncate_dim_comes_after_the_last_normalize(folder):
    edit(folder / "config_sentence_transformers.json", truncate_dim=100)
    model = read(folder)
    assert model.after_pooling == (Normalize(), Truncate(100))
    assert (model.dimensions, model.normalize) == (100, False)


def test_listed_matryoshka_sizes_are_read(folder):
    edit(folder / "config.json", matryoshka_dimensions=[256, 64, 384])
    assert read(folder).allowed_dimensions == (64, 256, 384)


def test_a_transformer_in_a_folder_of_its_own_is_read(folder):
    inner = folder / "0_Transformer"
    inner.mkdir()
    for file in (
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "sentence_bert_config.json",
    ):
        (folder / file).rename(inner / file)
    listed = modules("Transformer", "Pooling")
    listed[0]["path"] = "0_Transformer"
    write(folder / "modules.json", listed)
    model = read(folder)
    assert model.prefix == "0_Transformer/"
    assert model.text.max_length == 256


@pytest.mark.parametrize(
    ("own", "tokenizer", "positions", "expected"),
    [
        (256, 512, 512, 256),
        (None, 128, 512, 128),
        (None, 1000000000000000019884624838656, 512, 512),
        (None, 1e30, 512, 512),
        (None, None, 512, 512),
        (384, 128, 512, 384),
        (1024, 512, 512, 512),
    ],
)
def test_NU_15_the_right_maximum_length_counts(folder, own, tokenizer, positions, expected):
    edit(folder / "sentence_bert_config.json", max_seq_length=own)
    edit(folder / "tokenizer_config.json", model_max_length=tokenizer)
    edit(folder / "config.json", max_position_embeddings=positions)
    assert read(folder).text.max_length == expected


@pytest.mark.parametrize("length", [0, -5, "long", True, float("nan")])
def test_NU_15_senseless_maximum_lengths_are_refused(folder, length):
    edit(folder / "sentence_bert_config.json", max_seq_length=length)
    refuses(folder, "a maximum length of .* tokens makes no sense")


def test_prompts_are_read(folder):
    edit(
        folder / "config_sentence_transformers.json",
        prompts={"query": "query: ", "passage": None},
        default_prompt_name="query",
    )
    text = read(folder).text
    assert text.prompts == {"query": "query: ", "document": "", "passage": ""}
    assert text.default_prompt == "query"


def test_lowercase_is_asked_for_only_where_the_tokenizer_has_no_lowercase_step(folder):
    edit(folder / "sentence_bert_config.json", do_lower_case=True)
    assert read(folder).text.lowercase
    edit(
        folder / "tokenizer.json",
        normalizer={"type": "Sequence", "normalizers": [{"type": "Lowercase"}]},
    )
    assert not read(folder).text.lowercase


def test_truncation_side_is_the_tokenizers(folder):
    assert read(folder).text.truncation_side == "right"
    edit(folder / "tokenizer_config.json", truncation_side="left")
    assert read(folder).text.truncation_side == "left"


def test_include_prompt_is_read(folder):
    edit(folder / "1_Pooling/config.json", include_prompt=False)
    assert read(folder).text.pool_prompt is False


# === the space ===


def test_the_space_moves_with_everything_that_moves_a_vector(folder):
    first = read(folder)
    base = first.space("float32")
    assert len(base) == 16
    assert int(base, 16) >= 0
    assert read(folder).space("float32") == base
    spaces = {base, first.space("bfloat16")}
    changes = [
        lambda: (folder / "model.safetensors").write_bytes(b"others"),
        lambda: edit(folder / "config.json", layer_norm_eps=1e-5),
        lambda: edit(folder / "sentence_bert_config.json", max_seq_length=200),
        lambda: edit(folder / "config_sentence_transformers.json", prompts={"query": "q: "}),
        lambda: edit(folder / "tokenizer.json", truncation=None),
        lambda: edit(folder / "1_Pooling/config.json", pooling_mode="cls"),
        lambda: write(folder / "modules.json", modules("Transformer", "Pooling")),
    ]
    for change in changes:
        change()
        spaces.add(read(folder).space("float32"))
    assert len(spaces) == len(changes) + 2


def test_the_space_does_not_move_with_names_and_notes(folder):
    base = read(folder).space("float32")
    edit(
        folder / "config.json",
        transformers_version="9.9",
        _name_or_path="elsewhere",
        dtype="float32",
    )
    moved = folder.rename(folder.with_name("other"))
    model = read_folder(ResolvedModel(moved, "other/name", "main"))
    assert model.space("float32") == base


# === what is refused ===


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "has no config.json: it says which architecture"),
        ("model.safetensors", "has no weights: model.safetensors is missing"),
        ("tokenizer.json", "has no tokenizer.json, only vocab.txt: write one with transformers"),
        (
            "1_Pooling/config.json",
            "has no 1_Pooling/config.json: it says how tokens become one vector",
        ),
    ],
)
def test_OP_18_each_missing_file_has_its_own_message(folder, name, message):
    (folder / name).unlink()
    refuses(folder, message)


def test_OP_18_a_folder_without_any_vocabulary_says_so(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").unlink()
    refuses(folder, "has no tokenizer.json: write one")


def test_NU_14_a_plain_folder_is_not_silently_mean_pooled(folder):
    (folder / "modules.json").unlink()
    assert read(folder).pooling == ("mean",)  # 1_Pooling is there
    assert read(folder).normalize is False
    shutil.rmtree(folder / "1_Pooling")
    refuses(
        folder, "neither modules.json nor 1_Pooling/config.json.*is not guessed: add modules.json"
    )


def test_NU_13_modules_whose_order_is_not_known_are_refused(folder):
    (folder / "modules.json").unlink()
    (folder / "2_Dense").mkdir()
    refuses(folder, "has 2_Dense but no modules.json")


def test_OP_18_shards_and_their_index_are_checked(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"")
    refuses(folder, "in shards, but their index model.safetensors.index.json is missing")
    index = folder / "model.safetensors.index.json"
    write(
        index,
        {
            "weight_map": {
                "a": "model-00001-of-00002.safetensors",
                "b": "model-00002-of-00002.safetensors",
            }
        },
    )
    refuses(folder, "has no model-00002-of-00002.safetensors: .* names this shard")
    write(index, {"weight_map": {"a": "../../evil.safetensors"}})
    refuses(folder, "leads out of the model's folder")
    write(index, {"weight_map": {"a": "weights.bin"}})
    refuses(folder, "weights are read from safetensors only")
    write(index, {"weight_map": {}})
    refuses(folder, "weight_map should name a file")


def test_pickles_are_refused_with_the_way_out(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refuses(folder, "a pickle, which could run code: convert them to safetensors")


@pytest.mark.parametrize(
    "kind",
    [
        "sentence_transformers.models.CNN",
        "custom.Pooling",
        "os.system",
        "sentence_transformers.models.LSTM",
    ],
)
def test_NU_13_unknown_modules_are_refused(folder, kind):
    listed = modules("Transformer", "Pooling", "Normalize")
    listed[2]["type"] = kind
    write(folder / "modules.json", listed)
    refuses(
        folder,
        f"module type '{kind}' is not supported.*supported: Transformer, Pooling, Dense, Normalize",
    )


@pytest.mark.parametrize(
    "kinds",
    [
        ("Pooling", "Transformer"),
        ("Transformer",),
        ("Transformer", "Pooling", "Pooling"),
        ("Transformer", "Dense", "Pooling"),
    ],
)
def test_modules_in_another_order_are_refused(folder, kinds):
    write(folder / "modules.json", modules(*kinds))
    refuses(folder, f"lists {', '.join(kinds)}; supported: Transformer, Pooling, then")


@pytest.mark.parametrize("listed", [{}, [], ["x"], [1] * 17, "Transformer"])
def test_a_modules_file_of_another_form_is_refused(folder, listed):
    write(folder / "modules.json", listed)
    refuses(folder, "modules.json")


@pytest.mark.parametrize(
    "path", ["../1_Pooling", "/etc", "a/../../b", "..", "1_Pooling\\..", "x\0y"]
)
def test_module_paths_stay_inside_the_folder(folder, path):
    listed = modules("Transformer", "Pooling")
    listed[1]["path"] = path
    write(folder / "modules.json", listed)
    refuses(folder, "leads out of the model's folder")


def test_links_out_of_the_folder_are_refused(folder, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (folder / "config_sentence_transformers.json").unlink()
    (folder / "config_sentence_transformers.json").symlink_to(secret)
    refuses(folder, "is a link that leads out of the model's folder")


def test_links_inside_the_folder_are_followed(folder):
    (folder / "1_Pooling").rename(folder / "pooling")
    (folder / "1_Pooling").symlink_to("pooling")
    assert read(folder).pooling == ("mean",)


def test_OP_18_a_hub_snapshot_of_links_into_its_blobs_is_read(folder, tmp_path):
    repository = tmp_path / "hub" / "models--a--b"
    snapshot, blobs = repository / "snapshots" / ("c" * 40), repository / "blobs"
    blobs.mkdir(parents=True)
    for file in [path for path in folder.rglob("*") if path.is_file()]:
        blob = blobs / file.name.replace(".", f"-{len(list(blobs.iterdir()))}-")
        shutil.copy(file, blob)
        link = snapshot / file.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    assert read(snapshot).space("float32") == read(folder).space("float32")


@pytest.mark.parametrize(
    "name", ["config.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"]
)
def test_huge_files_are_refused_unread(folder, name):
    with (folder / name).open("wb") as file:
        file.truncate(20 << 20)
    refuses(folder, "too many for its purpose")


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000, b"\xff\xfe", b"9" * 5000, b""])
def test_files_that_are_not_good_json_are_refused(folder, content):
    (folder / "config.json").write_bytes(content)
    refuses(folder, r"config.json (is not good JSON|should hold a JSON object)")


def test_a_folder_in_the_place_of_a_file_is_refused(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    refuses(folder, "should be a file")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "pooling_mode=.* is not supported; supported: cls"),
        ("1_Pooling/config.json", {"pooling_mode": []}, "is not supported"),
        ("1_Pooling/config.json", {"pooling_mode_attention": True}, "pooling_mode_attention is not supported"),
        ("1_Pooling/config.json", {"word_embedding_dimension": 768}, "=768, but the model's hidden_size is 384"),
        ("1_Pooling/config.json", {"include_prompt": "no"}, "include_prompt should be bool"),
        ("config.json", {"hidden_size": "wide"}, "hidden_size should be int"),
        ("config.json", {"matryoshka_dimensions": [0]}, "matryoshka_dimensions should be sizes from 1 to 384"),
        ("config_sentence_transformers.json", {"prompts": {"query": 3}}, "prompt 'query' should be text"),
        ("config_sentence_transformers.json", {"default_prompt_name": "x"}, "'x' is none of"),
        ("config_sentence_transformers.json", {"truncate_dim": 0}, "truncate_dim should be a whole number"),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}, "'CrossEncoder' is not supported"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task='fill-mask' is not"),
        ("sentence_bert_config.json", {"query_length": 32}, "query_length=32 is not supported"),
        ("sentence_bert_config.json", {"tokenizer_args": {"x": 1}}, r"tokenizer_args has \['x'\]"),
        ("sentence_bert_config.json", {"do_lower_case": 1}, "do_lower_case should be bool"),
        ("tokenizer_config.json", {"do_lower_case": False}, "make them agree"),
        ("tokenizer_config.json", {"truncation_side": "middle"}, "truncation side 'middle' is not supported"),
        ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "module_input_name='token_emb"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_honoured_are_refused(folder, name, changes, message):
    edit(folder / name, **changes)
    refuses(folder, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"activation_function": "torch.nn.modules.activation.Softmax"},
            "Softmax' is not supported; supported",
        ),
        ({"activation_function": "evil.Tanh"}, "'evil.Tanh' is not supported"),
        ({"use_residual": True}, "use_residual=true is not supported"),
        ({"in_features": 768}, "in_features=768, but what comes before gives 384"),
        ({"out_features": -1}, "out_features should be a whole number above 0"),
        ({"module_output_name": "other"}, "module_output_name='other' is not supported"),
    ],
)
def test_NU_13_dense_settings_that_cannot_be_honoured_are_refused(folder, changes, message):
    write(folder / "modules.json", modules("Transformer", "Pooling", "Dense"))
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense/model.safetensors").write_bytes(b"")
    write(folder / "2_Dense/config.json", {"in_features": 384, "out_features": 8} | changes)
    refuses(folder, message)


def test_NU_13_a_dense_module_without_weights_is_refused(folder):
    write(folder / "modules.json", modules("Transformer", "Pooling", "Dense"))
    write(folder / "2_Dense/config.json", {"in_features": 384, "out_features": 8})
    refuses(folder, "has no weights: 2_Dense/model.safetensors is missing")
