"""`toy:LAYERSxWIDTH`: a small random Llama with a byte tokenizer, for tests and dry runs that need no download."""

import re

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from prefsel_ray.errors import PrefselError

TOY_WINDOW = 4096
TOY_FORMAT = 1  # part of a toy's identity: raise it when the weights or the tokenizer of a given reference change
PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eos|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
SPECIAL_TOKENS = (PAD, BOS, EOS, *ROLES)

# One token opens a turn and one closes it, so that toy prompts are hardly longer than their text.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' ~ message['role'] ~ '|>' ~ message['content'] ~ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_REFERENCE = re.compile(r"toy:([1-9]\d*)x([1-9]\d*)(?:@(\d+))?")


def parse_toy(reference: str) -> tuple[int, int, int]:
    """(layers, width, seed) of `toy:LAYERSxWIDTH` or `toy:LAYERSxWIDTH@SEED`; the seed is 0 where not given.

    Raises PrefselError where the reference does not read like that, or the width is no multiple of 16.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise PrefselError(f"model {reference!r}: a toy model is written toy:LAYERSxWIDTH, for example toy:2x64")
    layers, width, seed = int(match[1]), int(match[2]), int(match[3] or 0)
    if width % 16:
        raise PrefselError(f"model {reference!r}: the width of a toy model must be a multiple of 16")
    return layers, width, seed


def toy_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level tokenizer: ids 0..5 are pad, bos, eos and the three roles, then one id per byte; no merges."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *symbols])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        additional_special_tokens=list(ROLES),
        chat_template=CHAT_TEMPLATE,
        model_max_length=TOY_WINDOW,
        clean_up_tokenization_spaces=False,
    )


def toy_config(layers: int, width: int, vocab_size: int) -> LlamaConfig:
    """Llama with grouped-query attention where the width allows two heads or more."""
    heads = max(1, width // 16)
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2 if heads % 2 == 0 else heads,
        max_position_embeddings=TOY_WINDOW,
        # Wider than the usual 0.02: the logits then have a spread near 1 and the states depend on the context.
        initializer_range=width**-0.5,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )


def toy_model(layers: int, width: int, seed: int) -> LlamaForCausalLM:
    """Random weights that depend on (layers, width, seed) alone; the caller's random state is left as it was."""
    config = toy_config(layers, width, vocab_size=len(SPECIAL_TOKENS) + 256)
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
