import pytest

from official_lite import pipeline
from official_lite.common import errors
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
def test_stage_without_its_method_fails_where_it_is_defined(base, method) -> None:
    with pytest.raises(errors.ConfigTypeError, match=rf"`Forgetful`.*`{method}\(self, context\)`"):
        type("Forgetful", (base,), {})


def test_context_has_the_old_keys_and_the_new_attributes(context) -> None:
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


def test_earlier_phases_are_there_by_name(context) -> None:
    ctx = context()
    ctx.phase = "finetune"
    ctx.phases = {
        "pretrain": pipeline.FinishedPhase(
            name="pretrain", mode="train", model_dir="", trained_model="old"
        )
    }
    assert paddlerec.Context(ctx)["model"]["pretrain"]["model"] == "old"
    assert paddlerec.Context(ctx)["env"]["phase"] == [{"name": "finetune", "mode": "train"}]


def test_unknown_keys_are_answered_with_what_is_near(context) -> None:
    old = paddlerec.Context(context())
    with pytest.raises(errors.UnknownKeyError, match="`engine`"):
        old["engnie"]
    with pytest.raises(errors.UnknownKeyError, match="programs"):
        old["model"]["phase1"]["main_program"] = None
    with pytest.raises(errors.ConfigValueError, match="read"):
        old["engine"] = None


def test_status_is_the_stage_that_comes_next(context) -> None:
    class Startup(paddlerec.StartupBase):
        def startup(self, context):
            context["status"] = "terminal_pass"
            assert context["status"] == "terminal_pass"

    view = Startup.view(context())
    assert Startup(view)(view) == "finalize"


def test_unknown_status_fails_at_once(context) -> None:
    old = paddlerec.Context(context())
    with pytest.raises(errors.UnknownNameError, match="`train_pass`"):
        old["status"] = "trian_pass"


def test_one_pass_needs_the_length_of_an_epoch(experiment, tmp_path) -> None:
    class Runner(paddlerec.RunnerBase):
        def run(self, context):
            self._run(context)

    with pytest.raises(errors.ConfigValueError, match="steps_per_epoch"):
        pipeline.RunPipeline(experiment(), "train", str(tmp_path), {"run": Runner}).run()
