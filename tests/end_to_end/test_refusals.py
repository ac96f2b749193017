"""Mistakes that cause errors or warnings, each with the names that its message must contain.

Mistakes in a config are refused within the test process. Mistakes in a user's code are written to a
file, which a command then imports.
"""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite import pipeline
from official_lite.common import errors
from official_lite.config import parsing
from tests import commands

LR = "trainer.optimizer_config.learning_rate"
OPTIMIZER = "trainer.optimizer_config.optimizer"
EARLY = "trainer.hooks=[{name: early_stopping, metric: %s, patience: 1, min_delta: 9}]"

# Pairs of an invalid config and the names that its error must contain. A text of several lines is a
# config file, any other text is an override.
CONFIGS = [
    ("trainer.trian_steps=5", ["`trainer.trian_steps`", "`train_steps`"]),
    ("trainer.max_epochs=3", ["`trainer.max_epochs`", "`train_epochs`"]),
    ("trainer.callbacks=[EarlyStopping]", ["`trainer.callbacks`", "`hooks`"]),
    ("trianer: {}\n", ["`trianer`", "my.yaml:1", "`trainer`"]),
    ("trainer:\n  trian_steps: 5\n", ["`trainer.trian_steps`", "my.yaml:2", "`train_steps`"]),
    ("trainer:\n  train_steps: many\n", ["`trainer.train_steps`", "my.yaml:2", "int", "'many'"]),
    ("trainer:\n  train_steps: 1\n  train_steps: 2\n", ["my.yaml:3", "train_steps"]),
    ("trainer:\n  train_steps: 10\n   validation_interval: 5\n", ["my.yaml:3"]),
    ("- trainer\n", ["my.yaml", "list"]),
    ("a: 1\n---\nb: 2\n", ["my.yaml:2"]),
    ("task:\n  validation_data:\n", ["`task.validation_data`", "my.yaml:2", "null"]),
    ("task:\n  hooks: [early_stopping]\n", ["`task.hooks`", "my.yaml:2", "`trainer.hooks`"]),
    (f"{OPTIMIZER}.adamw.bata_1=0.9", ["adamw.bata_1`", "`beta_1`"]),
    (f"{OPTIMIZER}.sgd.learning_rate=1", [f"`{OPTIMIZER}.sgd.learning_rate`", f"`{LR}."]),
    (f"{OPTIMIZER}=adam", ["OptimizerConfig", "'adam'", f"`{OPTIMIZER}.type`"]),
    (f"{LR}=0.1", [f"`{LR}`", "LrConfig", f"`{LR}.type`", "`constant`"]),
    (f"{LR}.type=null", ["`learning_rate.type`", "`constant`"]),
    ("trainer.train_steps=3.5", ["`trainer.train_steps`", "int"]),
    ("trainer.train_steps=1e6", ["`trainer.train_steps`", "1000000"]),
    ("trainer.train_steps=true", ["`trainer.train_steps`", "int"]),
    ("trainer.train_steps=null", ["`trainer.train_steps`", "int"]),
    ("trainer.loss_upper_bound=[1.0]", ["`trainer.loss_upper_bound`", "float"]),
    ("task.train_data.drop_remainder=1", ["`task.train_data.drop_remainder`", "bool"]),
    ("task.model.units=[a]", ["units"]),
    ("trainer.train_steps=99999999999999999999", ["train_steps"]),
    ("trainer.train_steps=-1", ["train_steps"]),
    ("trainer.steps_per_loop=0", ["steps_per_loop"]),
    ("trainer.loss_upper_bound=.nan", ["loss_upper_bound"]),
    ("task.train_data.global_batch_size=-8", ["global_batch_size"]),
    (f"{LR}.cosine.initial_learning_rate=.nan", ["initial_learning_rate"]),
    (f"{LR}.cosine.initial_learning_rate=.inf", ["initial_learning_rate"]),
    (f"{LR}.cosine.initial_learning_rate=-0.1", ["initial_learning_rate"]),
    ("trainer.optimizer_config.warmup.linear.warmup_learning_rate=.nan", ["warmup_learning_rate"]),
    (f"{OPTIMIZER}.type=admaw", ["`adamw`"]),
    ("runtime.distribution_strategy=mirrord", ["`mirrored`"]),
    ("runtime.mixed_precision_dtype=float61", ["`mixed_precision_dtype`", "`float16`"]),
    (
        "runtime={num_gpus: 2, distribution_strategy: 'off'}",
        ["`runtime.num_gpus`", "`runtime.distribution_strategy`"],
    ),
    ("runtime={num_gpus: 2, distribution_strategy: mirrored}", ["`num_gpus`", "0"]),
    ("trainer.writers=[jsonll]", ["'jsonll'", "`jsonl`"]),
    ("trainer.hooks=[early_stopping]", ["name: …", "metric: …", "patience: …"]),
    ("trainer.hooks=[{name: early_stoping, metric: accuracy}]", ["`early_stopping`"]),
    (f"{EARLY[:-2] % 'accuracy'}, patiense: 1}}]", ["`patiense`", "`patience`"]),
    (EARLY % "val_loss", ["EarlyStopping", "'val_loss'", "`validation_loss`"]),
    (
        "trainer.hooks=[{name: keras_callback, callback: EarlyStopping, monitor: val_acc}]",
        ["KerasCallback", "'acc'", "`accuracy`"],
    ),
    ("trainer.best_checkpoint_eval_metric=acuracy", ["best_checkpoint_eval_metric", "`accuracy`"]),
    ("trainer.train_steps", ["`=`", "--set=path=value"]),
]


