"""Three written examples, every method's text beside the user's own."""

from typing import Any

from prefsel_ray.report.read import Row, SweepData, number, short_policy
from prefsel_ray.report.tables import configurations, label_of

SHOWN = 3
PROMPT_CHARACTERS = 900


def examples(data: SweepData, shown: int = SHOWN) -> list[dict[str, Any]]:
    """The first `shown` examples by id (a hash, so not picked by quality), of different users where there are enough.

    Each holds prompt, reference and one line a policy and configuration: the text of the lowest seed, at the main w.
    Examples written by the most configurations come first, so that a failed cell does not leave the page empty.
    """
    written: dict[str, dict[tuple[str | None, str, str | None, float | None], Row]] = {}
    for row in sorted(data.generations, key=lambda r: (r["example_id"], r["seed"] if r["seed"] is not None else -1)):
        key = (row["policy"], row["method"], row["variant"], row["w"])
        written.setdefault(row["example_id"], {}).setdefault(key, row)
    most_first = sorted(written, key=lambda example: (-len(written[example]), example))
    return [_card(data, written[example]) for example in _different_users(most_first, written, shown)]


def _different_users(ids: list[str], written: dict[str, dict[Any, Row]], shown: int) -> list[str]:
    chosen: list[str] = []
    users: set[str] = set()
    for example in ids:
        user = next(iter(written[example].values()))["user_id"]
        if user not in users and len(chosen) < shown:
            chosen.append(example)
            users.add(user)
    return (chosen + [example for example in ids if example not in chosen])[:shown]


def _card(data: SweepData, rows: dict[tuple[str | None, str, str | None, float | None], Row]) -> dict[str, Any]:
    first = next(iter(rows.values()))
    prompt = first["prompt_text"] or ""
    groups = []
    for policy in data.policies or [None]:
        lines = []
        for method, variant, w in configurations(data):
            row = rows.get((policy, method, variant, w)) or rows.get((policy, method, None, w))
            label, setting = label_of(method, variant, w)
            seed = f"seed {row['seed']}" if row and row["seed"] is not None else ""
            lines.append(
                {
                    "label": label,
                    "setting": ", ".join(part for part in (setting, seed) if part),
                    "text": row["text"] if row else None,
                    "cut": bool(row) and not row["finished"],
                    "rouge1": number(row["rouge1"]) if row and row["rouge1"] is not None else "–",
                }
            )
        groups.append({"policy": short_policy(policy) if policy else "", "lines": lines})
    return {
        "example": first["example_id"],
        "user": first["user_id"],
        "split": "unseen user" if first["split"] == "unseen_test" else "seen user",
        "prompt": prompt[:PROMPT_CHARACTERS],
        "prompt_rest": max(0, len(prompt) - PROMPT_CHARACTERS),
        "reference": first["reference"],
        "groups": groups,
    }
