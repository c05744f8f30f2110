"""Protects in-context examples: only the user's own non-test pairs, a fixed draw, the most similar last, a budget."""

import pytest

from prefsel_ray.data.schema import Pair
from prefsel_ray.decoding.demonstrations import (
    choose_by_similarity,
    choose_random,
    demonstrate,
    with_demonstrations,
)
from prefsel_ray.errors import PrefselError
from prefsel_ray.lm.chat import prompt_ids
from prefsel_ray.lm.toy import toy_tokenizer


def _pair(name, prompt, user="ann", split="train", system=None):
    messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": prompt}]
    return Pair(name, "d", user, tuple(messages), f"good {name}", f"bad {name}", split=split)


QUERY = _pair("q", "a library for reading audio files", split="seen_test")
SUPPORT = [
    _pair("a", "a game about chess and clocks"),
    _pair("b", "a library for reading image files"),
    _pair("c", "tools that write audio files with a library"),
    _pair("d", "network daemon"),
]


def _ids(pairs):
    return [pair.example_id for pair in pairs]


def test_the_most_similar_stands_last():
    # b shares library, reading, files with the query; c audio, files, library (in a longer text); a and d nothing.
    assert _ids(choose_by_similarity(QUERY, SUPPORT, 2)) == ["c", "b"]
    assert _ids(choose_by_similarity(QUERY, SUPPORT[::-1], 2)) == ["c", "b"]


def test_equally_similar_pairs_are_ranked_by_id():
    assert _ids(choose_by_similarity(QUERY, SUPPORT, 4)) == ["d", "a", "c", "b"]
    assert _ids(choose_by_similarity(_pair("q", "the of and", split="support"), SUPPORT, 3)) == ["c", "b", "a"]


def test_prompts_without_a_word_are_no_obstacle():
    empty = [_pair("x", "?"), _pair("y", "!")]
    assert _ids(choose_by_similarity(QUERY, empty, 2)) == ["y", "x"]
    assert choose_by_similarity(QUERY, [], 2) == []


def test_a_random_draw_depends_on_user_example_and_seed_and_on_no_order():
    draws = {
        (user, example, seed): tuple(_ids(choose_random(user, example, seed, SUPPORT, 4)))
        for user in ("ann", "bob")
        for example in ("q", "r", "s")
        for seed in (0, 1, 2)
    }
    assert len(set(draws.values())) > 6  # of 24 orders
    assert _ids(choose_random("ann", "q", 0, SUPPORT[::-1], 4)) == list(draws["ann", "q", 0])
    assert sorted(draws["ann", "q", 0]) == ["a", "b", "c", "d"]


def test_a_smaller_random_draw_is_the_end_of_a_larger_one():
    drawn = _ids(choose_random("ann", "q", 0, SUPPORT, 4))
    for k in (0, 1, 2, 3, 9):
        assert _ids(choose_random("ann", "q", 0, SUPPORT, k)) == drawn[max(0, 4 - k) :]


def test_a_random_draw_is_the_same_in_every_process_and_version():
    assert _ids(choose_random("ann", "q", 0, SUPPORT, 4)) == ["b", "c", "d", "a"]
    assert _ids(choose_random("ann", "q", 1, SUPPORT, 4)) == ["a", "c", "d", "b"]


def test_turns_show_each_pair_as_an_earlier_exchange():
    query = _pair("q", "now this", system="be brief")
    demos = [_pair("a", "first", system="be long"), _pair("b", "second")]
    assert with_demonstrations(query.prompt, demos, style="chosen", layout="turns") == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "good a"},
        {"role": "user", "content": "second"},
        {"role": "assistant", "content": "good b"},
        {"role": "user", "content": "now this"},
    )
    roles = [m["role"] for m in with_demonstrations(query.prompt, demos[:1], style="pairs", layout="turns")]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    shown = with_demonstrations(query.prompt, demos[:1], style="pairs", layout="turns")
    assert [m["content"] for m in shown if m["role"] == "assistant"] == ["bad a", "good a"]


def test_a_block_shows_all_pairs_in_the_first_user_message():
    messages = with_demonstrations(QUERY.prompt, SUPPORT[:2], style="pairs", layout="block")
    assert [m["role"] for m in messages] == ["user"]
    text = messages[0]["content"]
    shown = ["chess", "bad a", "good a", "image files", "bad b", "good b", "a library for reading audio files"]
    places = [text.index(part) for part in shown]
    assert places == sorted(places)
    assert text.endswith("a library for reading audio files")
    chosen_only = with_demonstrations(QUERY.prompt, SUPPORT[:2], style="chosen", layout="block")[0]["content"]
    assert "good a" in chosen_only and "bad a" not in chosen_only


def test_no_demonstrations_leave_the_prompt_as_it_is():
    for layout in ("turns", "block"):
        assert with_demonstrations(QUERY.prompt, [], style="pairs", layout=layout) == QUERY.prompt


def _demonstrate(budget, support=SUPPORT, **changes):
    settings = {"k": 2, "retriever": "bm25", "seed": 0, "style": "chosen", "layout": "turns", **changes}
    return demonstrate(QUERY, support, tokenizer=toy_tokenizer(), budget=budget, **settings)


def test_the_least_similar_are_dropped_first_and_counted():
    tokenizer = toy_tokenizer()
    sizes = [len(prompt_ids(tokenizer, with_demonstrations(QUERY.prompt, d))) for d in ([], SUPPORT[1:2], SUPPORT[1:3])]
    both = _demonstrate(budget=sizes[2])
    assert (both.kept, both.dropped, len(both.prompt_ids)) == (2, 0, sizes[2])
    one = _demonstrate(budget=sizes[2] - 1)
    assert (one.kept, one.dropped, len(one.prompt_ids)) == (1, 1, sizes[1])
    assert [m["content"] for m in one.messages if m["role"] == "assistant"] == ["good b"]
    none = _demonstrate(budget=sizes[0])
    assert (none.kept, none.dropped, none.messages) == (0, 2, QUERY.prompt)
    assert list(none.prompt_ids) == prompt_ids(tokenizer, QUERY.prompt)


def test_a_user_with_few_pairs_is_shown_what_there_is():
    for retriever in ("random", "bm25"):
        assert _demonstrate(10_000, SUPPORT[:1], k=4, retriever=retriever).kept == 1
        assert _demonstrate(10_000, [], k=4, retriever=retriever).kept == 0


@pytest.mark.parametrize("retriever", ["random", "bm25"])
@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (_pair("x", "p", user="bob"), "demonstration x is of user bob, the query of ann"),
        (_pair("x", "p", split="unseen_test"), "demonstration x is a test row"),
        (_pair("q", "p", split="train"), "demonstration q is a test row"),
    ],
)
def test_pairs_of_others_and_test_rows_are_refused(retriever, pair, said):
    with pytest.raises(PrefselError, match=said):
        _demonstrate(10_000, [*SUPPORT, pair], retriever=retriever)


def test_an_unknown_retriever_style_or_layout_is_named():
    with pytest.raises(PrefselError, match="retriever 'bm52' is not known; use one of random, bm25"):
        _demonstrate(10_000, retriever="bm52")
    with pytest.raises(PrefselError, match="style 'both' is not known; use one of chosen, pairs"):
        _demonstrate(10_000, style="both")
    with pytest.raises(PrefselError, match="layout 'rows' is not known; use one of turns, block"):
        _demonstrate(10_000, layout="rows")
