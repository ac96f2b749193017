"""The files in `deploy/` are accepted by their schedulers and start the documented processes."""

import json
import os
import pathlib
import re
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import kubernetes_validate
import portpicker
import pytest
import yaml

from official_lite.common import errors, tf_config
from tests import waiting

ROOT = pathlib.Path(__file__).parents[2]
KUBERNETES_VERSION = kubernetes_validate.latest_version()
KUBERNETES = ROOT / "deploy" / "kubernetes"
SBATCH = ROOT / "deploy" / "slurm" / "train.sbatch"


def _documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


def _controlled(name: str) -> list[dict[str, Any]]:
    """Return a manifest's documents, or the Job that Kubeflow Trainer creates for a TrainJob."""
    documents = _documents(name)
    if name != "trainjob.yaml":
        return documents
    runtime, train_job = documents
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    job, trainer = replicated["template"]["spec"], train_job["spec"]["trainer"]
    job["completions"] = job["parallelism"] = trainer["numNodes"]
    (container,) = job["template"]["spec"]["containers"]
    entries = {one["name"]: one for one in [*container["env"], *trainer["env"]]}
    container.update(env=list(entries.values()), args=trainer["args"])
    # JobSet appends the index 0 of the job's only replica.
    metadata = {"name": f"{train_job['metadata']['name']}-{replicated['name']}-0"}
    return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job}]


def _program(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _environment(tmp_path: pathlib.Path, **more: str) -> dict[str, str]:
    """Return an environment whose PATH starts with `tmp_path/bin`."""
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TF_CONFIG": "", **more}


@pytest.mark.parametrize("name", ["workers.yaml", "parameter_server.yaml"])
def test_manifests_match_the_kubernetes_schema(name: str) -> None:
    documents = _documents(name)
    for document in documents:
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
    pods = [d["spec"]["template"]["spec"] for d in documents if d["kind"] in ("Job", "StatefulSet")]
    services = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "Service"}
    assert pods
    assert all(service["clusterIP"] == "None" for service in services.values())
    for pod in pods:
        volumes = {volume["name"] for volume in pod["volumes"]}
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        # Without a matching service, the pod would have no DNS name.
        assert pod.get("subdomain", container["command"][-1]) in services


def test_kubernetes_jobs_do_not_fail_on_restartable_exit_codes() -> None:
    names = ("workers.yaml", "parameter_server.yaml", "trainjob.yaml")
    jobs = [d for n in names for d in _controlled(n) if d["kind"] == "Job"]
    assert len(jobs) == 3
    for job in jobs:
        pod, rules = job["spec"]["template"]["spec"], job["spec"]["podFailurePolicy"]["rules"]
        assert pod["restartPolicy"] == "Never"
        (container,) = {r["onExitCodes"]["containerName"] for r in rules if "onExitCodes" in r}
        assert [one["name"] for one in pod["containers"]] == [container]
        by_action = {r["action"]: r["onExitCodes"]["values"] for r in rules if "onExitCodes" in r}
        ignored = {int(errors.ExitCode.PREEMPTED), int(errors.ExitCode.TERMINATED)}
        assert set(by_action["Ignore"]) == ignored
        assert not set(by_action["FailJob"]) & set(errors.RESTARTABLE)
        assert {1, 2, 3} <= set(by_action["FailJob"])


