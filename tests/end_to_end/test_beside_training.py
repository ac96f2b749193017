"""Processes that use a run during or after its training."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests import commands, rounding


def _command(mode: str, model_dir: pathlib.Path, *args: str) -> list[str]:
    command = ["train.py", "--experiment=vision/digits_mlp"]
    return [*command, f"--mode={mode}", f"--model_dir={model_dir}", *args]


@pytest.mark.slow
def test_continuous_eval_evaluates_every_checkpoint_during_training(
    tmp_path: pathlib.Path,
) -> None:
    model_dir = tmp_path / "run"
    common = ["--set=trainer.train_steps=400", "--set=trainer.max_to_keep=9"]
    common += ["--set=trainer.checkpoint_interval=100", "--set=trainer.continuous_eval_timeout=60"]
    evaluation = commands.Command(_command("continuous_eval", model_dir, *common))
    assert commands.run(_command("train", model_dir, *common)).returncode == 0
    assert evaluation.wait() == 0
    path = model_dir / "metrics.continuous_eval.json"
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == [100, 200, 300, 400]


EXPORT = """
import sys
import numpy as np, tensorflow as tf
from experiments.vision.digits import configs, data, task
from official_lite.core import export_base

class Digits(export_base.ExportModule):
    @tf.function
    def serve(self, images):
        return {"logits": self.inference_step(images)}

    def get_inference_signatures(self, function_keys):
        spec = tf.TensorSpec((None, *data.IMAGE_SHAPE), tf.float32)
        return {name: self.serve.get_concrete_function(spec) for name in function_keys.values()}

model_dir, images, out = sys.argv[1:]
params = configs.digits_mlp()
module = Digits(params, task.DigitsTask(params.task).build_model())
path = export_base.export(module, {"serve": "serving_default"}, model_dir + "/export",
                          checkpoint_path=model_dir, timestamped=False)
np.save(out, module.serve(np.load(images))["logits"])
"""
RELOAD = """
import sys
import numpy as np, tensorflow as tf
model_dir, images, out = sys.argv[1:]
serve = tf.saved_model.load(model_dir + "/export").signatures["serving_default"]
np.save(out, serve(tf.constant(np.load(images)))["logits"])
"""


@pytest.mark.slow
def test_exported_model_reloaded_in_a_new_process_reproduces_its_outputs(
    tmp_path: pathlib.Path,
) -> None:
    model_dir, images = tmp_path / "run", tmp_path / "images.npy"
    arguments = ["--set=trainer.train_steps=20"]
    assert commands.run(_command("train", model_dir, *arguments)).returncode == 0
    np.save(images, np.random.default_rng(0).random((5, 8, 8, 1), dtype=np.float32))
    exported, reloaded = tmp_path / "exported.npy", tmp_path / "reloaded.npy"
    (tmp_path / "export.py").write_text(EXPORT)
    command = [tmp_path / "export.py", model_dir, images, exported]
    done = commands.run(command, env={"PYTHONPATH": str(commands.ROOT)})
    assert done.returncode == 0, done.stderr[-3000:]
    # This is a new interpreter, because a fork would already have imported this package.
    command = [sys.executable, "-c", RELOAD, str(model_dir), str(images), str(reloaded)]
    subprocess.run(command, check=True, cwd=commands.ROOT)
    # The model has three dense layers, each with sums over at most 64 numbers.
    rounding.assert_close(np.load(reloaded), np.load(exported), roundings=3 * 64)
    assert np.abs(np.load(exported)).max() > 0
