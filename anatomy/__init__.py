"""A lab bench for Transformer language models: swap one part at a time and get a number that can be trusted.

`load` opens a run or an imported model: `model, vocabulary = anatomy.load("outputs/runs/...")`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anatomy.loading import LoadedModel, LoadedRun, load

__version__ = "0.1.0"
__all__ = ["LoadedModel", "LoadedRun", "__version__", "load"]


if not TYPE_CHECKING:  # for a type checker no other names exist

    def __getattr__(name: str) -> object:
        """What comes with PyTorch, which takes a second to import, comes when it is asked for."""
        if name not in ("LoadedModel", "LoadedRun", "load"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from anatomy import loading

        return getattr(loading, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