def test_tfjob_manifest_matches_the_schema_of_the_kubeflow_training_operator() -> None:
    (job,) = _documents("tfjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    assert job["spec"].keys() == {"successPolicy", "runPolicy", "tfReplicaSpecs"}
    (replicas,) = job["spec"]["tfReplicaSpecs"].values()
    assert replicas.keys() == {"replicas", "restartPolicy", "template"}
    (container,) = replicas["template"]["spec"]["containers"]
    assert container["name"] == "tensorflow"
    assert [port["name"] for port in container["ports"]] == ["tfjob-port"]
    template = {"apiVersion": "v1", "kind": "PodTemplate", "template": replicas["template"]}
    kubernetes_validate.validate(
        {**template, "metadata": {"name": "trainer"}}, KUBERNETES_VERSION, strict=True
    )


def test_trainjob_manifest_matches_the_schema_of_kubeflow_trainer() -> None:
    runtime, job = _documents("trainjob.yaml")
    assert runtime["apiVersion"] == job["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    assert (runtime["kind"], job["kind"]) == ("TrainingRuntime", "TrainJob")
    assert job["spec"].keys() == {"runtimeRef", "trainer"}
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime"}
    assert job["spec"]["runtimeRef"] == {**reference, "name": runtime["metadata"]["name"]}
    assert job["spec"]["trainer"].keys() == {"numNodes", "env", "args"}
    # A framework policy would set variables for PyTorch, JAX or MPI.
    assert runtime["spec"]["mlPolicy"].keys() == {"numNodes"}
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert replicated["template"]["metadata"]["labels"] == label
    assert replicated["template"]["spec"]["completionMode"] == "Indexed"
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    # Trainer finds the container by this name.
    assert container["name"] == "node"
    # Each document states the number of workers twice, and both numbers must be equal.
    trainer, policy = job["spec"]["trainer"], runtime["spec"]["mlPolicy"]
    for entries, number in (
        (container["env"], policy["numNodes"]),
        (trainer["env"], trainer["numNodes"]),
    ):
        assert [one["value"] for one in entries if one["name"] == "WORKERS"] == [str(number)]
    for document in _controlled("trainjob.yaml"):
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("ends_with", "code"), [("exit 0", 0), ("exit 2", 2), ("exit 42", 138), ("exit 7", 138)]
)
def test_tfjob_container_maps_restartable_exit_codes_to_138(
    tmp_path: pathlib.Path, ends_with: str, code: int
) -> None:
    (job,) = _documents("tfjob.yaml")
    (container,) = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    command = [*container["command"], *container["args"]]
    # A program that ends with the given code shortly after SIGTERM.
    said = tmp_path / "said"
    _program(
        tmp_path / "bin" / "python",
        f'trap "sleep 0.3; {ends_with}" TERM; echo "$@" > {said}; while :; do sleep 0.1; done',
    )
    process = subprocess.Popen(command, env=_environment(tmp_path))
    waiting.wait_for(said.exists, alive=lambda: process.poll() is None)
    process.terminate()
    assert process.wait(waiting.SECONDS) == code
    assert said.read_text().startswith("train.py --experiment=")


def _tf_configs(name: str, tmp_path: pathlib.Path) -> Iterator[str]:
    """Yield the `TF_CONFIG` that the start command in each pod of a manifest sets."""
    _program(tmp_path / "bin" / "python", 'printf %s "$TF_CONFIG"')
    documents = _controlled(name)
    data = next((d["data"] for d in documents if d["kind"] == "ConfigMap"), {})
    (tmp_path / "start.sh").write_text(data.get("start.sh", ""))
    variables = {key: value for key, value in data.items() if key != "start.sh"}
    for document in documents:
        if document["kind"] not in ("Job", "StatefulSet"):
            continue
        (container,) = document["spec"]["template"]["spec"]["containers"]
        entries = container.get("env", ())
        own = {one["name"]: one["value"] for one in entries if "value" in one}
        command = [*container["command"], *container.get("args", ())]
        command = [part.replace("/cluster/", f"{tmp_path}/") for part in command]
        spec = document["spec"]
        for index in range(spec.get("replicas", spec.get("completions", 1))):
            pod = {
                "HOSTNAME": f"{document['metadata']['name']}-{index}",
                "JOB_COMPLETION_INDEX": str(index),
            }
            environment = _environment(tmp_path, **variables, **own, **pod)
            yield subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            ).stdout


def _read(text: str, monkeypatch: pytest.MonkeyPatch) -> tf_config.ClusterConfig:
    monkeypatch.setenv("TF_CONFIG", text)
    found = tf_config.read_tf_config()
    assert found is not None
    return found


def test_dockerfile_copies_existing_files_and_matches_the_kubernetes_manifests() -> None:
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    instructions = [line.split() for line in lines if line and not line.startswith("#")]
    copied = [source for word, *rest in instructions if word == "COPY" for source in rest[:-1]]
    assert {"official_lite", "experiments", "train.py", "registry_imports.py"} <= set(copied)
    assert [source for source in copied if not (ROOT / source).exists()] == []
    images, folders = set(), set()
    for name in (path.name for path in KUBERNETES.glob("*.yaml")):
        text = (KUBERNETES / name).read_text()
        images |= set(re.findall(r"image: (\S+)", text))
        folders |= set(re.findall(r"workingDir: (\S+)", text))
    assert [word for line in lines for word in line.split() if word in images]
    assert folders == {one[1] for one in instructions if one[0] == "WORKDIR"}


MEET = """
from official_lite.common import tf_config
from official_lite.common import cluster
cluster.meet(tf_config.find_cluster())
"""


def _exit_codes(environments: list[Mapping[str, str]]) -> list[int]:
    """Start processes that wait for one another, and return their exit codes."""
    processes = [
        subprocess.Popen([sys.executable, "-c", MEET], env={**os.environ, **environment}, cwd=ROOT)
        for environment in environments
    ]
    return [process.wait(waiting.SECONDS) for process in processes]


