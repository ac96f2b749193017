import contextlib
import copy

import pytest

from official_lite import orbit, pipeline
from official_lite.common import errors
from official_lite.core import hook_factory
from official_lite.pipeline import paddlerec


@pytest.mark.parametrize(
    ("base", "method"),
    [
        (paddlerec.InstanceBase, "instance"),
        (paddlerec.NetworkBase, "build_network"),
        (paddlerec.StartupBase, "startup"),
        (paddlerec.RunnerBase, "run"),
        (paddlerec.TerminalBase, "terminal"),
    ],
)
def test_defining_a_paddlerec_stage_without_its_required_method_raises(base, method) -> None:
    with pytest.raises(errors.ConfigTypeError, match=rf"`Forgetful`.*`{method}\(self, context\)`"):
        type("Forgetful", (base,), {})


def test_paddlerec_context_maps_paddlerec_keys_to_context_attributes(context) -> None:
    ctx = context()
    ctx.stage, ctx.model = "initialize", "a model"
    old = paddlerec.Context(ctx)
    assert old["engine"] == paddlerec.EngineMode.SINGLE
    assert old["status"] == "startup_pass"
    name = old["env"]["phase"][0]["name"]
    assert name == old["runner_name"]
    assert old["model"][name]["model"] == old.model == "a model"
    old["model"][name]["model"] = "another"
    old["mine"] = 1
    assert (ctx.model, ctx.extras, old.get("yours")) == ("another", {"mine": 1}, None)
    assert {"engine", "mine"} <= set(old)
    del old["mine"]
    assert "mine" not in old


def test_paddlerec_context_contains_earlier_phases_by_name(context) -> None:
    ctx = context()
    ctx.phase = "finetune"
    ctx.phases = {
        "pretrain": pipeline.FinishedPhase(
            name="pretrain", mode="train", model_dir="", trained_model="old"
        )
    }
    earlier = paddlerec.Context(ctx)["model"]["pretrain"]
    assert earlier["model"] == "old"
    with pytest.raises(errors.UnknownKeyError, match=r"only its model.*`model`"):
        earlier["optimizer"]
    with pytest.raises(errors.ConfigValueError, match="pretrain"):
        earlier["model"] = "new"
    assert paddlerec.Context(ctx)["env"]["phase"] == [{"name": "finetune", "mode": "train"}]


def test_paddlerec_context_raises_for_unknown_and_read_only_keys(context) -> None:
    old = paddlerec.Context(context())
    with pytest.raises(errors.UnknownKeyError, match="`engine`"):
        old["engnie"]
    with pytest.raises(errors.UnknownKeyError, match="programs"):
        old["model"]["phase1"]["main_program"] = None
    with pytest.raises(errors.ConfigValueError, match="read"):
        old["engine"] = None


def test_paddlerec_context_can_be_copied(context) -> None:
    old = paddlerec.Context(context())
    assert copy.copy(old).ctx is old.ctx


def test_paddlerec_startup_stage_that_loads_weights_logs_their_source(
    experiment, log_of, tmp_path
) -> None:
    class Startup(paddlerec.StartupBase):
        def startup(self, context):
            self.load(context)

    pipeline.RunPipeline(experiment(), "train", str(tmp_path), {"initialize": Startup}).run()
    assert log_of().count("initialize: cold start") == 1


def test_paddlerec_status_selects_the_next_stage(context) -> None:
    class Startup(paddlerec.StartupBase):
        def startup(self, context):
            context["status"] = "terminal_pass"
            assert context["status"] == "terminal_pass"

    view = Startup.view(context())
    assert Startup(view)(view) == "finalize"


def test_setting_an_unknown_paddlerec_status_raises_immediately(context) -> None:
    old = paddlerec.Context(context())
    with pytest.raises(errors.UnknownNameError, match="`train_pass`"):
        old["status"] = "trian_pass"


def test_paddlerec_runner_raises_if_steps_per_epoch_is_not_set(experiment, tmp_path) -> None:
    class Runner(paddlerec.RunnerBase):
        def run(self, context):
            self._run(context)

    with pytest.raises(errors.ConfigValueError, match="steps_per_epoch"):
        pipeline.RunPipeline(experiment(), "train", str(tmp_path), {"run": Runner}).run()


class _Passes(paddlerec.RunnerBase):
    """The training loop shown in the docs."""

    def run(self, context):
        config = context.params.trainer
        while context.global_step < config.train_steps and not context.controller.stop_reason:
            self._run(context)
            self.save(0, context)
            context["ends"] = [*context.get("ends", []), context.global_step]
            if context["ends"] == context.get("dies_after"):
                raise ZeroDivisionError


class _Ends(paddlerec.TerminalBase):
    def terminal(self, context):
        context.extras["told"].append(context["ends"])


@pytest.fixture
def ends_of(experiment, tmp_path):
    """Return a function that trains 10 epochs of 2.5 batches and lists where the passes end."""

    def run(dies_after=None, **trainer):
        class Prepare(pipeline.Prepare):
            def __call__(self, ctx):
                ctx.extras.update(told=told, dies_after=dies_after)

        told = []
        params = experiment(
            task={"train_data": {"num_examples": 20}}, trainer={"train_epochs": 10.0, **trainer}
        )
        stages = {"prepare": Prepare, "run": _Passes, "finalize": _Ends}
        with pytest.raises(ZeroDivisionError) if dies_after else contextlib.nullcontext():
            pipeline.RunPipeline(params, "train", str(tmp_path), stages).run()
        return told[0]

    return run


def test_last_paddlerec_pass_ends_at_the_last_training_step(ends_of) -> None:
    # 10 epochs of 2.5 batches are 25 steps, in passes of 2 whole batches.
    assert ends_of() == [*range(2, 25, 2), 25]


def test_resumed_paddlerec_run_trains_only_the_remaining_passes(ends_of) -> None:
    assert ends_of(dies_after=[2, 4, 6]) == [2, 4, 6]
    assert ends_of() == [*range(8, 25, 2), 25]


@hook_factory.register_hook("tests/stops_at_step_3")
class _Stopping(orbit.Hook):
    every_n_steps = 1

    def after_step(self):
        if self.controller.step == 3:
            self.controller.request_stop("enough")


def test_requested_stop_ends_the_current_pass_and_skips_the_remaining_passes(ends_of) -> None:
    assert ends_of(hooks=["tests/stops_at_step_3"], steps_per_loop=1) == [2, 3]


def test_paddlerec_run_resumed_within_a_pass_completes_that_pass_first(ends_of) -> None:
    ends_of(hooks=["tests/stops_at_step_3"], steps_per_loop=1)
    assert ends_of(steps_per_loop=1) == [*range(4, 25, 2), 25]
