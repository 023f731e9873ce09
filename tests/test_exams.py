"""Exam cards, from run folders and manifests as they lie under outputs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import fake_record, put_arms

from anatomy.about import claims_on
from anatomy.report.data import NOT_SEEN, SUPPORTED, Card
from anatomy.report.table import build_report
from anatomy.runs import DIAGNOSTICS_FILE, POSITIONS_FILE

LENGTHS = {"32": 1.25, "64": 1.0, "128": 3.0, "256": 3.5}


def put_exam(
    outputs: Path, axis: str, parts: Mapping[str, float], *, seeds: int = 3, name: str = "exam", **spec: Any
) -> None:
    """Runs of parts in both bases, seed s losing .001 s more, with the claims that the axis's exam registers."""
    arms = [
        (
            f"base={base} {axis}={part}",
            fake_record(f"{base}-{part}-{seed}", loss + 0.001 * seed, base=base, seed=seed, parts={axis: part}),
        )
        for base in ("vanilla", "llama")
        for part, loss in parts.items()
        for seed in range(seeds)
    ]
    put_arms(outputs, name, arms, exam=axis, claims=claims_on(axis, 0.02), margin=0.02, **spec)


def card_of(outputs: Path) -> Card:
    (card,) = build_report(outputs).exams
    return card


def test_a_card_holds_every_registered_claim_with_its_rule_and_source(tmp_path: Path) -> None:
    put_exam(tmp_path, "norm", {"layer": 1.5, "rms": 1.5})
    card = card_of(tmp_path)
    assert [(one.part, one.claim, one.text, one.source) for one in card.claims] == [
        (one["part"], one["claim"], one["text"], one["source"]) for one in claims_on("norm", 0.02)
    ]
    good, cheap = card.claims
    assert good.verdict == SUPPORTED and "0.02 nats" in good.rule
    assert cheap.verdict is None and cheap.note
    assert card.scenario == (
        "kjv, 48 wide, 3 layers, context 64, batch 16, rate 0.004, warm-up 100, 1,000 steps, 12 runs, 3 seeds"
    )


def test_losses_are_told_by_base_and_part(tmp_path: Path) -> None:
    put_exam(tmp_path, "norm", {"layer": 1.5, "rms": 1.4})
    (loss,) = [one for one in card_of(tmp_path).losses if (one.base, one.row) == ("llama", "norm=rms")]
    assert (loss.mean, loss.low, loss.high, loss.num_seeds) == (pytest.approx(1.401), 1.4, 1.402, 3)


def test_a_study_that_is_no_exam_has_no_card(tmp_path: Path) -> None:
    put_arms(tmp_path, "plain", [("base=vanilla", fake_record("r"))])
    assert build_report(tmp_path).exams == []


@pytest.mark.parametrize("exam", ["soul", 7, ["norm"], {"axis": "norm"}])
def test_an_exam_of_no_axis_is_none(tmp_path: Path, exam: object) -> None:
    put_arms(tmp_path, "odd", [("base=vanilla", fake_record("r"))], exam=exam)
    assert build_report(tmp_path).exams == []


@pytest.mark.parametrize(
    "claims",
    [None, 3, ["as_good_as_layer"], [{"claim": "as_good_as_layer"}], [{**claims_on("norm", 0.02)[0], "text": 5}]],
)
def test_damaged_claims_are_left_out(tmp_path: Path, claims: object) -> None:
    put_exam(tmp_path, "norm", {"layer": 1.5})
    manifest = tmp_path / "studies" / "exam" / "study.json"
    content = json.loads(manifest.read_text())
    content["spec"]["claims"] = claims
    manifest.write_text(json.dumps(content))
    assert card_of(tmp_path).claims == []


def test_a_claim_without_a_rule_is_told_so(tmp_path: Path) -> None:
    put_exam(tmp_path, "norm", {"layer": 1.5})
    manifest = tmp_path / "studies" / "exam" / "study.json"
    manifest.write_text(manifest.read_text().replace("as_good_as_layer", "makes_tea"))
    (unknown,) = [one for one in card_of(tmp_path).claims if one.claim == "makes_tea"]
    assert unknown.verdict is None and unknown.note == "there is no rule for this claim"


def test_what_was_added_to_the_plan_decides_nothing(tmp_path: Path) -> None:
    arms = ["base=vanilla norm=layer", "base=vanilla norm=rms", "base=llama norm=layer", "base=llama norm=rms"]
    put_exam(tmp_path, "norm", {"layer": 1.5, "rms": 1.5}, seeds=4, arms=arms)
    manifest = tmp_path / "studies" / "exam" / "study.json"
    content = json.loads(manifest.read_text())
    content["spec"]["seeds"] = [0]
    manifest.write_text(json.dumps(content))
    card = card_of(tmp_path)
    assert card.claims[0].verdict == NOT_SEEN and card.claims[0].note == "one seed gives no interval"
    assert {one.num_seeds for one in card.losses} == {1}