@pytest.mark.parametrize(
    ("name", "addresses"),
    [
        ("workers.yaml", ("trainer-0.trainer:2222", "trainer-1.trainer:2222")),
        ("trainjob.yaml", ("trainer-node-0-0.trainer:2222", "trainer-node-0-1.trainer:2222")),
    ],
)
def test_pods_of_a_job_get_the_same_cluster_spec_and_find_each_other(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str, addresses: tuple[str, ...]
) -> None:
    texts = list(_tf_configs(name, tmp_path))
    found = [_read(text, monkeypatch) for text in texts]
    assert [one.name for one in found] == ["worker 0", "worker 1"]
    assert all(one.jobs == {"worker": addresses} for one in found)
    # Replace the addresses by free ports of this machine.
    for address in addresses:
        here = f"127.0.0.1:{portpicker.pick_unused_port()}"
        texts = [text.replace(address, here) for text in texts]
    assert _exit_codes([{"TF_CONFIG": text} for text in texts]) == [0, 0]


def test_parameter_server_pods_get_the_same_cluster_spec(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [_read(t, monkeypatch) for t in _tf_configs("parameter_server.yaml", tmp_path)]
    assert [one.name for one in found] == ["chief", "worker 0", "worker 1", "ps 0"]
    jobs = {
        "chief": ("chief.chief:2222",),
        "worker": ("worker-0.worker:2222", "worker-1.worker:2222"),
        "ps": ("ps-0.ps:2222",),
    }
    assert all(one.jobs == jobs for one in found)


# A replacement of `srun` that starts two tasks on this machine, with the variables that Slurm sets.
SRUN = r"""
echo "$@" > "$SAID"
while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE=2
export SLURM_NODEID=0
for rank in 0 1; do
  SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & pids+=($!)
done
code=0
for pid in "${pids[@]}"; do
  wait "$pid" || { (($? > code)) && code=$?; }
done
exit "$code"
"""


def _job_id() -> str:
    """Return a Slurm job id from which free ports on this machine are derived."""
    while not 20000 <= (port := portpicker.pick_unused_port()) < 29998 or port % 2:
        pass
    return str((port - 20000) // 2)


def test_sbatch_file_has_valid_options_before_its_first_command() -> None:
    subprocess.run(["bash", "-n", str(SBATCH)], check=True)
    lines = SBATCH.read_text().splitlines()
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert all(re.fullmatch(r"--[a-z-]+(=\S+)?", option) for option in options)
    assert {"--requeue", "--nodes=2", "--ntasks-per-node=1"} <= set(options)
    # Slurm ignores options after the first command.
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:])


@pytest.mark.slow
def test_sbatch_file_trains_on_all_tasks_of_a_slurm_step(tmp_path: pathlib.Path) -> None:
    _program(tmp_path / "bin" / "srun", SRUN)
    _program(tmp_path / "bin" / "python", f'exec {sys.executable} "$@"')
    result = subprocess.run(
        [
            *("bash", str(SBATCH), "--experiment=vision/digits_mlp", "--mode=train"),
            *(f"--model_dir={tmp_path}/run", "--set=trainer.train_steps=2"),
        ],
        env=_environment(tmp_path, SLURM_JOB_ID=_job_id(), SAID=str(tmp_path / "said")),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["global_step"] == 2
    assert (tmp_path / "said").read_text().startswith("--label --distribution=block")


@pytest.mark.parametrize(
    ("code", "again"),
    [(0, False), (2, False), (42, True), (7, True), (137, True), (130, False)],
)
def test_sbatch_job_is_requeued_only_after_restartable_exit_codes(
    tmp_path: pathlib.Path, code: int, again: bool
) -> None:
    _program(tmp_path / "bin" / "srun", f"exit {code}")
    _program(tmp_path / "bin" / "scontrol", f'echo "$@" > {tmp_path}/scontrol')
    environment = _environment(tmp_path, SLURM_JOB_ID="4711")
    done = subprocess.run(["bash", str(SBATCH)], env=environment, cwd=tmp_path, check=False)
    assert done.returncode == code
    told = tmp_path / "scontrol"
    assert (told.read_text().split() if told.exists() else []) == ["requeue", "4711"] * again


def test_sbatch_job_that_reaches_its_time_limit_is_requeued_without_counting_as_a_crash(
    tmp_path: pathlib.Path,
) -> None:
    _program(tmp_path / "bin" / "srun", 'exit "$CODE"')
    _program(tmp_path / "bin" / "scontrol", f"echo >> {tmp_path}/requeued")
    requeued = []
    for restarts, code in enumerate([42, 42, 137, 42, 7, 137, 42]):
        environment = _environment(
            tmp_path,
            SLURM_JOB_ID="4711",
            SLURM_RESTART_COUNT=str(restarts),
            MAX_RESTARTS="2",
            CODE=str(code),
        )
        subprocess.run(["bash", str(SBATCH)], env=environment, cwd=tmp_path, check=False)
        requeued.append((tmp_path / "requeued").read_text().count("\n"))
    assert requeued == [1, 2, 3, 4, 5, 5, 6]
    assert not list(tmp_path.glob("*.crashes"))
