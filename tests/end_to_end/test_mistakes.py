"""Mistakes that users of Keras and Lightning make are told with what was wanted, where and how."""

import dataclasses
import json
import pathlib
import re
import subprocess
from collections.abc import Sequence

import pytest

from tests import commands

TASK = """
import dataclasses

import keras
import numpy as np
import tensorflow as tf

from official_lite.core import base_task, exp_factory, task_factory
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays


@dataclasses.dataclass
class MyConfig(cfg.TaskConfig):
    units: int = 3


@task_factory.register_task_cls(MyConfig)
class MyTask(base_task.Task):
    def build_model(self):
        model = keras.Sequential(
            [
                keras.Input((2,)),
                keras.layers.Dense(self.task_config.units),
                keras.layers.Dense(4),
            ]
        )
        return model

    def build_inputs(self, params, input_context=None):
        features, labels = np.ones((12, 2), np.float32), np.arange(12) % 4
        batch_size = params.global_batch_size
        return arrays.from_arrays((features, labels), batch_size, shuffle=params.is_training)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        loss = keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        return tf.reduce_mean(loss)

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


@exp_factory.register_config_factory("mine")
def mine():
    sgd = {
        "optimizer": {"type": "sgd"},
        "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
    }
    return cfg.ExperimentConfig(
        task=MyConfig(
            train_data=cfg.DataConfig(global_batch_size=4, is_training=True),
            validation_data=cfg.DataConfig(global_batch_size=4, is_training=False),
        ),
        trainer=cfg.TrainerConfig(
            train_steps=4,
            validation_interval=1,
            optimizer_config=cfg.OptimizationConfig(sgd),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="off"),
    )
"""

MODEL = "        return model\n"
INPUTS = (
    "        return arrays.from_arrays((features, labels), batch_size, shuffle=params.is_training)"
)
CROSS_ENTROPY = (
    "        loss = keras.losses.sparse_categorical_crossentropy"
    "(labels, model_outputs, from_logits=True)"
)
LOSS = "        return tf.reduce_mean(loss)\n"
METRICS = '        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]\n'
OF_METRICS = "    def build_metrics(self"
LOSS_FN = "    def build_losses("
NP_LABELS = "np.arange(12) % 4"
FEATURES = "np.ones((12, 2), np.float32)"
EARLY = "--set=trainer.hooks=[{name: early_stopping, metric: %s, patience: 1, min_delta: 9}]"
COMPILE = "        model.compile(%s)\n" + MODEL
IMAGES = (
    "        return keras.utils.image_dataset_from_directory('%s', label_mode='int', batch_size=4)"
)
NO_LOSS = ("def build_losses(", "def unused(")


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A mistake, the words of its message, and the exit code.

    Attributes:
        name: What the user has done.
        words: What stderr must contain. `FILE` stands for the user's file.
        code: The exit code.
        edits: Texts of the task, and what replaces them.
        args: More arguments of the command.
        yaml: A config file.
        files: Other files, next to the user's.
    """

    name: str
    words: Sequence[str]
    code: int = 2
    edits: Sequence[tuple[str, str]] = ()
    args: Sequence[str] = ()
    yaml: str = ""
    files: Sequence[tuple[str, str | bytes]] = ()


def step(name: str, parameters: str, *lines: str) -> tuple[str, str]:
    """Return the edit that adds a method to the task."""
    body = "".join(f"        {line}\n" for line in lines)
    return (OF_METRICS, f"    def {name}(self, {parameters}):\n{body}\n{OF_METRICS}")


DICT = (FEATURES, '{"img": np.ones((12, 2), np.float32)}')
TRAIN = "inputs, model, optimizer, metrics=None"
OWN = step(
    "train_step",
    TRAIN,
    "features, labels = inputs",
    "with tf.GradientTape() as tape:",
    "    loss = self.build_losses(labels, model(features))",
    "grads = tape.gradient(loss, model.trainable_variables)",
    "optimizer.apply_gradients(zip(grads, model.trainable_variables))",
    "return {self.loss: loss}",
)
OTHER = """from official_lite.core import exp_factory


@exp_factory.register_config_factory("mine")
def mine():
    return None
