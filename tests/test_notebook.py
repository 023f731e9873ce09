"""The notebook: every cell runs on runs of the moment; what is committed was made in one go and names no machine."""

import base64
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from test_runner import job

from anatomy.runner import run

NOTEBOOK = Path(__file__).parent.parent / "docs" / "open_a_run.ipynb"
MAX_KIB = 300


def outputs(notebook: NotebookNode, kind: str) -> list[str]:
    """What its cells put out, of a kind: `text/plain`, `image/png`, or `stdout`."""
    found = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = [output.text for output in found if output.output_type == "stream" and output.name == kind]
    return printed + [output.data[kind] for output in found if kind in output.get("data", {})]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> NotebookNode:
    folder = tmp_path_factory.mktemp("notebook")
    for base in ("llama", "vanilla"):
        made = job(folder / "outputs", text_file, f"base={base}", "model.n_head=4", "model.ctx_len=32", "train.steps=4")
        assert run(made, [])["status"] == "done"
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MPLBACKEND", raising=False)
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):  # neither read nor written at home
            patch.setenv(name, str(folder / name.lower()))
        there = {"metadata": {"path": str(folder)}}
        NotebookClient(notebook, kernel_name="python3", timeout=120, resources=there).execute()
    return notebook


def test_every_cell_runs_and_figures_and_samples_come_out(executed: NotebookNode) -> None:
    figures = [base64.b64decode(data) for data in outputs(executed, "image/png")]
    assert len(figures) == 2 and all(figure.startswith(b"\x89PNG") for figure in figures)
    printed = "".join(outputs(executed, "stdout"))
    for base in ("llama", "vanilla"):
        for temperature in (0.3, 1.0):
            assert f"--- {base}, temperature {temperature}\nthe king" in printed
        assert f"{base:8} the same text both ways" in printed
    assert outputs(executed, "stderr") == []


def test_the_committed_outputs_were_made_in_one_go() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(output.output_type != "error" for cell in cells for output in cell.outputs)
    assert len(outputs(notebook, "image/png")) == 2 and "temperature 0.3" in "".join(outputs(notebook, "stdout"))


def test_the_committed_file_is_small_and_names_no_machine() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < MAX_KIB * 1024
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    kinds = ("stdout", "stderr", "text/plain", "text/html")
    shown = "".join(
        [cell.source for cell in notebook.cells] + [text for kind in kinds for text in outputs(notebook, kind)]
    )
    assert not any(place in shown for place in ("/home", "/root", "/tmp", "/work", "/Users", "C:\\"))
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert not any(cell.metadata for cell in notebook.cells)