def _run(
    model_dir: str,
    experiment: str = "vision/digits_mlp",
    mode: str = "train_and_eval",
    **given: Any,
) -> None:
    options = parsing.ParseConfigOptions(experiment=experiment, **given)
    params = parsing.parse_configuration(options, print_return=False)
    pipeline.RunPipeline(params, mode, model_dir).run()


def _refused(tmp_path: pathlib.Path, code: int, **given: Any) -> str:
    """Return the message of the error with which a run is refused."""
    with pytest.raises(errors.OfficialLiteError) as caught:
        _run(**{"model_dir": str(tmp_path / "run"), **given})
    assert caught.value.exit_code == code, caught.value
    return str(caught.value)


@pytest.mark.parametrize(("given", "names"), CONFIGS, ids=lambda value: str(value)[:60])
def test_invalid_config_is_refused_with_its_location_and_a_suggestion(
    tmp_path: pathlib.Path, given: str, names: Sequence[str]
) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(given)
    message = _refused(
        tmp_path, 2, **({"config_file": [str(file)]} if "\n" in given else {"set": [given]})
    )
    assert [name for name in names if name not in message] == [], message


@pytest.mark.parametrize(
    ("code", "given", "names"),
    [
        (2, {"experiment": "vision/digits_cmm"}, ["`vision/digits_cnn`", "--import"]),
        (2, {"params_override": "trainer.train_steps:5x,"}, ["train_steps"]),
        (2, {"config_file": ["nowhere.yaml"]}, ["nowhere.yaml"]),
        (2, {"mode": "trian"}, ["`train`"]),
        (2, {"model_dir": ""}, ["--model_dir"]),
        (2, {"model_dir": __file__}, [__file__, "file"]),
        (5, {"set": ["task.init_checkpoint=/no/ckpt-5"]}, ["`task.init_checkpoint`", "/no/ckpt-5"]),
        (5, {"set": ["task.init_checkpoint=FOLDER/m.keras"]}, ["m.keras", "load_model"]),
        (5, {"mode": "eval"}, ["FOLDER/run", "`task.init_checkpoint`"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_run_with_an_invalid_flag_or_checkpoint_is_refused_before_anything_is_written(
    tmp_path: pathlib.Path, code: int, given: dict[str, Any], names: Sequence[str]
) -> None:
    (tmp_path / "m.keras").touch()
    if "set" in given:
        given = {"set": [text.replace("FOLDER", str(tmp_path)) for text in given["set"]]}
    message = _refused(tmp_path, code, **given)
    assert [n for n in names if n.replace("FOLDER", str(tmp_path)) not in message] == [], message
    assert not (tmp_path / "run").exists()


def _train(directory: pathlib.Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run `train.py` in a new process that lists its imports."""
    command = [sys.executable, "-X", "importtime", str(commands.ROOT / "train.py")]
    command += ["--experiment=vision/digits_cnn", "--mode=train", f"--model_dir={directory}/run"]
    return subprocess.run([*command, *args], capture_output=True, text=True, cwd=commands.ROOT)


@pytest.mark.parametrize(
    "arg",
    [
        "--set=trainer.trian_steps=5",
        "--import=no_such_package",
        pytest.param("--mode=test", id="a test without test data"),
    ],
)
def test_invalid_command_exits_with_code_2_before_importing_tensorflow(
    tmp_path: pathlib.Path, arg: str
) -> None:
    result = _train(tmp_path, arg)
    lines = result.stderr.splitlines()
    said = [line for line in lines if not line.startswith("import time:")]
    assert result.returncode == 2, said
    assert "Traceback" not in result.stderr
    assert not [line for line in lines if line not in said and "tensorflow" in line]
    assert not (tmp_path / "run").exists()


def test_print_config_output_can_be_passed_as_a_config_file(tmp_path: pathlib.Path) -> None:
    first = _train(tmp_path, "--print_config", "--set=trainer.train_steps=7")
    file = tmp_path / "printed.yaml"
    file.write_text(first.stdout)
    second = _train(tmp_path, "--print_config", f"--config_file={file}")
    assert (first.returncode, second.stdout) == (0, first.stdout)
    assert "train_steps: 7" in second.stdout
    assert not (tmp_path / "run").exists()


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
LOSS = "        return tf.reduce_mean(loss)\n"
METRICS = '        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]\n'
OF_METRICS = "    def build_metrics(self"
FEATURES = "np.ones((12, 2), np.float32)"
DICT = (FEATURES, '{"img": np.ones((12, 2), np.float32)}')
NO_LOSS = ("def build_losses(", "def unused(")
TRAIN = "inputs, model, optimizer, metrics=None"


def method(name: str, parameters: str, *lines: str) -> tuple[str, str]:
    """Return an edit that adds a method to the task's code."""
    body = "".join(f"        {line}\n" for line in lines)
    return (OF_METRICS, f"    def {name}(self, {parameters}):\n{body}\n{OF_METRICS}")


def compiled(arguments: str) -> tuple[str, str]:
    """Return an edit that makes the task compile the model."""
    return (MODEL, f"        model.compile({arguments})\n{MODEL}")


def inputs(*lines: str) -> tuple[str, str]:
    """Return an edit that replaces the return statement of `build_inputs`."""
    return (INPUTS, "\n".join(f"        {line}" for line in lines))


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A mistake in the user's file or in a command.

    Attributes:
        name: A short description of the mistake.
        names: The texts that the message must contain. `FILE` stands for the user's file.
        edits: Pairs of a text in the task's code and its replacement.
        args: Additional arguments of the command.
        files: Other files, next to the user's.
        code: The exit code.
    """

    name: str
    names: Sequence[str]
    edits: Sequence[tuple[str, str]] = ()
    args: Sequence[str] = ()
    files: Sequence[tuple[str, str | bytes]] = ()
    code: int = 2


FLAGS = [
    Mistake(flag, names, args=[flag])
    for flag, names in (
        ("--epochs=3", ["--epochs", "--set=trainer.train_epochs=3"]),
        ("--batch_size=8", ["--batch_size", "--set=task.train_data.global_batch_size=8"]),
        ("--output_dir=x", ["--output_dir", "--model_dir"]),
        ("--modell=x", ["--modell", "--mode"]),
        ("--trainer.train_steps=5", ["--set=trainer.train_steps=5"]),
        ("trainer.train_steps=5", ["'trainer.train_steps=5'", "--set=trainer.train_steps=5"]),
        ("--import=code/mien.py", ["code/mien.py`", "`FILE`"]),
        ("--model_dir=/proc/no/run", ["/proc/no/run"]),
    )
]

DATA = [
    Mistake(
        "missing folder of images",
        ["'picturs'", "(FILE:33, in `build_inputs`)"],
        [inputs("return keras.utils.image_dataset_from_directory('picturs')")],
        code=1,
    ),
    Mistake(
        "no numbers in the data",
        ["nan", "Batch 0 of the training data", "`batch[0]`"],
        [(FEATURES, "np.full((12, 2), np.nan, np.float32)")],
        code=4,
    ),
    Mistake(
        "null block",
        ["`task.validation_data`", "`MyTask.build_inputs` (FILE:"],
        args=["--set=task.validation_data=null"],
    ),
    Mistake(
        "batches that can't be filled",
        ["before the first step", "drop_remainder"],
        [
            inputs(
                "data = tf.data.Dataset.from_tensor_slices((features, labels))",
                "return data.batch(99, drop_remainder=True)",
            )
        ],
        code=3,
    ),
    Mistake(
        "generator of one pass",
        ["step 3", "a new generator on each call"],
        [
            inputs(
                "rows = iter([(features[:4], labels[:4])] * 3)",
                "spec = tf.TensorSpec((4, 2)), tf.TensorSpec((4,), tf.int64)",
                "return tf.data.Dataset.from_generator(lambda: rows, output_signature=spec)",
            )
        ],
        ["--mode=train"],
        code=3,
    ),
    Mistake(
        "damaged image",
        ["`pictures/a.png`"],
        [
            inputs(
                "def read(path):",
                "    image = tf.io.decode_image(tf.io.read_file(path))",
                "    return tf.reshape(tf.cast(image, tf.float32), [1, 2]), [0]",
                "return tf.data.Dataset.from_tensors('pictures/a.png').map(read)",
            )
        ],
        ["--set=task.train_data.input_path=pictures"],
        [("pictures/a.png", b"PNG")],
        code=3,
    ),
]

OTHER = """from official_lite.core import exp_factory


@exp_factory.register_config_factory("mine")
def mine():
    return None
"""

CODE = [
    *(
        Mistake(
            f"{name} returns nothing",
            [f"`MyTask.{name}` (FILE:", "None", expected],
            [(line, line.replace("return ", "", 1))],
        )
        for name, line, expected in (
            ("build_model", MODEL, "Keras model"),
            ("build_inputs", INPUTS, "`tf.data.Dataset`"),
            ("build_losses", LOSS, "loss"),
            ("build_metrics", METRICS, "Keras metrics"),
        )
    ),
    Mistake(
        "name that is taken",
        ["'mine'", "`FILE:mine`", "code/other.py:4"],
        args=["--import=code/other.py"],
        files=[("code/other.py", OTHER)],
    ),
    Mistake(
        "build_loss",
        ["`MyTask.build_loss`", "`build_losses`"],
        [("    def build_losses(", "    def build_loss(")],
    ),
    Mistake(
        "train_step returns nothing",
        ["`MyTask.train_step` (FILE:", "None"],
        [method("train_step", TRAIN, "super().train_step(inputs, model, optimizer)")],
    ),
    Mistake(
        "logs without loss",
        ["`MyTask.train_step` (FILE:", "['x']", "`self.loss: "],
        [method("train_step", TRAIN, "return {'x': 1.0}")],
    ),
    Mistake(
        "arrays as inputs",
        ["a tuple", "`data.arrays.from_arrays`"],
        [inputs("return features, labels")],
    ),
    Mistake(
        "names as metrics",
        ["'accuracy'", "`keras.metrics.get(name)`"],
        [(METRICS, "        return ['accuracy']\n")],
    ),
    Mistake(
        "missing key in an unbuilt model",
        ["'image'", "`img`"],
        [DICT, ("keras.Input((2,))", "keras.layers.Lambda(lambda row: row['image'])")],
    ),
    Mistake(
        "class indices",
        ["rank", "mine.py:36, in `build_losses`"],
        [("sparse_categorical", "categorical")],
        code=1,
    ),
    Mistake(
        "unknown metric in compile",
        ["acuracy"],
        [NO_LOSS, compiled("loss='mse', metrics=['acuracy']")],
    ),
    Mistake(
        "validation_step of Lightning",
        ["`MyTask.validation_step` (FILE:", "validation_step(inputs, model=…, metrics=…)"],
        [method("validation_step", "batch, batch_idx", "pass")],
    ),
    Mistake(
        "build_inputs without parameters",
        ["`MyTask.build_inputs` (FILE:", "input_context"],
        [("def build_inputs(self, params, input_context=None)", "def build_inputs(self)")],
    ),
    Mistake(
        "decorator without a config",
        ["register_task_cls", "`@register_task_cls(MyTaskConf"],
        [("register_task_cls(MyConfig)", "register_task_cls")],
    ),
    Mistake(
        "constructor",
        ["`MyTask.__init__` (FILE:", "super().__init__("],
        [method("__init__", "*args, **kwargs", "self.mine = 1")],
    ),
    Mistake(
        "relative import",
        ["FILE", "PYTHONPATH="],
        [("import dataclasses\n", "from . import helper\nimport dataclasses\n")],
    ),
    Mistake(
        "neighbor",
        ["`helper`", "PYTHONPATH="],
        [("import dataclasses\n", "import helper\nimport dataclasses\n")],
        files=[("code/helper.py", "")],
    ),
]

WARNINGS = [
    Mistake("none", []),
    Mistake("no steps", ["`trainer.train_steps`"], args=["--set=trainer.train_steps=0"]),
    Mistake(
        "optimizer in compile",
        ["optimizer Adam"],
        [
            NO_LOSS,
            compiled("'adam', keras.losses.SparseCategoricalCrossentropy(from_logits=True)"),
        ],
    ),
    Mistake(
        "training_step",
        ["`MyTask.training_step`", "`train_step`"],
        [method("training_step", "batch", "pass")],
    ),
    Mistake(
        "no dataclass",
        ["MyConfig", "`units`", "`@dataclasses.dataclass`"],
        [("@dataclasses.dataclass\nclass MyC", "class MyC")],
    ),
    Mistake(
        "stopping without evaluation",
        ["EarlyStopping", "`train_and_eval`"],
        args=["--mode=train", f"--set={EARLY % 'accuracy'}"],
    ),
]


# The beginning of the line with the error: the class of the error, or a message about flags.
_NAMES_ERROR = re.compile(r"\w+Error: |There is no flag |The required flag ")


def run(directory: pathlib.Path, mistake: Mistake) -> subprocess.CompletedProcess[str]:
    task = TASK
    for old, new in mistake.edits:
        assert old in task, old
        task = task.replace(old, new)
    for name, content in [("code/mine.py", task), *mistake.files]:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    command = ["--import=code/mine.py", "--experiment=mine", "--mode=train_and_eval"]
    command += ["--model_dir=run", *mistake.args]
    return commands.run([commands.ROOT / "train.py", *command], cwd=directory)


@pytest.mark.sample(16)
@pytest.mark.parametrize("mistake", [*FLAGS, *DATA, *CODE], ids=lambda mistake: mistake.name)
def test_error_for_a_mistake_in_flags_data_or_code_names_its_location_and_a_remedy(
    tmp_path: pathlib.Path, mistake: Mistake
) -> None:
    result = run(tmp_path, mistake)
    assert result.returncode == mistake.code, result.stderr
    for name in mistake.names:
        assert name.replace("FILE", f"{tmp_path / 'code' / 'mine.py'}") in result.stderr
    assert "\x1b" not in result.stderr
    # The message appears only once, although it is also logged.
    said = next(line for line in result.stderr.splitlines() if _NAMES_ERROR.match(line))
    assert result.stderr.count(re.sub(r"^\w+Error: ", "", said)) == 1


@pytest.mark.sample(3)
@pytest.mark.parametrize("mistake", WARNINGS, ids=lambda mistake: mistake.name)
def test_probable_mistake_that_does_not_prevent_training_logs_a_warning(
    tmp_path: pathlib.Path, mistake: Mistake
) -> None:
    result = run(tmp_path, mistake)
    assert result.returncode == 0, result.stderr
    warnings = [line for line in result.stderr.splitlines() if line.startswith("WARNING: ")]
    for name in mistake.names:
        assert any(name in line for line in warnings), result.stderr
    assert mistake.names or not warnings


def test_user_code_error_is_shown_with_its_line_and_logged_with_the_full_traceback(
    tmp_path: pathlib.Path,
) -> None:
    error = method("process_metrics", "*args, **kwargs", "raise RuntimeError('wrong\\nand more')")
    result = run(tmp_path, Mistake("", [], [error]))
    *lines, last = result.stderr.splitlines()
    assert result.returncode == 1
    assert last.startswith("RuntimeError: wrong (")
    assert f"{tmp_path}/code/mine.py:" in last
    assert "The full traceback is in run/log.txt." in lines
    assert len(lines) < 40
    log = (tmp_path / "run" / "log.txt").read_text()
    assert ["tensorflow/python" in text for text in (result.stderr, log)] == [False, True]
    verbose = run(tmp_path, Mistake("", [], [error], ["--verbosity=1"]))
    assert "tensorflow/python" in verbose.stderr


# Edits that make the task train for two epochs over endless data of unknown length.
ENDLESS = [
    (INPUTS, f"{INPUTS}.filter(lambda *_: True).repeat(None if params.is_training else 1)"),
    ("train_steps=4", "train_epochs=2"),
]


def test_dry_run_with_epochs_over_data_of_unknown_length_requires_steps_per_epoch(
    tmp_path: pathlib.Path,
) -> None:
    result = run(tmp_path, Mistake("", [], ENDLESS, ["--dry_run"]))
    assert result.returncode == 2
    assert "length of an epoch" in result.stderr
    args = ["--dry_run", "--set=trainer.steps_per_epoch=9"]
    assert run(tmp_path, Mistake("", [], ENDLESS, args)).returncode == 0


def test_dry_run_in_train_mode_neither_evaluates_nor_reads_validation_data(
    tmp_path: pathlib.Path,
) -> None:
    edits = [
        method("validation_step", "inputs, model, metrics=None", "raise ValueError"),
        inputs("assert params.is_training", INPUTS.strip()),
    ]
    passed = run(tmp_path, Mistake("", [], edits, ["--dry_run", "--mode=train"]))
    assert passed.returncode == 0, passed.stderr
    assert passed.stderr.splitlines()[-1] == "The dry run succeeded. It left no files."


def test_dry_run_of_a_task_without_a_validation_step_succeeds_only_in_train_mode(
    tmp_path: pathlib.Path,
) -> None:
    edits = [method("validation_step", "inputs, model, metrics=None", "raise NotImplementedError")]
    passed = run(tmp_path, Mistake("", [], edits, ["--dry_run", "--mode=train"]))
    assert passed.returncode == 0, passed.stderr
    assert passed.stderr.splitlines()[-1] == "The dry run succeeded. It left no files."
    refused = run(tmp_path, Mistake("", [], edits, ["--dry_run"]))
    assert refused.returncode == 2
    assert "--mode=train" in refused.stderr


def test_evaluation_with_a_different_config_suggests_the_params_yaml_of_the_run(
    tmp_path: pathlib.Path,
) -> None:
    trained = ["--mode=train", "--set=task.units=5", "--set=trainer.steps_per_epoch=3"]
    assert run(tmp_path, Mistake("", [], ENDLESS, trained)).returncode == 0
    refused = run(tmp_path, Mistake("", [], ENDLESS, ["--mode=eval"]))
    flag = "--config_file=run/params.yaml"
    assert refused.returncode == 5, refused.stderr
    assert "task.units: 5 -> 3" in refused.stderr
    assert flag in refused.stderr
    again = run(tmp_path, Mistake("", [], ENDLESS, ["--mode=eval", flag]))
    assert again.returncode == 0
    assert "differs from" not in again.stderr


def test_training_in_the_model_directory_of_another_experiment_is_refused(
    tmp_path: pathlib.Path,
) -> None:
    assert run(tmp_path, Mistake("", [])).returncode == 0
    edits = [
        ('register_config_factory("mine")', 'register_config_factory("other")'),
        ("units: int = 3", "units: int = 5"),
    ]
    result = run(tmp_path, Mistake("", [], edits, ["--experiment=other"]))
    assert result.returncode == 2, result.stderr
    assert [name in result.stderr for name in ("`mine`", "`other`", "--model_dir")] == [True] * 3


def test_early_stopped_run_is_recorded_and_listed_with_its_exit_reason(
    tmp_path: pathlib.Path,
) -> None:
    stopping = f"--set={EARLY % 'accuracy'}"
    assert run(tmp_path, Mistake("", [], args=[stopping])).returncode == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["exit_reason"].startswith("early_stopping: `accuracy`")
    listed = commands.run(["-m", "official_lite.tools", "runs", "list", str(tmp_path / "run")])
    assert "early_stopping" in listed.stdout