"""
LR = "trainer.optimizer_config.learning_rate"

FLAGS_AND_CONFIG = [
    Mistake("epochs", ["no flag --epochs", "--set=trainer.train_epochs=3"], args=["--epochs=3"]),
    Mistake("lr", ["no flag --lr", f"--set={LR}.constant.learning_rate=1"], args=["--lr=1"]),
    Mistake("gpus", ["no flag --gpus", "--set=runtime.num_gpus=2"], args=["--gpus=2"]),
    Mistake(
        "batch_size",
        ["no flag --batch_size", "--set=task.train_data.global_batch_size=8"],
        args=["--batch_size=8"],
    ),
    Mistake("output_dir", ["no flag --output_dir", "Use --model_dir"], args=["--output_dir=x"]),
    Mistake("misspelled flag", ["no flag --modell", "Did you mean --mode"], args=["--modell=x"]),
    Mistake(
        "path as a flag",
        ["no flag --trainer.train_steps", "--set=trainer.train_steps=5"],
        args=["--trainer.train_steps=5"],
    ),
    Mistake(
        "override without --set",
        ["'trainer.train_steps=5' is not a flag", "--set=trainer.train_steps=5"],
        args=["trainer.train_steps=5"],
    ),
    Mistake("spaces", ["Write --set=path=value"], args=["--set", "trainer.train_steps", "=", "5"]),
    Mistake(
        "max_epochs",
        ["`trainer.max_epochs`", "Did you mean `train_epochs`?"],
        args=["--set=trainer.max_epochs=3"],
    ),
    Mistake(
        "rate in the optimizer",
        ["`trainer.optimizer_config.optimizer.sgd.learning_rate`", f"set `{LR}."],
        args=["--set=trainer.optimizer_config.optimizer.sgd.learning_rate=1"],
    ),
    Mistake(
        "callbacks",
        ["`trainer.callbacks`", "Did you mean `hooks`?"],
        args=["--set=trainer.callbacks=[EarlyStopping]"],
    ),
    Mistake(
        "hooks in the task",
        ["`task.hooks`", "mistake.yaml:2", "set `trainer.hooks`"],
        yaml="task:\n  hooks: [early_stopping]\n",
    ),
    Mistake(
        "number as a schedule",
        [f"`{LR}`", "expected LrConfig, got 0.1", f"Set `{LR}.type`", "`constant`, `cosine`"],
        args=[f"--set={LR}=0.1"],
    ),
    Mistake(
        "name as an optimizer",
        ["expected OptimizerConfig, got 'adam'", "`trainer.optimizer_config.optimizer.type`"],
        args=["--set=trainer.optimizer_config.optimizer=adam"],
    ),
    Mistake(
        "no learning rate",
        ["`learning_rate.type` of `trainer.optimizer_config` is not set", "`constant`, `cosine`"],
        args=[f"--set={LR}.type=null"],
    ),
    Mistake(
        "empty block",
        ["`task.validation_data`", "mistake.yaml:2", "block is empty", "validation_data: null"],
        yaml="task:\n  validation_data:\n",
    ),
    Mistake(
        "bad indent",
        ["mistake.yaml:3", "indented deeper", "validation_interval: 5", "same column"],
        yaml="trainer:\n  train_steps: 10\n   validation_interval: 5\n",
    ),
    Mistake(
        "hook without arguments",
        ["Expected {name: …, metric: …, patience: …}"],
        args=["--set=trainer.hooks=[early_stopping]"],
    ),
    Mistake(
        "impossible directory",
        ["The model directory /proc/no/run can't be created", "Use a directory"],
        args=["--model_dir=/proc/no/run"],
    ),
    Mistake(
        "file of Keras",
        ["'m.keras'", "a file of Keras", "load_model"],
        code=5,
        args=["--set=task.init_checkpoint=m.keras"],
        files=[("m.keras", "")],
    ),
    Mistake("empty directory", ["--model_dir is empty", "expected a dir"], args=["--model_dir="]),
    Mistake(
        "directory is a file",
        ["The model directory run is a file; expected a directory"],
        files=[("run", "")],
    ),
    Mistake("only a path", ["has no `=`", "--set=path=value"], args=["--set=trainer.train_steps"]),
    Mistake(
        "misspelled key",
        ["`trainer.train_stpes`", "mistake.yaml:2", "Did you mean `train_steps`"],
        yaml="trainer:\n  train_stpes: 3\n",
    ),
    Mistake(
        "wrong type",
        ["`trainer.train_steps`", "mistake.yaml:2", "expected int, got 'many'"],
        yaml="trainer:\n  train_steps: many\n",
    ),
    Mistake(
        "missing file of code",
        ["no file `", "code/mien.py`", "Did you mean `FILE`"],
        args=["--import=code/mien.py"],
    ),
    Mistake(
        "no checkpoint to start from",
        ["`task.init_checkpoint` is '/no/ckpt-5'", "Pass a directory with a checkpoint"],
        code=5,
        args=["--set=task.init_checkpoint=/no/ckpt-5"],
    ),
    Mistake(
        "nothing to evaluate",
        ["no checkpoint in run", "Train first, or set `task.init_checkpoint`"],
        code=5,
        args=["--mode=eval"],
    ),
    Mistake(
        "unknown precision",
        ["`mixed_precision_dtype` is 'float61'", "Did you mean `float16`"],
        args=["--set=runtime.mixed_precision_dtype=float61"],
    ),
    Mistake(
        "GPUs that are not there",
        ["`num_gpus` is 2, but TensorFlow finds 0"],
        args=["--set=runtime={num_gpus: 2, distribution_strategy: mirrored}"],
    ),
    Mistake(
        "GPUs without a strategy",
        ["`runtime.num_gpus` is 2", "`runtime.distribution_strategy` is `off`", "`mirrored`"],
        args=["--set=runtime.num_gpus=2"],
    ),
    Mistake(
        "unknown writer",
        ["no writer 'jsonll'", "Did you mean `jsonl`?"],
        args=["--set=trainer.writers=[jsonll]"],
    ),
    Mistake(
        "unknown hook",
        ["no hook 'early_stoping'", "Did you mean `early_stopping`?"],
        args=["--set=trainer.hooks=[{name: early_stoping, metric: accuracy}]"],
    ),
    Mistake(
        "unknown argument of a hook",
        ["'early_stopping' has no argument `patiense`", "Did you mean `patience`?"],
        args=["--set=trainer.hooks=[{name: early_stopping, metric: accuracy, patiense: 1}]"],
    ),
]

METRICS_AND_DATA = [
    Mistake(
        "unknown best metric",
        ["`trainer.best_checkpoint_eval_metric` is 'acuracy'", "Did you mean `accuracy`?"],
        args=[
            "--set=trainer.best_checkpoint_eval_metric=acuracy",
            "--set=trainer.best_checkpoint_export_subdir=best",
        ],
    ),
    Mistake(
        "folder without records",
        ["`task.train_data`", "`records/*`"],
        code=3,
        edits=[
            (
                INPUTS,
                "        from official_lite.core import input_reader\n"
                "        return input_reader.InputReader(params).read(input_context)",
            )
        ],
        args=["--set=task.train_data.input_path=records/*"],
        files=[("records/a/readme.txt", "")],
    ),
    Mistake(
        "folder without images",
        ["No images found in directory pictures", "(FILE:33, in `build_inputs`)"],
        code=1,
        edits=[(INPUTS, IMAGES % "pictures")],
        files=[("pictures/readme.txt", "")],
    ),
    Mistake(
        "missing folder of images",
        ["No such file or directory: 'picturs'", "(FILE:33, in `build_inputs`)"],
        code=1,
        edits=[(INPUTS, IMAGES % "picturs")],
    ),
    Mistake(
        "no numbers in the data",
        ["training loss is nan", "Batch 0 of the training data", "not finite in `batch[0]`"],
        code=4,
        edits=[(FEATURES, "np.full((12, 2), np.nan, np.float32)")],
    ),
    Mistake(
        "val_loss",
        ["EarlyStopping is 'val_loss'", "Did you mean `validation_loss`?"],
        args=[EARLY % "val_loss"],
    ),
    Mistake(
        "val_accuracy",
        ["EarlyStopping is 'val_accuracy'", "Did you mean `accuracy`?"],
        args=[EARLY % "val_accuracy"],
    ),
    Mistake(
        "monitor of a Keras callback",
        ["KerasCallback is 'acc'", "`accuracy`"],
        args=[
            "--set=trainer.hooks=[{name: keras_callback, callback: EarlyStopping, "
            "monitor: val_acc, mode: max}]"
        ],
    ),
    Mistake(
        "null block",
        ["`task.validation_data` is null", "`MyTask.build_inputs` (FILE:"],
        args=["--set=task.validation_data=null"],
    ),
    Mistake(
        "no examples",
        ["`task.train_data`: The dataset is empty"],
        code=3,
        edits=[(FEATURES, "np.ones((0, 2))"), (NP_LABELS, "np.ones(0)")],
    ),
    Mistake(
        "label out of range",
        ["valid range of [0, 4)", "last layer as many units"],
        code=3,
        edits=[(NP_LABELS, "np.arange(12)")],
    ),
    Mistake(
        "batches that can't be filled",
        ["ended at step 0", "no batch", "drop_remainder"],
        code=3,
        edits=[
            (
                INPUTS,
                "        data = tf.data.Dataset.from_tensor_slices((features, labels))\n"
                "        return data.batch(99, drop_remainder=True)",
            )
        ],
    ),
    Mistake(
        "generator of one pass",
        ["ended at step 3", "a new generator on each call"],
        code=3,
        edits=[
            (
                INPUTS,
                "        rows = iter([(features[:4], labels[:4])] * 3)\n"
                "        spec = tf.TensorSpec((4, 2)), tf.TensorSpec((4,), tf.int64)\n"
                "        return tf.data.Dataset.from_generator(lambda: rows, "
                "output_signature=spec)",
            )
        ],
        args=["--mode=train"],
    ),
    Mistake(
        "damaged image",
        ["the image `pictures/a.png` is damaged (3 bytes)"],
        code=3,
        edits=[
            (
                INPUTS,
                "        def read(path):\n"
                "            image = tf.io.decode_image(tf.io.read_file(path))\n"
                "            return tf.reshape(tf.cast(image, tf.float32), [1, 2]), [0]\n"
                "        return tf.data.Dataset.from_tensors('pictures/a.png').map(read)",
            )
        ],
        args=["--set=task.train_data.input_path=pictures"],
        files=[("pictures/a.png", b"PNG")],
    ),
]

CODE = [
    Mistake(
        f"{method} returns nothing",
        [f"`MyTask.{method}` (FILE:", "returned None", expected],
        edits=[(line, line.replace("return ", "", 1))],
    )
    for method, line, expected in (
        ("build_model", MODEL, "a Keras model"),
        ("build_inputs", INPUTS, "`tf.data.Dataset`"),
        ("build_losses", LOSS, "the loss of the batch"),
        ("build_metrics", METRICS, "a list of Keras metrics"),
    )
] + [
    Mistake(
        "loss per example",
        ["The loss of `MyTask.build_losses` (FILE:", "shape (4,)", "Apply `tf.reduce_mean`"],
        edits=[(LOSS, "        return loss\n")],
    ),
    Mistake(
        "name that is taken",
        ["'mine' is already registered as `FILE:mine`", "under another name", "code/other.py:4"],
        args=["--import=code/other.py"],
        files=[("code/other.py", OTHER)],
    ),
    Mistake(
        "no Python",
        ["SyntaxError: ", "(FILE:2, in `<module>`)"],
        code=1,
        edits=[("import dataclasses\n", "def broken(:\n")],
    ),
    Mistake(
        "error in build_inputs",
        ["RuntimeError: my data are gone (FILE:33, in `build_inputs`)"],
        code=1,
        edits=[(INPUTS, "        raise RuntimeError('my data are gone')")],
    ),
    Mistake(
        "build_loss",
        ["`MyTask.build_loss` is never called", "`build_losses`", "No gradients provided"],
        edits=[(LOSS_FN, "    def build_loss(")],
    ),
    Mistake(
        "train_step returns nothing",
        ["`MyTask.train_step` (FILE:", "returned None"],
        edits=[step("train_step", TRAIN, "super().train_step(inputs, model, optimizer)")],
    ),
    Mistake(
        "logs without loss",
        ["`MyTask.train_step` (FILE:", "the keys ['x']", "`self.loss: "],
        edits=[step("train_step", TRAIN, "return {'x': 1.0}")],
    ),
    Mistake(
        "arrays as inputs",
        ["returned a tuple", "`data.arrays.from_arrays`"],
        edits=[(INPUTS, "        return features, labels")],
    ),
    Mistake(
        "names as metrics",
        ["list with 'accuracy'", "`keras.metrics.get(name)`"],
        edits=[(METRICS, "        return ['accuracy']\n")],
    ),
    Mistake(
        "other shape",
        ["is incompatible with the layer", "have value 5", "shape (4, 2)"],
        code=1,
        edits=[("keras.Input((2,))", "keras.Input((5,))")],
    ),
    Mistake(
        "no batches",
        ["Expected shape (None, 2)", "incompatible shape (2,)"],
        code=1,
        edits=[(INPUTS, "        return tf.data.Dataset.from_tensor_slices((features, labels))")],
    ),
    Mistake(
        "missing key in an unbuilt model",
        ["no key 'image'", "Did you mean `img`?"],
        edits=[DICT, ("keras.Input((2,))", "keras.layers.Lambda(lambda row: row['image'])")],
    ),
    Mistake(
        "missing key in a step",
        ["`MyTask.train_step` have no key 'image'", "Did you mean `img`?", "FILE:"],
        code=1,
        edits=[DICT, step("train_step", TRAIN, "return {'loss': inputs[0]['image']}")],
    ),
    Mistake(
        "one-hot labels",
        ["target.shape=(4, 4), output.shape=(4, 4)", "mine.py:36, in `build_losses`"],
        code=1,
        edits=[(NP_LABELS, "np.eye(4)[np.arange(12) % 4]")],
    ),
    Mistake(
        "class indices",
        ["rank", "mine.py:36, in `build_losses`"],
        code=1,
        edits=[("sparse_categorical", "categorical")],
    ),
    Mistake(
        "unknown metric in compile",
        ["acuracy"],
        edits=[NO_LOSS, (MODEL, COMPILE % "loss='mse', metrics=['acuracy']")],
    ),
    Mistake(
        "validation_step of Lightning",
        ["`MyTask.validation_step` (FILE:", "validation_step(inputs, model=…, metrics=…)"],
        edits=[step("validation_step", "batch, batch_idx", "pass")],
    ),
    Mistake(
        "build_inputs without parameters",
        ["`MyTask.build_inputs` (FILE:", "input_context"],
        edits=[("def build_inputs(self, params, input_context=None)", "def build_inputs(self)")],
    ),
    Mistake(
        "build_model with parameters",
        ["`MyTask.build_model` (FILE:", "build_model()"],
        edits=[("def build_model(self)", "def build_model(self, inputs)")],
    ),
    Mistake(
        "decorator without a config",
        ["register_task_cls", "`@register_task_cls(MyTaskConf"],
        edits=[("register_task_cls(MyConfig)", "register_task_cls")],
    ),
    Mistake(
        "constructor",
        ["`MyTask.__init__` (FILE:", "super().__init__("],
        edits=[step("__init__", "*args, **kwargs", "self.mine = 1")],
    ),
    Mistake(
        "relative import",
        ["relative import", "FILE", "PYTHONPATH="],
        edits=[("import dataclasses\n", "from . import helper\nimport dataclasses\n")],
    ),
    Mistake(
        "neighbor",
        ["imports `helper`", "PYTHONPATH="],
        files=[("code/helper.py", "")],
        edits=[("import dataclasses\n", "import helper\nimport dataclasses\n")],
    ),
]

WARNINGS = [
    Mistake("none", []),
    Mistake(
        "step without training=True",
        [
            "`train_step` of MyTask never calls the model with `training=True`",
            "dropout is inactive",
        ],
        code=0,
        edits=[
            ("keras.layers.Dense(4),", "keras.layers.Dropout(0.5), keras.layers.Dense(4),"),
            OWN,
        ],
    ),
    Mistake("step without metrics", ["No step has updated", "self.update_metr"], edits=[OWN]),
    Mistake(
        "metric of one-hot labels",
        ["`accuracy` of MyTask is a CategoricalAccuracy", "Use keras.metrics.SparseCategorical"],
        edits=[("metrics.Sparse", "metrics.")],
    ),
    Mistake(
        "batch that is larger than the data",
        ["should have 5000 examples, but there are only 12", "Lower `global_batch_size`"],
        args=["--set=task.train_data.global_batch_size=5000"],
    ),
    Mistake(
        "no steps",
        ["`trainer.train_steps` is 0, so nothing is trained"],
        args=["--set=trainer.train_steps=0"],
    ),
    Mistake(
        "labels without the axis of the outputs",
        ["`MyTask.build_losses` (", "labels of shape (4,)", "`labels[:, tf.newaxis]`"],
        edits=[
            ("layers.Dense(4)", "layers.Dense(1)"),
            (
                CROSS_ENTROPY,
                "        loss = tf.square(tf.cast(labels, tf.float32) - model_outputs)",
            ),
            (METRICS, "        return []\n"),
        ],
    ),
    Mistake(
        "lost activation in compile",
        ["takes probabilities", "`from_logits=True`"],
        code=0,
        edits=[NO_LOSS, (MODEL, COMPILE % "loss='sparse_categorical_crossentropy'")],
    ),
    Mistake(
        "optimizer in compile",
        ["optimizer Adam, which is not used"],
        code=0,
        edits=[
            NO_LOSS,
            (
                MODEL,
                COMPILE % "'adam', loss=keras.losses."
                "SparseCategoricalCrossentropy(from_logits=True)",
            ),
        ],
    ),
    Mistake(
        "training_step",
        ["`MyTask.training_step` is never called", "`train_step`"],
        code=0,
        edits=[step("training_step", "batch", "pass")],
    ),
    Mistake(
        "no dataclass",
        ["MyConfig declares `units`", "`@dataclasses.dataclass`"],
        code=0,
        edits=[("@dataclasses.dataclass\nclass MyC", "class MyC")],
    ),
    Mistake(
        "stopping without evaluation",
        ["EarlyStopping watches", "Use the mode `train_and_eval`"],
        code=0,
        args=["--mode=train", EARLY % "accuracy"],
    ),
]


# The line of an error: its class, or what the flags say.
_NAMES_ERROR = re.compile(r"\w+Error: |There is no flag |The required flag ")


def run(directory: pathlib.Path, mistake: Mistake) -> subprocess.CompletedProcess[str]:
    task = TASK
    for old, new in mistake.edits:
        assert old in task, old
        task = task.replace(old, new)
    files = [("code/mine.py", task), ("mistake.yaml", mistake.yaml), *mistake.files]
    for name, content in files:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    command = ["--import=code/mine.py", "--experiment=mine", "--mode=train_and_eval"]
    command += ["--model_dir=run", "--config_file=mistake.yaml", *mistake.args]
    return commands.run([commands.ROOT / "train.py", *command], cwd=directory)


@pytest.mark.sample(26)
@pytest.mark.parametrize(
    "mistake", [*FLAGS_AND_CONFIG, *METRICS_AND_DATA, *CODE], ids=lambda mistake: mistake.name
)
def test_mistake_is_an_error_with_what_was_wanted_and_where(
    tmp_path: pathlib.Path, mistake: Mistake
) -> None:
    result = run(tmp_path, mistake)
    assert result.returncode == mistake.code, result.stderr
    for word in mistake.words:
        assert word.replace("FILE", f"{tmp_path / 'code' / 'mine.py'}") in result.stderr
    assert "\x1b" not in result.stderr
    # The message stands once, although it was also logged.
    said = next(line for line in result.stderr.splitlines() if _NAMES_ERROR.match(line))
    assert result.stderr.count(re.sub(r"^\w+Error: ", "", said)) == 1


@pytest.mark.sample(4)
@pytest.mark.parametrize("mistake", WARNINGS, ids=lambda mistake: mistake.name)
def test_mistake_that_can_be_trained_is_a_warning(tmp_path: pathlib.Path, mistake: Mistake) -> None:
    result = run(tmp_path, dataclasses.replace(mistake, code=0))
    assert result.returncode == 0, result.stderr
    warnings = [line for line in result.stderr.splitlines() if line.startswith("WARNING: ")]
    for word in mistake.words:
        assert any(word in line for line in warnings), result.stderr
    assert mistake.words or not warnings


def test_directory_of_another_experiment_is_named(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, Mistake("first", [])).returncode == 0
    other = ('register_config_factory("mine")', 'register_config_factory("other")')
    units = ("units: int = 3", "units: int = 5")
    mistake = Mistake("", [], edits=[other, units], args=["--experiment=other"])
    result = run(tmp_path, mistake)
    assert result.returncode == 2, result.stderr
    assert "belong to the experiment `mine`, not to `other`" in result.stderr
    assert "Use another --model_dir" in result.stderr


def test_run_that_stops_early_is_recorded_and_listed_so(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, Mistake("", [], args=[EARLY % "accuracy"])).returncode == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["exit_reason"].startswith("early_stopping: `accuracy` has not improved")
    listed = commands.run(["-m", "official_lite.tools", "runs", "list", str(tmp_path / "run")])
    assert "early_stopping" in listed.stdout
