"""From text to reward: the state after a response's end-of-turn token, and what a head says of it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from prefsel_ray.data.schema import Messages, Pair
from prefsel_ray.errors import PrefselError
from prefsel_ray.lm.chat import prompt_ids, response_ids
from prefsel_ray.lm.packed import PromptBranches, packed_forward
from prefsel_ray.lm.reference import LanguageModel
from prefsel_ray.rewards.protocol import HeadReward, PairFeatures


def prompt_branches(lm: LanguageModel, messages: Messages, responses: Sequence[str]) -> PromptBranches:
    """The token ids of a prompt and of its responses, each with its end of turn."""
    return PromptBranches(
        tuple(prompt_ids(lm.tokenizer, messages)),
        tuple(tuple(response_ids(lm.tokenizer, messages, response)) for response in responses),
    )


def final_states(lm: LanguageModel, items: Sequence[tuple[Messages, Sequence[str]]]) -> list[Tensor]:
    """For each (messages, R responses): [R, D] float32 states after each response's end-of-turn token.

    A prompt is encoded once for all its responses. Raises PrefselError where prompt and response exceed the window.
    """
    branches = [prompt_branches(lm, messages, responses) for messages, responses in items]
    outputs = packed_forward(lm, branches, logprobs=False, states=True)
    return [torch.stack([states[-1].float() for states in output.states]) for output in outputs]


def pair_features(lm: LanguageModel, pairs: Sequence[Pair]) -> PairFeatures:
    """The features every head trains on, from a frozen backbone, rows in the order of `pairs`, on the CPU."""
    states = final_states(lm, [(pair.prompt, (pair.chosen, pair.rejected)) for pair in pairs])
    if not states:
        raise PrefselError("pair_features: no pairs; give at least one")
    both = torch.stack(states).cpu()
    return PairFeatures(tuple(p.example_id for p in pairs), tuple(p.user_id for p in pairs), both[:, 0], both[:, 1])


def score(
    reward: HeadReward, lm: LanguageModel, messages: Sequence[Mapping[str, str]], response: str, user_state: Tensor
) -> float:
    """The reward of one response to `messages` for the user with this state.

    Two responses' scores differ by the margin that training used for that pair. Raises PrefselError where the text
    does not fit the window.
    """
    (states,) = final_states(lm, [(tuple(messages), (response,))])
    return float(reward.token_rewards(states[0], user_state))
