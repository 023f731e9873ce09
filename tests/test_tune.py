"""Fair rates: which runs a tuning study asks for, in which order, and which rate it takes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY

from anatomy.compose import Asked, read_command
from anatomy.errors import UserError
from anatomy.runs import read_manifest
from anatomy.sweep import Planned, write_manifest
from anatomy.tune import Stage, stages

RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
COMMON = 4e-3


def asked(tmp_path: Path, *words: str) -> Asked:
    given = ["study=swaps_tuned", *TINY, f"output_dir='{tmp_path}'", "base=vanilla", "swap=none,norm", *words]
    return read_command(given, multirun=False)


def finish(planned: Planned, loss: float | None, *, best: float = 9.0, epochs: float = 0.5) -> None:
    """Leave a record as a run that ended with this validation loss; None: diverged."""
    assert planned.job is not None
    record: dict[str, Any] = {"schema": 1, "status": "diverged" if loss is None else "done", "wall_s": 1.0}
    record |= {"val_loss_nats": loss, "best_val_loss_nats": best, "data": {"epochs": epochs}}
    planned.job.folder.mkdir(parents=True)
    (planned.job.folder / "result.json").write_text(json.dumps(record))


def asks(stage: Stage) -> list[tuple[str, int, float]]:
    return [(p.request.swap_words, p.config.seed, p.config.train.lr) for p in stage.plan.runs]


def test_first_every_arm_trains_at_every_rate_on_the_tuning_seeds(tmp_path: Path) -> None:
    stage = next(stages(asked(tmp_path)))
    assert asks(stage) == [(swap, seed, lr) for swap in ("none", "norm") for lr in RATES for seed in (100, 101)]
    assert stage.title == "swaps_tuned, rates"
    assert list(stage.notes) == ["then at most 12 runs, at the common rate and at each arm's best"]
    for planned in stage.plan.runs:
        assert planned.request.overrides[-2:] == (f"seed={planned.config.seed}", f"train.lr={planned.config.train.lr}")
        launched = set(planned.request.launch_overrides)
        assert {f"++seed={planned.config.seed}", f"++train.lr={planned.config.train.lr}"} < launched
        assert len([word for word in launched if "seed=" in word]) == 1


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ({rate: (2.0, 2.0) for rate in RATES} | {8e-3: (1.9, 1.9)}, 8e-3),
        ({rate: (2.0, 2.0) for rate in RATES} | {8e-3: (1.0, None)}, 1e-3),  # one of two diverged; ties: the smaller
        ({rate: (2.0, 2.0) for rate in RATES} | {2e-3: (1.0, 2.8), 1.6e-2: (1.8, 1.9)}, 1.6e-2),  # by the mean
        ({rate: (None, None) for rate in RATES}, 1e-3),
    ],
)
def test_then_the_studys_seeds_train_at_the_common_rate_and_at_each_arms_best(
    tmp_path: Path, losses: dict[float, Sequence[float | None]], best: float
) -> None:
    both = stages(asked(tmp_path))
    for planned in next(both).plan.runs:
        of_arm = losses if planned.request.swap == ("norm",) else {COMMON: (1.0, 1.0)}
        finish(planned, of_arm.get(planned.config.train.lr, (2.0, 2.0))[planned.config.seed - 100])
    test = next(both)
    common = [(swap, seed, COMMON) for swap in ("none", "norm") for seed in (0, 1, 2)]
    assert asks(test) == common + [("norm", seed, best) for seed in (0, 1, 2)]  # the base's best is the common one
    assert test.title == "swaps_tuned, test" and not test.notes
    assert not list(both)


def test_where_the_text_is_seen_more_than_once_the_best_step_counts(tmp_path: Path) -> None:
    both = stages(asked(tmp_path, "swap=norm"))
    for planned in next(both).plan.runs:
        lr = planned.config.train.lr
        finish(planned, 1 + lr, best=2 - lr, epochs=1.5)
    assert {lr for _, _, lr in asks(next(both))} == {COMMON, max(RATES)}


def test_an_arm_whose_tuning_is_not_done_has_no_best_rate_and_says_so(tmp_path: Path) -> None:
    both = stages(asked(tmp_path))
    for planned in next(both).plan.runs[:-1]:
        finish(planned, planned.config.train.lr)
    test = next(both)
    assert {(swap, lr) for swap, _, lr in asks(test)} == {("none", 1e-3), ("none", COMMON), ("norm", COMMON)}
    (note,) = test.notes
    assert note.startswith("no best rate, for its tuning is not done: ") and "swap=norm" in note


def test_all_runs_are_entries_of_one_manifest_that_promises_the_study_alone(tmp_path: Path) -> None:
    both = stages(asked(tmp_path, "seed=0"))
    first = next(both)
    write_manifest(first.plan)
    for planned in first.plan.runs:
        finish(planned, 1 + planned.config.train.lr)
    second = next(both)
    write_manifest(second.plan)
    manifest = read_manifest(first.plan.layout.study("swaps_tuned"))
    assert manifest is not None and len(manifest["entries"]) == 20 + 4 and manifest["amendments"] == []
    spec = manifest["spec"]
    assert spec["tune"] == {"lr": list(RATES), "seeds": [100, 101]} and spec["seeds"] == [0, 1, 2]
    assert [arm.split()[:2] for arm in spec["arms"]][1] == ["base=vanilla", "swap=norm"] and len(spec["arms"]) == 2
    assert not any("train.lr" in arm for arm in spec["arms"])


def test_a_study_that_does_not_tune_has_one_stage() -> None:
    (stage,) = stages(read_command(["study=swaps", "seed=0", "base=vanilla"], multirun=False))
    assert stage.title == "swaps" and not stage.notes and len(stage.plan.runs) == 6


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("seed=101,5", "study.tune.seeds: 101 would tune and test; type other seeds"),
        ("study.tune.lr=[1e-3,2e-3]", "study.tune.lr.*at least 5"),
        ("study.tune.seeds=[100]", "study.tune.seeds"),
    ],
)
def test_a_tuning_that_is_not_fair_is_refused(tmp_path: Path, word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        next(stages(asked(tmp_path, word)))
