"""Preference pairs: sources, the validator and its ledger, splits by user, hard negatives."""
