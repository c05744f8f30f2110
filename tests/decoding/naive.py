"""Independent references: no cache, no batch, no sharing; one full forward pass for every candidate."""

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from prefsel_ray.lm.meter import ForwardMeter
from prefsel_ray.lm.reference import LanguageModel
from prefsel_ray.lm.toy import toy_config, toy_tokenizer


def tiny_llama(seed=0, reference="tiny-llama", eos_ids=(2,)):
    """Random two-layer Llama with grouped-query attention, 262 tokens."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(seed)
    return _frozen(LlamaForCausalLM(toy_config(2, 32, 262)), reference, eos_ids)


def tiny_qwen2(seed=0, reference="tiny-qwen2", eos_ids=(2,)):
    """Random two-layer Qwen2 (attention biases), 262 tokens."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=262,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return _frozen(Qwen2ForCausalLM(config), reference, eos_ids)


def _frozen(model, reference, eos_ids):
    model = model.eval().requires_grad_(False)
    model.set_attn_implementation("sdpa")
    return LanguageModel(reference, model, toy_tokenizer(), 4096, torch.device("cpu"), tuple(eos_ids), ForwardMeter())


def ragged_prompts(lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(6, 262, (length,), generator=generator).tolist() for length in lengths]


def linear_reward(width, seed, scale=1.0):
    direction = torch.randn(width, generator=torch.Generator().manual_seed(seed)) * scale
    return lambda hidden: hidden.float() @ direction


@torch.no_grad()
def naive_logprobs(lm, ids):
    """[V] log-probs of the token after `ids`, from transformers' own uncached forward."""
    return torch.log_softmax(lm.model(torch.tensor([ids]), use_cache=False).logits[0, -1].float(), dim=-1)


@torch.no_grad()
def naive_state(lm, ids):
    return lm.model.base_model(torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1].float()


def naive_args(policy, prompt, guide, k, max_new_tokens, backbone=None):
    """(ids, finished) by scoring every candidate's whole prefix by itself."""
    backbone = backbone or policy
    ids = []
    for _ in range(max_new_tokens):
        prefix = list(prompt) + ids
        logprobs = naive_logprobs(policy, prefix)
        best, best_score = None, -float("inf")
        for token in torch.argsort(logprobs, descending=True)[:k].tolist():
            score = float(logprobs[token])
            if guide.reward is not None:
                score += guide.weight * float(guide.reward(naive_state(backbone, prefix + [token])))
            if score > best_score:
                best, best_score = token, score
        if best in policy.eos_ids:
            return tuple(ids), True
        ids.append(best)
    return tuple(ids), False
