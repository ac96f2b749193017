"""Tests of how a notebook in a real kernel shows configs, the progress of a run and errors."""

import pathlib
import re

import nbclient
import nbformat
import pytest

from tests import waiting

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]

SETUP = """
import dataclasses
import tensorflow as tf
from experiments.vision.digits import configs, task
from official_lite import pipeline
from official_lite.core import exp_factory, task_factory

params = exp_factory.get_exp_config("vision/digits_mlp")
params.override({"trainer": {"train_steps": 20, "validation_interval": 20, "log_interval": 10}})
"""

TASK_WITH_A_MISTAKE = """
@dataclasses.dataclass
class MistakenConfig(configs.DigitsConfig):
    pass


@task_factory.register_task_cls(MistakenConfig)
class Mistaken(task.DigitsTask):
    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(mistaken_loss(model_outputs))


def mistaken_loss(outputs):
    return outputs @ tf.ones([5, 6])


def train(model_dir):
    mistaken = params.replace(task=MistakenConfig())
    return pipeline.RunPipeline(mistaken, "train", model_dir).run()
"""

CAUGHT = """
try:
    train("caught")
except ValueError as error:
    text = str(error)
    print("caught:", text[text.index("Dim") :])
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the notebook and return the text that each cell shows, by the cell's name."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = {
        "setup": SETUP,
        "config": "params",
        "progress": 'model, metrics = pipeline.RunPipeline(params, "train_and_eval", "run").run()',
        "misspelled": 'steps = 5\nparams.override({"trainer": {"train_stps": steps}})',
        "definition": TASK_WITH_A_MISTAKE,
        "mistake": 'train("mistaken")',
        "caught": CAUGHT,
        "own": "def divide(x):\n    return x / 0\n\ndivide(1)",
        "everything": '%xmode Verbose\nparams.override({"trainer": {"train_stps": 5}})',
    }
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(code) for code in cells.values()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("IPYTHONDIR", str(folder))
        nbclient.NotebookClient(
            notebook,
            timeout=int(waiting.SECONDS),
            allow_errors=True,
            resources={"metadata": {"path": str(folder)}},
        ).execute()
    return dict(zip(cells, map(_shown, notebook.cells), strict=True))


def _shown(cell: nbformat.NotebookNode) -> str:
    texts = []
    for output in cell.outputs:
        if output.output_type == "error":
            texts += output.traceback
        elif output.output_type == "stream":
            texts.append(output.text)
        else:
            texts.append(output.data["text/plain"])
    return "\n".join(texts)


def test_config_at_the_end_of_a_notebook_cell_is_shown_as_yaml(outputs: dict[str, str]) -> None:
    assert "trainer:\n  name: null\n" in outputs["config"]
    assert "\n  train_steps: 20\n" in outputs["config"]


def test_run_in_a_notebook_shows_its_progress(outputs: dict[str, str]) -> None:
    for step in ("train | step 10 |", "train | step 20 |", "validation | step 20 |"):
        assert step in outputs["progress"]


def test_error_for_a_misspelled_config_field_names_the_line_in_the_notebook_cell(
    outputs: dict[str, str],
) -> None:
    header, cell, code, message = outputs["misspelled"].splitlines()
    assert header.startswith("Traceback of your own code")
    assert cell.strip() == "Cell In[4], line 2"
    assert code.strip() == 'params.override({"trainer": {"train_stps": steps}})'
    assert "Did you mean `train_steps`" in message


def test_notebook_traceback_of_an_error_in_a_task_omits_frames_of_the_framework(
    outputs: dict[str, str],
) -> None:
    shown = outputs["mistake"].partition("Traceback")[2]
    places = re.findall(r"^  \S.*", shown, re.MULTILINE)
    assert places == [
        "  Cell In[6], line 1",
        "  Cell In[5], line 18, in train",
        "  Cell In[5], line 9, in build_losses",
        "  Cell In[5], line 13, in mistaken_loss",
    ]
    *_, message = shown.splitlines()
    assert message.startswith("ValueError: Dimensions must be equal")
    assert message.endswith("(cell In[5], line 13)")


def test_notebook_can_catch_run_errors_and_shows_other_errors_as_usual(
    outputs: dict[str, str],
) -> None:
    assert "caught: Dimensions must be equal" in outputs["caught"]
    assert "Traceback" not in outputs["caught"]
    assert "ZeroDivisionError" in outputs["own"]
    assert "Traceback of your own code" not in outputs["own"]


def test_xmode_verbose_in_a_notebook_shows_the_full_traceback(outputs: dict[str, str]) -> None:
    assert "params_dict.py" in outputs["everything"]
