"""Manifests: what a study promised before it started, and what moved later. And locks where nothing can be written."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anatomy import runs
from anatomy.runs import Entry, arm_words, is_owned, owned, read_manifest, read_record, record_entries

SPEC = {"name": "mine", "question": "Which?", "metric": None, "margin": 0.01, "looks": None, "tune": None}
SPEC |= {"arms": ["base=vanilla", "base=vanilla swap=norm"], "seeds": [0, 1]}
ONE = Entry("vanilla", "norm", ("swap=norm", "seed=0"), 0, None, "run-a", None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The times that a manifest will be told, one a command."""
    times: list[str] = []

    class Clock:
        @staticmethod
        def now(_: Any) -> "Clock":
            return Clock()

        def isoformat(self, timespec: str) -> str:
            return times.pop(0)

    monkeypatch.setattr(runs, "datetime", Clock)
    return times


def kept(folder: Path, spec: dict[str, Any], *entries: Entry) -> dict[str, Any]:
    record_entries(folder, spec, entries)
    manifest = read_manifest(folder)
    assert manifest is not None
    return manifest


def test_a_manifest_holds_the_promise_its_hash_and_when_each_request_came(tmp_path: Path, clock: list[str]) -> None:
    clock += ["monday", "tuesday", "friday"]
    first = kept(tmp_path / "mine", SPEC, ONE)
    assert list(first) == ["schema", "study", "spec", "spec_sha256", "started", "entries", "amendments"]
    assert (first["spec"], first["started"], first["amendments"]) == (SPEC, "monday", [])
    # echo -n '{"arms": ["base=vanilla", ...], ...}' | sha256sum
    assert first["spec_sha256"] == "0429ce8ef3eab27db69d05398c4c8a843df3095e69289400f8078f2feca52d5a"
    second = replace(ONE, seed=1, overrides=("swap=norm", "seed=1"))
    assert [entry["added"] for entry in kept(tmp_path / "mine", SPEC, ONE, second)["entries"]] == ["monday", "tuesday"]
    assert [entry["added"] for entry in kept(tmp_path / "mine", SPEC, second)["entries"]] == ["monday", "tuesday"]


@pytest.mark.parametrize(
    ("key", "new", "what"),
    [
        ("question", "What?", 'question: "Which?" -> "What?"'),
        ("metric", "test_loss_nats", 'metric: null -> "test_loss_nats"'),
        ("margin", 0.02, "margin: 0.01 -> 0.02"),
        ("looks", [3, 6], "looks: null -> [3, 6]"),
        ("tune", {"lr": [1], "seeds": [7, 8]}, 'tune: null -> {"lr": [1], "seeds": [7, 8]}'),
    ],
)
def test_a_changed_promise_is_an_amendment_and_the_first_one_stands(
    key: str, new: Any, what: str, tmp_path: Path, clock: list[str]
) -> None:
    clock += ["monday", "tuesday", "friday"]
    kept(tmp_path / "mine", SPEC, ONE)
    for _ in range(2):  # saying it again changes nothing more
        changed = kept(tmp_path / "mine", {**SPEC, key: new}, ONE)
        assert changed["spec"] == SPEC and changed["amendments"] == [{"at": "tuesday", "what": what}]


def test_other_arms_and_seeds_are_entries_and_no_amendment(tmp_path: Path) -> None:
    kept(tmp_path / "mine", SPEC, ONE)
    spec = {**SPEC, "arms": ["base=llama"], "seeds": [5]}
    changed = kept(tmp_path / "mine", spec, Entry("llama", "none", ("seed=5",), 5, None, "run-b", None))
    assert changed["spec"] == SPEC and changed["amendments"] == [] and len(changed["entries"]) == 2


def test_a_request_that_leads_to_another_run_is_an_amendment(tmp_path: Path) -> None:
    kept(tmp_path / "mine", SPEC, ONE)
    moved = kept(tmp_path / "mine", SPEC, replace(ONE, run="run-b"))
    assert [amendment["what"] for amendment in moved["amendments"]] == [
        "base=vanilla swap=norm seed=0: run-a -> run-b",
    ]
    refused = kept(tmp_path / "mine", SPEC, replace(ONE, run=None, error="cannot be"))
    assert refused["amendments"][1]["what"] == "base=vanilla swap=norm seed=0: run-b -> refused"
    assert len(kept(tmp_path / "mine", SPEC, ONE)["amendments"]) == 2  # what was refused has not moved


def test_single_requests_promise_nothing(tmp_path: Path) -> None:
    kept(tmp_path / "adhoc", SPEC, ONE)
    changed = kept(tmp_path / "adhoc", {**SPEC, "margin": 0.5}, replace(ONE, run="run-b"))
    assert changed["spec"] == SPEC and changed["amendments"] == []


def test_a_manifest_from_before_amendments_is_read_and_added_to(tmp_path: Path) -> None:
    old = kept(tmp_path / "mine", {"name": "mine", "question": "Which?", "metric": None, "seeds": [0]}, ONE)
    del old["amendments"], old["entries"][0]["added"]
    (tmp_path / "mine" / "study.json").write_text(json.dumps(old))
    spec = {"name": "mine", "question": "Which?", "metric": None, "arms": ["base=vanilla"], "seeds": [0]}
    new = kept(tmp_path / "mine", spec, ONE, replace(ONE, swap="pos"))
    assert new["amendments"] == [] and new["spec"] == old["spec"]
    assert new["entries"][0]["added"] is None and new["entries"][1]["added"]


@pytest.mark.parametrize(
    ("swap", "overrides", "words"),
    [
        ("none", ["study=swaps", "base=vanilla", "swap=none", "seed=3"], "base=vanilla"),
        ("norm,pos", ["train.lr=1e-3", "swap=[norm,pos]", "match=params"], None),
        ("norm", ["swap=norm", "init_salt=1"], "base=vanilla swap=norm init_salt=1"),
    ],
)
def test_an_arm_is_told_as_one_would_type_it(swap: str, overrides: Sequence[str], words: str | None) -> None:
    assert arm_words("vanilla", swap, overrides) == (words or "base=vanilla swap=[norm,pos] match=params train.lr=1e-3")


@pytest.mark.parametrize("content", ["[]", '{"schema": 2}', '{"sche', '"text"'])
def test_a_damaged_record_or_manifest_is_told_with_its_path(content: str, tmp_path: Path) -> None:
    for name, read in (("result.json", read_record), ("study.json", read_manifest)):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=name):
            read(tmp_path)


def test_a_lock_that_cannot_be_opened_has_no_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with owned(tmp_path):
        pass
    real_open = os.open

    def read_only(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if str(path).endswith(".lock") and flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", read_only)  # tests may run as root, whom no mode bits stop
    with pytest.raises(PermissionError), owned(tmp_path):
        pass
    assert not is_owned(tmp_path)
    (tmp_path / "result.json").write_text('{"schema": 1, "status": "running"}')
    record = read_record(tmp_path)
    assert record is not None and record["status"] == "interrupted"
