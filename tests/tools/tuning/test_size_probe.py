"""A size of a real experiment."""

import argparse
import os

import pytest
import tensorflow as tf

from official_lite.tools import run_source
from official_lite.tools.tuning import size_probe


def _args(*arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    run_source.add_arguments(parser)
    return parser.parse_args(["vision/digits_mlp", "--set=task.model.units=[4]", *arguments])


def test_size_is_trained_and_nothing_is_left(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(size_probe, "_SECONDS", 0.05)
    found = size_probe.probe(_args("--set=trainer.grad_accum_steps=2"), 32)
    assert found.examples_per_second > 0
    assert found.memory > 10**7
    assert (found.unit, found.problem, found.is_exhausted) == (2, "", False)
    assert os.listdir(tmp_path) == []


def test_size_of_an_experiment_in_epochs_is_trained(monkeypatch):
    monkeypatch.setattr(size_probe, "_SECONDS", 0.05)
    sets = ["trainer.train_epochs=2", "trainer.validate_every_epochs=1"]
    sets.append("task.train_data.num_examples=1437")
    found = size_probe.probe(_args(*(f"--set={one}" for one in sets)), 512)
    assert (found.problem, found.examples_per_second > 0) == ("", True)


def test_why_a_size_can_not_be_trained():
    found = size_probe.probe(_args("--set=trainer.grad_accum_steps=2"), 33)
    assert "expected a multiple of 2" in found.problem
    assert found.is_of_config


def test_memory_that_has_ended_is_no_mistake(monkeypatch):
    def exhaust(ctx, batch_size):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    monkeypatch.setattr(size_probe, "_measure", exhaust)
    assert size_probe.probe(_args(), 32).is_exhausted


def test_phases_are_refused():
    found = size_probe.probe(_args("--set=phases=[{name: one}]"), 32)
    assert "Pass the model directory of one phase" in found.problem


pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
