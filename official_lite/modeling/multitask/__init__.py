"""Several tasks in one run: trained jointly or in turn, evaluated one after another.

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

A single task that is evaluated on several others goes through
`train_lib.run_experiment_with_multitask_eval`.
"""

__all__: list[str] = []
