"""Protects what the report says in tables and words: the right number in the right place, a reason for every gap."""

import pytest
from rich.console import Console

from prefsel_ray.errors import PrefselError
from prefsel_ray.report.answer import answer, ordinal, paired_difference, standings
from prefsel_ray.report.read import SweepData, interval, number, read_sweep, remark, seed_spread
from prefsel_ray.report.tables import correlation_groups, ledger_lines, main_tables, print_summary
from tests.report.synthetic import LEDGER, POLICY, generation_rows, result_rows, row, summary, write_sweep


def sweep(rows=None, generations=None, **given) -> SweepData:
    rows = result_rows() if rows is None else rows
    return SweepData(rows, generation_rows() if generations is None else generations, LEDGER, summary(**given))


def words(data: SweepData) -> str:
    """The answer's first paragraph with its typographic characters made plain."""
    text = "".join(part for part, _ in answer(data)[0])
    return text.replace("\u2060", "").replace("\u00a0", " ")


def lines_by_label(data: SweepData) -> dict[tuple[str, str], list[str]]:
    return {(line.label, line.setting): [cell.text for cell in line.cells] for line in main_tables(data)[0].lines}


def test_each_configuration_is_one_line_with_its_seed_means():
    lines = lines_by_label(sweep())
    assert lines["Zero-shot", ""] == ["–", "75.6", "20.0", "17.7", "70.0", "–"]
    assert lines["ICL, retrieved", "k = 4"] == ["–", "81.0", "34.6", "32.3", "77.3", "–"]
    assert lines["LoRE", "w = 1"] == ["89.4", "59.9", "81.4", "15.2", "12.9", "67.6", "94.2"]
    assert len(lines) == 8


def test_a_cell_shows_interval_seed_spread_and_ties():
    [table] = main_tables(sweep())
    win_rate = next(line for line in table.lines if line.label == "MPU").cells[-1]
    assert (win_rate.text, win_rate.interval, win_rate.extra) == ("81.7", "77.7–85.7", "sd 0.46 · 4 ties")
    assert [table.notes[mark - 1] for mark in win_rate.marks] == ["3 % of the texts equal the zero-shot text"]
    assert [column.n for column in table.columns] == ["n = 240"] * 3 + ["n = 120"] * 4


def test_a_missing_value_is_a_dash_with_the_reason_of_its_row():
    rows = [r for r in result_rows() if not (r["metric"] == "bertscore" and r["method"] == "lore")]
    key = {"method": "lore", "seed": None, "policy": POLICY, "w": 1.0}
    rows.append(row("bertscore", None, n=0, note="BERTScore is off in this sweep", **key))
    [table] = main_tables(sweep(rows))
    cell = next(line for line in table.lines if line.label == "LoRE").cells[5]
    assert cell.text == "–"
    assert table.notes[cell.marks[0] - 1] == "BERTScore is off in this sweep"


def test_a_method_whose_cells_failed_keeps_its_line_and_points_to_the_failure():
    rows = [r for r in result_rows() if r["method"] != "mpu"]
    [table] = main_tables(sweep(rows, failed=[{"cell": "rewards/mpu-0", "reason": "NaN in the loss"}]))
    line = next(line for line in table.lines if line.label == "MPU")
    assert [cell.text for cell in line.cells] == ["–"] * 7
    assert table.notes[line.cells[0].marks[0] - 1] == "not measured: a cell failed (see Failed cells)"


def test_only_the_highest_value_of_a_column_is_best():
    [table] = main_tables(sweep())
    best = [(line.label, line.setting, cell.text) for line in table.lines for cell in line.cells if cell.best]
    assert best == [
        ("ICL, retrieved", "k = 4", "34.6"),
        ("ICL, retrieved", "k = 4", "32.3"),
        ("ICL, retrieved", "k = 4", "77.3"),
        ("LoRE", "w = 1", "89.4"),
        ("LoRE", "w = 1", "81.4"),
        ("LoRE", "w = 1", "94.2"),
    ]


def test_the_answer_names_the_leader_and_says_that_clear_intervals_do_not_overlap():
    text = words(sweep())
    assert "ICL, retrieved (k = 4) writes the texts closest to the users' own by ROUGE-1: 34.6 [32.1–37.1]" in text
    assert "The best other method is ICL, random (k = 4) at 28.0 [25.5–30.5]; the two intervals do not overlap" in text
    assert "By BERTScore it leads again at 77.3 [74.8–79.8], its interval overlapping that of 1 of the 5 other" in text
    assert "Reward model accuracy would choose LoRE (w = 1), 89.4 [86.4–92.4] %; by ROUGE-1 it comes 7th of 8" in text
    assert "Kendall's τ between RM accuracy and ROUGE-1 is −0.41 [−0.71 to −0.11] over 9 points." in text