def test_losses_by_length_and_position_come_from_the_runs_folders(tmp_path: Path) -> None:
    put_exam(tmp_path, "pos", {"learned": 1.5, "rope": 1.0}, seeds=2)
    for folder in (tmp_path / "runs").iterdir():
        record = json.loads((folder / "result.json").read_text())
        is_learned, seed = "learned" in folder.name, record["seed"]
        at = {length: None if is_learned and int(length) > 64 else nats + seed for length, nats in LENGTHS.items()}
        (folder / "result.json").write_text(json.dumps({**record, "test_loss_nats_at_length": at}))
        np.save(folder / POSITIONS_FILE, np.arange(64 if is_learned else 256, dtype=np.float32) + seed)
    card = card_of(tmp_path)
    by_length = {(one.base, one.row): one for one in card.by_length}
    learned, rope = by_length["llama", "pos=learned"], by_length["vanilla", "pos=rope"]
    assert rope.x == [32, 64, 128, 256] and rope.mean == [1.75, 1.5, 3.5, 4.0] and rope.high == [2.25, 2.0, 4.0, 4.5]
    assert learned.mean == [1.75, 1.5, None, None] and card.trained_at == 64
    by_position = {(one.base, one.row): one for one in card.by_position}
    assert by_position["vanilla", "pos=rope"].x == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert by_position["vanilla", "pos=learned"].x[-1] == 64
    # positions 5 to 8 of both seeds: 4 to 7 and 5 to 8
    assert by_position["vanilla", "pos=rope"].mean[3] == pytest.approx(6.0)
    assert {one.claim: one.verdict for one in card.claims}["ends_at_its_table"] == SUPPORTED


def test_no_claim_is_judged_before_all_planned_runs_have_ended(tmp_path: Path) -> None:
    arms = [f"base={base} norm={part}" for base in ("vanilla", "llama") for part in ("layer", "rms")]
    put_exam(tmp_path, "norm", {"layer": 1.5, "rms": 1.5}, arms=arms, seeds_of_arms=[[0, 1, 2]] * 3 + [[0, 1, 2, 3]])
    manifest = tmp_path / "studies" / "exam" / "study.json"
    content = json.loads(manifest.read_text())
    content["spec"]["seeds"] = [0, 1, 2, 3]
    manifest.write_text(json.dumps(content))
    claim = card_of(tmp_path).claims[0]
    assert claim.verdict is None and claim.note == "not judged yet: 1 of the planned runs have not ended"
    assert claim.measured[0].value == 0
    content["spec"]["seeds_of_arms"] = [[0, 1, 2]] * 4
    manifest.write_text(json.dumps(content))
    assert card_of(tmp_path).claims[0].verdict == SUPPORTED


def test_runs_that_the_tables_set_aside_are_no_part_of_a_card(tmp_path: Path) -> None:
    put_exam(tmp_path, "norm", {"layer": 1.5, "rms": 1.5})
    for folder in (tmp_path / "runs").glob("*-rms-*"):
        record = json.loads((folder / "result.json").read_text())
        record["data"]["batch_order_sha256"] = "another order"
        (folder / "result.json").write_text(json.dumps(record))
    claim = card_of(tmp_path).claims[0]
    assert claim.verdict is None and not claim.measured


def test_a_rule_that_changed_since_the_start_is_told(tmp_path: Path) -> None:
    put_exam(tmp_path, "norm", {"layer": 1.5, "rms": 1.5})
    manifest = tmp_path / "studies" / "exam" / "study.json"
    manifest.write_text(manifest.read_text().replace("ends below 0.02 nats", "ends below 9 nats"))
    claim = card_of(tmp_path).claims[0]
    assert claim.note == "the study was started under another rule" and "0.02" in claim.rule


def test_without_the_texts_tables_no_plateau_is_called(tmp_path: Path) -> None:
    put_exam(tmp_path, "placement", {"post": 3.0, "pre": 1.5}, factors=["train.warmup_steps"])
    assert {outcome for cell in card_of(tmp_path).map for outcome in cell.outcomes} == {"unknown"}


@pytest.mark.parametrize("losses", [{"64": "x"}, {"many": 1.0}, [1.0], "none"])
def test_damaged_lengths_and_positions_are_as_if_not_there(tmp_path: Path, losses: object) -> None:
    put_exam(tmp_path, "pos", {"rope": 1.0})
    for folder in (tmp_path / "runs").iterdir():
        record = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps({**record, "test_loss_nats_at_length": losses}))
        (folder / POSITIONS_FILE).write_bytes(b"\x93NUMPY")
        if folder.name.endswith("1"):
            np.save(folder / POSITIONS_FILE, np.array(["a"]))
        if folder.name.endswith("2"):
            np.save(folder / POSITIONS_FILE, np.array([1e300, 1.0]))
    card = card_of(tmp_path)
    assert card.by_length == card.by_position == []


def test_a_map_has_the_mean_gradient_norm_of_each_block(tmp_path: Path) -> None:
    put_exam(tmp_path, "placement", {"post": 1.5}, seeds=2, factors=["train.warmup_steps"])
    for folder in (tmp_path / "runs").iterdir():
        size = 1 if folder.name.endswith("0") else 3
        start = {"attn": [3 * size, 0], "ffn": [4 * size, size]}
        (folder / DIAGNOSTICS_FILE).write_text(json.dumps({"schema": 1, "gradients": {"start": start}}))
    assert [cell.gradients for cell in card_of(tmp_path).map] == [[10, 2], [10, 2]]
    for folder in (tmp_path / "runs").iterdir():
        (folder / DIAGNOSTICS_FILE).write_text('{"schema": 1, "gradients": {"start": {"attn": [null], "ffn": [1]}}}')
    assert [cell.gradients for cell in card_of(tmp_path).map] == [[], []]
