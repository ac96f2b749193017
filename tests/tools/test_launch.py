import json
import pathlib
import sys

import pytest

from official_lite.tools import __main__ as tools
from official_lite.tools import launch
from official_lite.tools.launch import Role


def _tf_configs(specs: list) -> dict[str, dict]:
    environments = {spec.name: spec.environment for spec in specs}
    return {name: json.loads(env["TF_CONFIG"]) for name, env in environments.items() if env}


def test_workers_share_a_cluster_and_have_an_index_each() -> None:
    specs = launch.plan(["train.py", "--mode=train"], workers=2)
    assert all(spec.role is Role.TRAINER for spec in specs)
    assert all(spec.command == [sys.executable, "train.py", "--mode=train"] for spec in specs)
    configs = _tf_configs(specs)
    assert configs["worker 0"]["cluster"] == configs["worker 1"]["cluster"]
    assert len(set(configs["worker 0"]["cluster"]["worker"])) == 2
    assert [config["task"] for config in configs.values()] == [
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
    ]


def test_parameter_servers_add_a_chief() -> None:
    specs = launch.plan(["train.py"], workers=2, ps=1)
    roles = {spec.name: spec.role for spec in specs}
    assert roles == {
        "ps 0": Role.SERVER,
        "worker 0": Role.REPLACEABLE,
        "worker 1": Role.REPLACEABLE,
        "chief": Role.TRAINER,
    }
    cluster = _tf_configs(specs)["chief"]["cluster"]
    assert {job: len(addresses) for job, addresses in cluster.items()} == {
        "chief": 1,
        "worker": 2,
        "ps": 1,
    }


def test_data_service_is_started_and_its_address_passed_on() -> None:
    specs = launch.plan(["my_program"], workers=1, data_workers=2)
    names = [spec.name for spec in specs]
    assert names == ["data dispatcher", "data worker 0", "data worker 1", "worker 0"]
    address = specs[-1].command[1].removeprefix("--tf_data_service=grpc://")
    assert specs[0].command[-2:] == ["dispatcher", f"--port={address.partition(':')[2]}"]
    assert f"--dispatcher={address}" in specs[1].command
    assert specs[-1].command[0] == "my_program"


# Fails as its first argument says the first time, and is done the second time.
SCRIPT = """
import json, os, pathlib, signal, sys
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
began = pathlib.Path(sys.argv[2]) / f"began_{index}"
if began.exists() or index == 0:
    print("done", sys.argv[3:])
    sys.exit(0)
began.touch()
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[1]))
"""


def _launch(tmp_path: pathlib.Path, how: str, max_restarts: int) -> int:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    options = ["--workers=2", f"--max_restarts={max_restarts}", f"--log_dir={tmp_path}/logs"]
    return tools.main(["launch", *options, "--", str(script), how, str(tmp_path), "--flag=a b"])


@pytest.mark.sample(1)
@pytest.mark.parametrize(("how", "code"), [("killed", 137), ("42", 42)])
def test_failed_cluster_is_restarted_as_often_as_allowed(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str], how: str, code: int
) -> None:
    assert _launch(tmp_path, how, max_restarts=0) == code
    (tmp_path / "began_1").unlink()
    assert _launch(tmp_path, how, max_restarts=1) == 0
    captured = capfd.readouterr()
    assert "launch   | Restart 1 of 1." in captured.err
    assert "worker 1 | done ['--flag=a b']" in captured.out
    assert "done" in (tmp_path / "logs" / "worker_1.log").read_text()


def test_error_of_the_user_is_not_restarted(tmp_path: pathlib.Path) -> None:
    assert _launch(tmp_path, "2", max_restarts=5) == 2
