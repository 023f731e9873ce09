"""A lab bench for Transformer language models: swap one part at a time and get a number that can be trusted."""

__version__ = "0.1.0"
