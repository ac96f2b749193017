import sys
import types

import pytest
import tensorflow as tf

from official_lite.orbit import hooks


def _values(make_trainer, make_controller, recording_writer):
    make_controller(make_trainer(), hooks=[hooks.MemoryStats(5)], steps_per_loop=5).train(5)
    return recording_writer.records[-1].values


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux")
def test_process_memory_is_logged_in_mib(make_trainer, make_controller, recording_writer):
    values = _values(make_trainer, make_controller, recording_writer)
    # TensorFlow alone takes more than 100 MiB; more than 1 TiB would mean a wrong unit.
    assert 100 < values["memory/rss_mib"] <= values["memory/peak_rss_mib"] < 2**20


def test_memory_of_each_gpu_is_logged_in_mib(
    make_trainer, make_controller, recording_writer, monkeypatch
):
    gpu = types.SimpleNamespace(name="/device:GPU:1")
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [gpu])
    info = {"GPU:1": {"current": 3 * 2**20, "peak": 2**30}}
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", info.__getitem__)
    values = _values(make_trainer, make_controller, recording_writer)
    assert values["memory/gpu_1_mib"] == 3
    assert values["memory/peak_gpu_1_mib"] == 1024
