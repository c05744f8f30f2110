"""Counts what a model was asked to compute, so that costs are reported from counts and not from estimates."""

from dataclasses import dataclass


@dataclass
class ForwardMeter:
    """Tokens sent through one model since the last `reset`.

    tokens: real tokens (prompts, responses, candidates); slots: the same with padding, what the hardware computed;
    calls: forward passes.
    """

    tokens: int = 0
    slots: int = 0
    calls: int = 0

    def add(self, tokens: int, slots: int | None = None) -> None:
        """Record one forward pass over `tokens` real tokens in `slots` places (default: no padding)."""
        self.tokens += int(tokens)
        self.slots += int(tokens if slots is None else slots)
        self.calls += 1

    def reset(self) -> None:
        self.tokens = self.slots = self.calls = 0
