"""Multi-task runs: several tasks trained jointly or interleaved, and evaluated in turn.

::

    task = multitask.MultiTask.from_config(params.task)
    train_lib.run_experiment(
        distribution_strategy=strategy,
        task=task,
        model=MyMultiTaskModel(),
        mode="train_and_eval",
        params=params,
        model_dir=model_dir,
    )

To train a single task and evaluate it on several tasks, use
`train_lib.run_experiment_with_multitask_eval`.
"""
