"""Protects guided decoding: tree, fused, shared and batched give the tokens of the naive uncached loop."""

from dataclasses import replace

import pytest
import torch

from prefsel_ray.decoding import args as args_module
from prefsel_ray.decoding.args import batches, decode
from prefsel_ray.decoding.greedy import generate
from prefsel_ray.decoding.guides import DecodeReport, HeadGuide
from prefsel_ray.decoding.steps import Lane
from prefsel_ray.errors import PrefselError
from prefsel_ray.rewards.protocol import NonFiniteError
from tests.decoding.naive import linear_reward, naive_args, ragged_prompts, tiny_llama, tiny_qwen2

PROMPTS = ragged_prompts([3, 17, 9, 1, 30])
FREE = HeadGuide("free", None, 0.0)


def _guides():
    """The policy alone, a weight of zero, and heads from gentle to one that overrules the policy."""
    steering = [HeadGuide(f"w={w}", linear_reward(32, seed, 0.3), w) for seed, w in enumerate((0.0, 0.1, 1.0, 3.0))]
    return [FREE, *steering]


def _plain(decoded):
    return decoded.ids, decoded.finished


@pytest.fixture(params=[tiny_llama, tiny_qwen2], ids=["llama", "qwen2"])
def make(request):
    return request.param


def test_shared_and_fused_decoding_equals_the_naive_loop_token_for_token(make):
    lm = make()
    texts, report = decode(lm, PROMPTS, [_guides()] * 5, k=5, max_new_tokens=12)
    for prompt, own in zip(PROMPTS, texts, strict=True):
        for guide in _guides():
            assert _plain(own[guide.key]) == naive_args(lm, prompt, guide, k=5, max_new_tokens=12)
    assert 5 * 12 < report.prefixes < report.prefixes_asked == 5 * 5 * 12  # some guides parted, and some did not


def test_a_separate_backbone_gives_the_tokens_of_the_naive_loop(make):
    policy, backbone = make(seed=0), make(seed=5, reference="other")
    texts, report = decode(policy, PROMPTS, [_guides()] * 5, k=5, max_new_tokens=10, backbone=backbone)
    for prompt, own in zip(PROMPTS, texts, strict=True):
        for guide in _guides():
            wanted = naive_args(policy, prompt, guide, k=5, max_new_tokens=10, backbone=backbone)
            assert _plain(own[guide.key]) == wanted
    assert report.policy_tokens == policy.meter.tokens
    assert report.backbone_tokens == backbone.meter.tokens > report.policy_tokens


def test_a_backbone_that_is_a_copy_of_the_policy_writes_what_the_fused_pass_writes(make):
    guides = [_guides()] * 5
    fused, _ = decode(make(), PROMPTS, guides, k=5, max_new_tokens=10)
    apart, _ = decode(make(), PROMPTS, guides, k=5, max_new_tokens=10, backbone=make(reference="copy"))
    assert fused == apart


def test_an_end_token_stops_its_own_guide_and_the_others_go_on():
    lm = tiny_llama()
    unstopped, _ = decode(lm, PROMPTS, [_guides()] * 5, k=5, max_new_tokens=12)
    # Tokens that some texts reach early and others late, as ends: rows leave the batch at many different steps.
    ends = (unstopped[0]["w=1.0"].ids[2], unstopped[1]["free"].ids[5], unstopped[2]["w=3.0"].ids[8])
    stopping = replace(lm, eos_ids=ends)
    texts, _ = decode(stopping, PROMPTS, [_guides()] * 5, k=5, max_new_tokens=12)
    lengths = set()
    for prompt, own in zip(PROMPTS, texts, strict=True):
        for guide in _guides():
            assert _plain(own[guide.key]) == naive_args(stopping, prompt, guide, k=5, max_new_tokens=12)
            lengths.add(len(own[guide.key].ids))
    assert {own.finished for row in texts for own in row.values()} == {True, False}
    assert len(lengths) >= 4


