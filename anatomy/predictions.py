"""Predictions: what somebody said of an arm before it ran, kept beside it in its study's manifest.

`predict.pos=-0.2` says what swapping the positions alone does to the base's test loss. It is for the arms whose parts
differ from their base in that axis and no other, and for the base that a command names first.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anatomy.axes import BASES, differences
from anatomy.config import Config
from anatomy.errors import UserError
from anatomy.runs import FINISHED, Layout, arm_words, read_manifest, read_record

Prediction = Mapping[str, float]
"""The axis, and nats."""


def prediction_for(config: Config, base: str) -> Prediction | None:
    """What a command whose first base is `base` predicts for a run; None where it says nothing of it."""
    changed = differences(config.parts, BASES[config.base])
    predicted = config.predict.by_axis()
    if config.base != base or len(changed) != 1 or changed[0] not in predicted:
        return None
    return {changed[0]: predicted[changed[0]]}


def refuse_idle(config: Config, made: Iterable[Prediction | None]) -> None:
    """Raise UserError for a prediction that is for none of a command's arms; `config` is of any of its runs."""
    used = {axis for prediction in made for axis in prediction or ()}
    for axis, nats in config.predict.by_axis().items():
        if axis not in used:
            raise UserError(
                f"predict.{axis}={nats:g}: for no arm; none of this command's differs from base {config.base} in "
                f"{axis} alone"
            )


def refuse_afterthoughts(layout: Layout, study: str, predicted: Sequence[tuple[str, Prediction, str | None]]) -> None:
    """Raise UserError for a prediction of an arm that has a finished run, unless it was made before that run.

    `predicted` holds an arm's words, what is predicted for it, and the name of a run of it.
    """
    try:
        manifest = read_manifest(layout.study(study)) if predicted else None
    except ValueError as error:
        raise UserError(str(error)) from None
    known: dict[str, list[Mapping[str, Any]]] = {}
    for entry in manifest["entries"] if manifest else ():
        known.setdefault(arm_words(entry["base"], entry["swap"], entry["overrides"]), []).append(entry)
    for words, prediction, run in predicted:
        entries = known.get(words, [])
        if any(entry["prediction"] == prediction for entry in entries):
            continue
        for name in filter(None, [run, *(entry["run"] for entry in entries)]):
            if _is_finished(layout.run(name)):
                ((axis, nats),) = prediction.items()
                raise UserError(
                    f"predict.{axis}={nats:g}: {words} has a finished run already ({name}), so this would predict "
                    f"nothing; leave it out, or start anew with output_dir=NEW"
                )


def _is_finished(folder: Path) -> bool:
    try:
        record = read_record(folder)
    except ValueError:
        return False
    return record is not None and record["status"] in FINISHED
