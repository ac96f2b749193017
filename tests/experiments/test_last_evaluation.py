"""The last evaluation of a run and `--mode=eval` on its checkpoint give the same metrics."""

import pathlib
from typing import Any

import pytest

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.core import exp_factory
from tests.experiments import evaluations
from tests.experiments.test_golden_configs import NAMES

# A batch size that leaves a smaller batch at the end of each validation set.
BATCHES = {"validation_data": {"global_batch_size": 50}}
SMALL_CNN = {"model": {"filters": [4], "units": [8]}, **BATCHES}
SMALL_CLICKS = {
    "table_rows": 200,
    "train_data": {"num_generated": 2000, "global_batch_size": 100},
    "validation_data": {"num_generated": 310, "global_batch_size": 100},
}
SMALL_GPT = {"seq_length": 8, "num_layers": 1, "num_attention_heads": 2, "hidden_size": 16}
SHORT_CONTEXT = {"held_out_percent": 30, "validation_data": {"eval_context": 4}}

# The task overrides that make each experiment small.
TASKS: dict[str, dict[str, Any]] = {
    "nas/digits": {"arch": {"layer0": "conv3", "layer1": "zero", "layer2": "conv1"}, **BATCHES},
    **{name: BATCHES for name in NAMES if name.startswith("nas/digits_")},
    "recommendation/deepfm": SMALL_CLICKS,
    "recommendation/dlrm": SMALL_CLICKS,
    "recommendation/tdm": {"train_data": {"num_generated": 1000, "global_batch_size": 50}},
    "tabular/breast_cancer": BATCHES,
    "vision/digits_cnn": SMALL_CNN,
    "vision/digits_few_labels": SMALL_CNN,
    "vision/digits_mlp": BATCHES,
    "vision/digits_multitask": {"model": {"filters": [4], "units": [8]}},
    "language/char_gpt": {"model": SMALL_GPT},
    "language/char_gpt_large": {"model": SMALL_GPT},
    "language/gpt_stdlib": {"model": {**SMALL_GPT, "ngram_rows": 100}, **SHORT_CONTEXT},
}

# Experiments that other test modules test, because they need files, and experiments with phases,
# which the experiments of the phases test.
ELSEWHERE = {
    "language/bert_pretraining",
    "language/gpt2",
    "nas/fashion_mnist",
    "nas/fashion_mnist_spos",
    "recommendation/ml100k_bpr",
    "recommendation/ml100k_sasrec",
    "recommendation/ml100k_two_tower",
    "sequence/mnist1d",
    "tabular/csv",
    "vision/digits_pretraining",
    "vision/fashion_mnist",
    "vision/fashion_mnist_best",
    "vision/resnet_cifar10",
    "vision/resnet_imagenet",
}


def test_every_experiment_is_tested_for_equal_final_and_eval_mode_metrics() -> None:
    assert TASKS.keys() | ELSEWHERE == set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_final_evaluation_after_training_gives_the_same_metrics_as_eval_mode(
    name: str, tmp_path: pathlib.Path
) -> None:
    params = exp_factory.get_exp_config(name)
    params.override({"task": TASKS[name]})
    if name.startswith("language/char_gpt"):
        (tmp_path / "text.txt").write_text("Wer reitet so spät durch Nacht und Wind?\n" * 40)
        params.task.input_path = str(tmp_path / "text.txt")
    if name == "language/gpt_stdlib":
        for number in range(8):
            (tmp_path / f"{number}.py").write_text(f"def f{number}(x):\n    return x\n" * 20)
        params.task.source_dir = str(tmp_path)
    evaluations.assert_equal_to_mode_eval(params, tmp_path / "run")