def test_an_end_token_as_the_first_and_as_the_last_allowed_token_counts_as_finished():
    lm = tiny_llama()
    ids = generate(lm, PROMPTS[:1], 4)[0].ids
    assert len(set(ids)) == 4
    for place, limit, finished in [(0, 4, True), (3, 4, True), (3, 3, False)]:
        text = generate(replace(lm, eos_ids=(ids[place],)), PROMPTS[:1], limit)[0]
        assert (text.ids, text.finished) == (ids[:place], finished)


def test_weight_zero_equals_plain_greedy(make):
    lm = make()
    zero = HeadGuide("zero", linear_reward(32, 0, 100.0), 0.0)
    guided, _ = decode(lm, PROMPTS, [[zero]] * 5, k=5, max_new_tokens=12)
    assert [own["zero"].ids for own in guided] == [text.ids for text in generate(lm, PROMPTS, 12)]


def test_k_of_the_whole_vocabulary_equals_brute_force(make):
    lm = make()
    guide = HeadGuide("all", linear_reward(32, 3, 1.0), 2.0)
    texts, _ = decode(lm, PROMPTS[:2], [[guide]] * 2, k=300, max_new_tokens=4)
    for prompt, own in zip(PROMPTS, texts, strict=False):
        assert _plain(own["all"]) == naive_args(lm, prompt, guide, k=262, max_new_tokens=4)


@pytest.mark.parametrize("max_rows", [1, 4, 7, 64])
def test_the_batch_does_not_matter(max_rows, monkeypatch):
    lm, guides = tiny_llama(), [_guides(), [FREE], _guides()[3:], [], _guides()[:2]]
    expected, _ = decode(lm, PROMPTS, guides, k=5, max_new_tokens=8)
    if max_rows == 7:
        monkeypatch.setattr(args_module, "MAX_CACHE_SLOTS", 60)
    texts, _ = decode(lm, PROMPTS[::-1], guides[::-1], k=5, max_new_tokens=8, max_rows=max_rows)
    assert texts[::-1] == expected
    assert texts[1] == {}


def test_equal_prompts_of_different_examples_are_read_once():
    lm = tiny_llama()
    mine, yours = HeadGuide("head", linear_reward(32, 1), 1.0), HeadGuide("head", linear_reward(32, 2), 1.0)
    texts, report = decode(lm, [PROMPTS[1]] * 3, [[mine], [yours], [mine]], k=4, max_new_tokens=6)
    assert (report.prompts, report.prompts_asked) == (1, 3)
    for guide, own in zip([mine, yours, mine], texts, strict=True):
        assert _plain(own["head"]) == naive_args(lm, PROMPTS[1], guide, k=4, max_new_tokens=6)


def test_guides_that_agree_cost_one_row():
    lm = tiny_llama(eos_ids=(-1,))
    guide = HeadGuide("a", linear_reward(32, 0, 0.3), 1.0)
    _, alone = decode(lm, PROMPTS, [[guide]] * 5, k=5, max_new_tokens=6)
    _, both = decode(lm, PROMPTS, [[guide, replace(guide, key="b")]] * 5, k=5, max_new_tokens=6)
    # 60 prompt tokens, then 5 rows of 5 leaves in each of 6 steps.
    assert alone == DecodeReport(5, 5, prefixes=30, prefixes_asked=30, policy_tokens=210)
    assert both == DecodeReport(5, 10, prefixes=30, prefixes_asked=60, policy_tokens=210)


def test_rows_that_nothing_steers_cost_one_token_a_step_and_none_for_the_last():
    _, report = decode(tiny_llama(eos_ids=(-1,)), PROMPTS, [[FREE]] * 5, k=10, max_new_tokens=6)
    assert report.policy_tokens == 60 + 5 * 5


