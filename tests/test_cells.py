"""Studies with factors: rows are compared within a cell, and shown as one table where there are many."""

from pathlib import Path

import pytest
from fake_runs import fake_record, put_arms, put_rungs

from anatomy.report.cells import shown_tables
from anatomy.report.table import build_report

FACTORS = ["model.n_layer", "init"]


def crossed(outputs: Path, depths: tuple[int, ...] = (3, 16), inits: tuple[str, ...] = ("normal", "torch")) -> None:
    """Pre-norm is .1 better than post-norm, in every cell; a layer costs .01, and init=torch 1."""
    arms = []
    for depth in depths:
        for init in inits:
            for placement in ("post", "pre"):
                words = f"base=vanilla placement={placement} model.n_layer={depth} init={init}"
                for seed in (0, 1):
                    loss = 1.5 + 0.01 * depth + (init == "torch") - 0.1 * (placement == "pre") + 0.02 * seed
                    name = f"{placement}-{depth}-{init}-{seed}"
                    parts = {"placement": placement, "init": init}
                    config = {"model.n_layer": depth}
                    arms.append((words, fake_record(name, loss, seed=seed, parts=parts, config=config)))
    put_arms(outputs, "crossed", arms, factors=FACTORS)


def test_each_cell_is_a_table_whose_base_has_the_cells_values(tmp_path: Path) -> None:
    crossed(tmp_path)
    tables = build_report(tmp_path).studies
    assert [table.title for table in tables] == [
        f"model.n_layer={depth}, init={init}" for depth in (3, 16) for init in ("normal", "torch")
    ]
    for table in tables:
        assert [row.name for row in table.rows] == ["base", "placement=pre"]
        assert table.rows[1].difference_nats == pytest.approx(-0.1)
        assert not table.set_aside


def test_without_factors_other_depths_are_rows_of_one_table(tmp_path: Path) -> None:
    crossed(tmp_path, inits=("normal",))
    manifest = tmp_path / "studies" / "crossed" / "study.json"
    manifest.write_text(manifest.read_text().replace('"factors": [', '"other": ['))
    assert len(build_report(tmp_path).studies) == 1


@pytest.mark.parametrize("factors", ["init", [1, 2], {}, [["init"]]])
def test_damaged_factors_leave_one_table(tmp_path: Path, factors: object) -> None:
    put_arms(tmp_path, "odd", [("base=vanilla", fake_record("r"))], factors=factors)
    (table,) = build_report(tmp_path).studies
    assert table.cell == {} and table.rows[0].num_seeds == 1


def test_a_planned_run_stands_in_the_cell_that_its_words_name(tmp_path: Path) -> None:
    crossed(tmp_path)
    (tmp_path / "runs" / "pre-16-torch-1" / "result.json").unlink()
    (table,) = [t for t in build_report(tmp_path).studies if t.title == "model.n_layer=16, init=torch"]
    assert table.rows[1].status == "planned 1/2"


def test_a_damaged_record_is_told_and_nothing_else_is_lost(tmp_path: Path) -> None:
    crossed(tmp_path)
    (tmp_path / "runs" / "pre-16-torch-1" / "result.json").write_text("{")
    tables = build_report(tmp_path).studies
    assert any("pre-16-torch-1" in aside.run for table in tables for aside in table.set_aside)
    assert sum(row.num_seeds for table in tables for row in table.rows) == 15


def test_corpora_as_a_factor_are_known_by_name(tmp_path: Path) -> None:
    arms = []
    for text in ("statutes", "statutes_all"):
        for base in ("vanilla", "llama"):
            record = fake_record(f"{text}-{base}", base=base, config={"corpus.name": text})
            record["data"] |= {"corpus": text, "sha256": text[-3:] * 8}
            arms.append((f"base={base} corpus={text}", record))
    put_arms(tmp_path, "texts", arms, factors=["corpus"])
    tables = build_report(tmp_path).studies
    assert [(table.base, table.title) for table in tables] == [
        (base, f"corpus={text}") for base in ("vanilla", "llama") for text in ("statutes", "statutes_all")
    ]
    assert [row.name for row in tables[0].rows] == ["base", "llama"]


def test_many_cells_are_shown_as_one_table_a_base_and_few_as_they_are(tmp_path: Path) -> None:
    crossed(tmp_path / "many")
    (one,) = shown_tables(build_report(tmp_path / "many").studies)
    assert [row.name for row in one.rows][:2] == [
        "model.n_layer=3, init=normal: vanilla",
        "model.n_layer=3, init=normal: placement=pre",
    ]
    assert len(one.rows) == 8 and "n_layer" not in one.sizes
    crossed(tmp_path / "few", depths=(3,))
    few = build_report(tmp_path / "few").studies
    assert list(shown_tables(few)) == list(few) and len(few) == 2


def test_an_exam_with_factors_counts_how_its_runs_ended(tmp_path: Path) -> None:
    put_rungs(tmp_path)  # a table of single characters reaches 3.0 nats, one of pairs 2.0
    losses = {"a": 2.4, "b": 2.6, "c": 3.4}
    arms = [
        (
            f"base=vanilla placement=post train.warmup_steps=0 seed={seed}",
            fake_record(name, loss, seed=seed, config={"train.warmup_steps": 0}),
        )
        for seed, (name, loss) in enumerate(losses.items())
    ]
    diverged = fake_record("d", None, seed=3, status="diverged", config={"train.warmup_steps": 0})
    arms.append(("base=vanilla placement=post train.warmup_steps=0", diverged))
    put_arms(tmp_path, "exam", arms, factors=["train.warmup_steps"], exam="placement")
    (card,) = build_report(tmp_path).exams
    (cell,) = card.map
    assert cell.outcomes == {"trained": 1, "plateau": 2, "diverged": 1}
    assert cell.loss_nats == pytest.approx(2.8)
