import json
import pathlib
import socket
import subprocess
import sys

import tensorflow as tf

from official_lite.core import config_definitions as cfg
from official_lite.core import worker_agreement

ROOT = pathlib.Path(__file__).parents[2]


def _start(tmp_path, ports, index, seed):
    environment = {
        "cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]},
        "task": {"type": "worker", "index": index},
    }
    command = [
        *(sys.executable, "train.py", "--experiment=vision/digits_mlp", "--mode=train"),
        f"--model_dir={tmp_path}/run",
        "--set=runtime.distribution_strategy=multi_worker_mirrored",
        f"--set=runtime.seed={seed}",
    ]
    return subprocess.Popen(
        ["env", f"TF_CONFIG={json.dumps(environment)}", *command],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )


def _free_ports():
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
        return [first.getsockname()[1], second.getsockname()[1]]


def test_50_workers_with_different_configs_end_with_an_answer(tmp_path):
    ports = _free_ports()
    workers = [_start(tmp_path, ports, index, seed=index) for index in range(2)]
    answers = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [2, 2], answers
    assert all("The config of worker 0 and of worker 1 differ" in answer for answer in answers)


def test_a_single_process_has_nothing_to_agree_on():
    params = cfg.ExperimentConfig()
    worker_agreement.require_agreement(params, tf.distribute.OneDeviceStrategy("CPU:0"))