def test_guides_of_one_reward_object_share_its_evaluation():
    calls, head = [], linear_reward(32, 0, 0.3)

    def reward(hidden):
        calls.append(tuple(hidden.shape))
        return head(hidden)

    guides = [HeadGuide("a", reward, 0.01), HeadGuide("b", reward, 3.0)]
    decode(tiny_llama(), PROMPTS, [guides] * 5, k=4, max_new_tokens=3)
    assert len(calls) == 3
    assert calls[0] == (5, 4, 32)


def test_batches_count_rows_as_if_no_guide_agreed_and_put_steering_rows_first():
    def lanes(*guides):
        return [Lane(guide) for guide in guides]

    steering = _guides()[2]
    rows = [((1,) * 4, lanes(FREE, FREE)), ((1,) * 2, lanes(FREE, steering, steering)), ((1,), lanes(FREE))]
    assert [[len(p) for p, _ in group] for group in batches(rows, spare=5, max_rows=5)] == [[2, 1, 4]]
    assert [[len(p) for p, _ in group] for group in batches(rows, spare=5, max_rows=4)] == [[2, 1], [4]]
    assert [[len(p) for p, _ in group] for group in batches(rows, spare=5, max_rows=1)] == [[1], [2], [4]]


def test_a_reward_that_is_not_finite_is_named():
    broken = HeadGuide("lore/seed 3", lambda hidden: hidden[..., 0] * float("nan"), 1.0)
    with pytest.raises(NonFiniteError, match="guide lore/seed 3: its reward is NaN or infinite at token 1"):
        decode(tiny_llama(), PROMPTS[:1], [[broken]], k=3, max_new_tokens=2)


def test_wrong_inputs_are_one_line_that_says_what_to_do():
    lm = tiny_llama()
    with pytest.raises(PrefselError, match="prompt 2 has 4090 tokens; with max_new_tokens 10 the window of 4096"):
        decode(lm, [[5], [5] * 4090], [[FREE]] * 2, max_new_tokens=10)
    with pytest.raises(PrefselError, match="prompt 1 has 0 tokens"):
        decode(lm, [[]], [[FREE]], max_new_tokens=10)
    with pytest.raises(PrefselError, match="guide key 'free' stands twice at prompt 1"):
        decode(lm, [[5]], [[FREE, FREE]], max_new_tokens=10)
    with pytest.raises(PrefselError, match="1 prompts but 2 lists of guides"):
        decode(lm, [[5]], [[FREE], [FREE]], max_new_tokens=10)
    with pytest.raises(PrefselError, match="k is 0"):
        decode(lm, [[5]], [[FREE]], k=0, max_new_tokens=10)


def test_a_backbone_with_another_vocabulary_is_refused():
    backbone = tiny_llama(reference="other")
    backbone.tokenizer.add_tokens(["Préférence"])
    with pytest.raises(PrefselError, match="'tiny-llama' and reward backbone 'other' have different vocabularies"):
        decode(tiny_llama(), [[5]], [[FREE]], max_new_tokens=2, backbone=backbone)


def test_nothing_asked_gives_nothing():
    assert decode(tiny_llama(), [], [], max_new_tokens=3) == ([], DecodeReport())
    texts, report = decode(tiny_llama(), PROMPTS[:1], [[FREE]], max_new_tokens=0)
    assert (texts[0]["free"].ids, texts[0]["free"].finished, report.policy_tokens) == ((), False, 0)


def test_ids_that_an_output_head_has_beyond_the_tokenizer_are_never_written():
    plain, padded = tiny_llama(), tiny_llama()
    padded.model.resize_token_embeddings(270, mean_resizing=False)
    padded.model.lm_head.weight.data[262:] = 5 * plain.model.lm_head.weight.data[100]
    best = [int(padded.model(torch.tensor([prompt])).logits[0, -1].argmax()) for prompt in PROMPTS]
    assert max(best) >= 262  # they would win
    assert [text.ids for text in generate(padded, PROMPTS, 12)] == [text.ids for text in generate(plain, PROMPTS, 12)]