def test_the_answer_leaves_the_order_open_where_intervals_overlap():
    rows = [r for r in result_rows() if r["method"] in ("global_rm", "lore")]
    text = words(sweep(rows, methods=["global_rm", "lore"]))
    assert "LoRE (w = 1) writes the texts closest" in text
    assert "the two intervals overlap, so the order of the two is open" in text


def test_the_answer_holds_with_one_method_and_with_none_measured():
    alone = words(sweep([r for r in result_rows() if r["method"] == "zero_shot"], methods=["zero_shot"]))
    assert "No other method has a value to compare with." in alone
    assert "No reward model was ranked." in alone
    assert words(sweep([], [])).startswith("ROUGE-1 was not measured. ROUGE-L was not measured.")


def test_the_paired_difference_averages_seeds_and_uses_shared_examples_only():
    def text(example, method, seed, rouge1):
        common = {"example_id": example, "user_id": f"user of {example}", "policy": POLICY, "variant": None}
        return {**common, "method": method, "seed": seed, "w": 1.0, "rouge1": rouge1}

    texts = [text("a", "lore", 0, 10.0), text("a", "lore", 1, 20.0), text("b", "lore", 0, 30.0)]
    texts += [text("a", "global_rm", 0, 9.0), text("b", "global_rm", 0, 24.0), text("c", "global_rm", 0, 99.0)]
    rows = [r for r in result_rows() if r["method"] in ("global_rm", "lore")]
    data = sweep(rows, texts, methods=["global_rm", "lore"])
    best, rival = standings(data, "rouge1", POLICY)
    mean, low, high = paired_difference(data, "rouge1", best, rival, POLICY)
    assert mean == 6.0  # (15 - 9) and (30 - 24)
    assert low == high == 6.0


def test_correlations_are_grouped_by_policy_and_weight_with_n_and_reason():
    rows = result_rows() + [
        row("kendall", None, n=3, policy=POLICY, w=0.3, variant="win_rate ~ rouge1", note="fewer than 4 points"),
    ]
    first, second = correlation_groups(sweep(rows))
    assert (first["policy"], first["w"], len(first["lines"])) == (POLICY, 1.0, 3)
    assert [cell.text for cell in first["lines"][0]["cells"]] == ["−0.41", "−0.52", "−0.63"]
    assert first["lines"][0]["cells"][0].interval == "−0.71 to −0.11"
    assert first["lines"][0]["n"] == "9"
    [line] = second["lines"]
    assert [cell.text for cell in line["cells"]] == ["–", "–", "–"]
    assert (line["x"], line["y"], line["n"], line["note"]) == ("win rate", "ROUGE-1", "3", "fewer than 4 points")


def test_the_ledger_lists_refusals_first_and_the_most_frequent_on_top():
    found = [(line["kind"], line["count"], line["rest"]) for line in ledger_lines(LEDGER)]
    assert found == [("refused", 28_873, 28_868), ("refused", 1_204, 1_199), ("refused", 3, 0), ("noted", 1, 0)]


def test_the_terminal_summary_shows_the_main_table(tmp_path):
    console = Console(record=True, width=120, file=open("/dev/null", "w"))  # noqa: SIM115
    print_summary(write_sweep(tmp_path), console)
    text = console.export_text()
    assert "ICL, retrieved" in text and "34.6" in text and "32.1–37.1" in text
    assert "ranked n = 240, written n = 120" in text


def test_a_missing_file_is_named_with_what_to_do(tmp_path):
    write_sweep(tmp_path)
    (tmp_path / "ledger.json").unlink()
    with pytest.raises(PrefselError, match=r"ledger\.json: no such file; run the sweep"):
        read_sweep(tmp_path)


@pytest.mark.parametrize("name", ["results.parquet", "summary.json"])
def test_an_unreadable_file_is_named(tmp_path, name):
    write_sweep(tmp_path)
    (tmp_path / name).write_text("{")
    with pytest.raises(PrefselError, match=f"{name}: unreadable"):
        read_sweep(tmp_path)


def test_small_numbers_read_well():
    assert number(-0.04) == "0.0"
    assert number(-1.26) == "−1.3"
    assert interval(29.04, 35.15) == "29.0–35.1"
    assert interval(-0.2, 0.31, 2) == "−0.20 to 0.31"
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 111)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "111th"]
    )
    assert seed_spread("sd 0.42 over 3 seeds; why not") == (0.42, 3)
    assert seed_spread("1 seed") is None
    assert remark("sd 0.42 over 3 seeds; why not") == "why not"
    assert remark("1 seed") is None
