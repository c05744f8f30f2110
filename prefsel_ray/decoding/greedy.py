"""Plain greedy text: the decoding loop without a reward."""

from collections.abc import Sequence

from prefsel_ray.decoding.args import decode
from prefsel_ray.decoding.guides import Decoded, HeadGuide
from prefsel_ray.lm.reference import LanguageModel

PLAIN = HeadGuide("policy", None, 0.0)


def generate(
    lm: LanguageModel, prompts: Sequence[Sequence[int]], max_new_tokens: int, *, max_rows: int = 64
) -> list[Decoded]:
    """The likeliest next token at every step, until an end token or max_new_tokens; one text a prompt, in order.

    Equal prompts are decoded once. Raises PrefselError where a prompt leaves no room in the window.
    """
    texts, _ = decode(lm, prompts, [[PLAIN]] * len(prompts), k=1, max_new_tokens=max_new_tokens, max_rows=max_rows)
    return [own[PLAIN.key] for own in texts]
