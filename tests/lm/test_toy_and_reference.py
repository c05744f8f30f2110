"""Protects: a reference always gives the same model and identity, and a wrong one one line that says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from prefsel_ray.errors import PrefselError
from prefsel_ray.lm import gguf
from prefsel_ray.lm.reference import identity, load, load_tokenizer, window_of
from prefsel_ray.lm.toy import parse_toy, toy_tokenizer


def save_tiny_model(folder: Path, **changes) -> Path:
    config = Qwen2Config(
        vocab_size=262,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        eos_token_id=[2, 5],
        **changes,
    )
    torch.manual_seed(1)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    toy_tokenizer().save_pretrained(folder)
    return folder


def test_a_toy_reference_gives_the_same_weights_every_time_and_leaves_the_random_state_alone(tmp_path):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = load("toy:2x32", cache=tmp_path, device="cpu").model.state_dict()
    assert torch.equal(torch.rand(3), expected)
    second = load("toy:2x32", cache=tmp_path, device="cpu").model.state_dict()
    other = load("toy:2x32@1", cache=tmp_path, device="cpu").model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_a_toy_model_has_the_layers_and_the_width_of_its_reference(tmp_path):
    lm = load("toy:3x48", cache=tmp_path, device="cpu")
    assert len(lm.base.layers) == 3
    assert lm.hidden_size == 48
    assert lm.window == 4096
    assert lm.eos_ids == (2,)
    assert not any(parameter.requires_grad for parameter in lm.model.parameters())
    assert not lm.model.training


def test_the_toy_tokenizer_has_one_id_a_byte_and_keeps_pad_bos_and_eos_apart():
    tokenizer = toy_tokenizer()
    text = "héllo\n\t 日本 🙂"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert len(tokenizer) == 262


@pytest.mark.parametrize("reference", ["toy:", "toy:2", "toy:0x32", "toy:2x", "toy:2x32@", "toy:2x20"])
def test_a_toy_reference_that_does_not_read_right_is_refused_in_one_line(reference):
    with pytest.raises(PrefselError, match=r"^model 'toy:.*toy model") as caught:
        parse_toy(reference)
    assert "\n" not in str(caught.value)


def test_a_folder_is_loaded_with_its_window_and_every_end_id(tmp_path):
    folder = save_tiny_model(tmp_path / "model")
    lm = load(str(folder), cache=tmp_path, device="cpu")
    assert lm.window == window_of(str(folder), tmp_path) == 128
    assert lm.eos_ids == (2, 5)
    assert lm.model.dtype == torch.float32


def test_a_folder_keeps_its_identity_when_moved_and_changes_it_with_its_files(tmp_path):
    folder = save_tiny_model(tmp_path / "one")
    before = identity(str(folder), tmp_path)
    moved = folder.rename(tmp_path / "two")
    assert identity(str(moved), tmp_path) == before
    assert before.startswith("folder:")
    config = moved / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    assert identity(str(moved), tmp_path) != before


def test_two_spellings_of_one_toy_have_one_identity(tmp_path):
    assert identity("toy:2x32", tmp_path) == identity("toy:2x32@0", tmp_path) != identity("toy:2x32@1", tmp_path)


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("package:prefsel_no_such_package", "pip install prefsel-no-such-package"),
        ("package:json", "exactly one .gguf file in the package, found 0"),
        ("package:not-a-name", "write the import name"),
        ("/no/such/folder", "no such folder"),
    ],
)
def test_a_missing_model_is_refused_in_one_line(tmp_path, reference, reason):
    for call in (load, identity):
        with pytest.raises(PrefselError) as caught:
            call(reference, cache=tmp_path)
        assert reason in str(caught.value)
        assert reference in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(PrefselError, match=r"no config\.json"):
        load_tokenizer(str(tmp_path), tmp_path)


def test_a_hub_model_that_is_not_at_hand_is_refused_offline_in_one_line(tmp_path):
    program = (
        "import sys; from pathlib import Path\n"
        "from prefsel_ray.errors import PrefselError\n"
        "from prefsel_ray.lm.reference import load\n"
        "try: load('some-owner/some-model', cache=Path(sys.argv[1]), device='cpu')\n"
        "except PrefselError as error: print(error)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
    )
    line = done.stdout.strip().splitlines()[-1]
    assert line.startswith("model 'some-owner/some-model' cannot be loaded (HF_HUB_OFFLINE is set): ")


def test_weights_that_are_no_safetensors_are_refused(tmp_path):
    folder = save_tiny_model(tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(PrefselError, match="cannot be loaded"):
        load(str(folder), cache=tmp_path, device="cpu")


def test_a_model_that_scales_its_logits_is_refused(tmp_path):
    from transformers import GraniteConfig, GraniteForCausalLM

    torch.manual_seed(0)
    config = GraniteConfig(
        vocab_size=262,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        logits_scaling=8.0,
    )
    GraniteForCausalLM(config).save_pretrained(tmp_path / "model")
    toy_tokenizer().save_pretrained(tmp_path / "model")
    with pytest.raises(PrefselError, match="logits are not head"):
        load(str(tmp_path / "model"), cache=tmp_path, device="cpu")


def test_an_unknown_device_is_refused(tmp_path):
    with pytest.raises(PrefselError, match="device 'gpu' is not known"):
        load("toy:1x16", cache=tmp_path, device="gpu")


def test_a_broken_conversion_leaves_nothing_and_the_next_one_starts_afresh(tmp_path, monkeypatch):
    package = tmp_path / "prefsel_fake_model"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "weights.gguf").write_bytes(b"not a model")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(gguf, "_version", lambda package: "1.0")
    cache = tmp_path / "cache"
    for _ in range(2):
        with pytest.raises(Exception):  # noqa: B017 - whatever the GGUF reader says of these bytes
            gguf.safetensors_folder("prefsel_fake_model", cache)
    assert [path for path in (cache / "models").iterdir() if path.is_dir()] == []
