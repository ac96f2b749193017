import os

from official_lite import pipeline


def test_prepare_runs_before_anything_is_there_and_the_data_see_its_environment(
    experiment, tmp_path, monkeypatch
) -> None:
    class Prepare(pipeline.Prepare):
        def __call__(self, ctx):
            seen.append((ctx.strategy, ctx.task, ctx.model))
            monkeypatch.setitem(os.environ, "LINE_SLOPE", "-5.0")

    seen = []
    params = experiment(trainer={"train_steps": 100})
    model, _ = pipeline.RunPipeline(params, "train", str(tmp_path), {"prepare": Prepare}).run()
    assert seen == [(None, None, None)]
    assert -5.1 < float(model.layers[0].kernel[0, 0]) < -4.9
