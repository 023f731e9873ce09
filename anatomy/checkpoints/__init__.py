"""Checkpoints of others: what their configs and tensors mean, how they come in, how ours go out."""
