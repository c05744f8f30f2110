"""Making prompts fit the narrowest window of the models in use."""

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from prefsel_ray.lm.chat import Message, fit_prompt

Fit = Callable[[Sequence[Message], Sequence[str]], tuple[tuple[Message, ...] | None, bool]]


def prompt_fitter(tokenizers: Sequence[tuple[PreTrainedTokenizerBase, int]], *, reserve: int) -> Fit:
    """A function (messages, responses) -> (messages that fit every model, whether anything was dropped).

    `tokenizers`: (tokenizer, window in tokens) of each model. Room is kept for the longest response and for `reserve`
    new tokens, whichever is more. None in place of messages where not even one character of the prompt fits.
    """

    def fit(messages: Sequence[Message], responses: Sequence[str]) -> tuple[tuple[Message, ...] | None, bool]:
        was_cut = False
        for tokenizer, window in tokenizers:
            for room, texts in ((window, responses), (window - reserve, ())):
                fitting, cut = fit_prompt(tokenizer, messages, texts, room)
                if fitting is None:
                    return None, False
                messages, was_cut = fitting, was_cut or cut
        return tuple(messages), was_cut

    return fit
