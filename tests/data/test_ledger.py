"""Protects the ledger: no row may vanish without a reason, and what is stored can be read back."""

import json

import pytest

from prefsel_ray.data.ledger import Ledger


def test_ledger_refuses_to_settle_when_a_row_has_vanished():
    ledger = Ledger()
    ledger.read(3)
    ledger.refuse("null user", 2)
    with pytest.raises(RuntimeError, match="3 rows read, 1 kept, 1 refused"):
        ledger.settle(1)
    ledger.settle(2)
    assert (ledger.rows_read, ledger.rows_kept, ledger.rows_refused) == (3, 2, 1)


def test_stored_ledger_keeps_full_counts_and_the_first_five_labels():
    ledger = Ledger()
    ledger.read(7)
    for row in (2, 4, 6, 8, 10, 12):
        ledger.refuse("equal responses", row)
    ledger.note("prompt truncated from the left", "maint/package-7")
    ledger.settle(1)
    stored = json.loads(json.dumps(ledger.to_dict()))
    assert stored == {
        "rows_read": 7,
        "rows_kept": 1,
        "refused": {"equal responses": {"count": 6, "rows": [2, 4, 6, 8, 10]}},
        "noted": {"prompt truncated from the left": {"count": 1, "rows": ["maint/package-7"]}},
    }
    assert Ledger.from_dict(stored).to_dict() == stored
    assert Ledger.from_dict(stored).lines()[1] == "  refused: equal responses: 6 (rows 2, 4, 6, 8, 10, ...)"


def test_printed_ledger_can_name_every_row_and_joins_runs():
    ledger = Ledger()
    ledger.read(11)
    for row in (1, 3, 4, 5, 6, 9, 10):
        ledger.refuse("null user", row)
    ledger.note("user with one pair", 7)
    ledger.settle(4)
    assert ledger.lines(rows_shown=None) == [
        "11 rows read, 4 kept, 7 refused",
        "  refused: null user: 7 (rows 1, 3-6, 9, 10)",
        "  noted: user with one pair: 1 (row 7)",
    ]
