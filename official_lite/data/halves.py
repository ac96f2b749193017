"""Halves of the training data: an architecture search trains weights on one half only.

A source that shuffles before it divides its data among input pipelines gives a pipeline other
examples in each epoch. A half must consist of the same examples in every epoch, so a source that
shuffles first calls `split`.
"""

import tensorflow as tf

__all__ = ["MIN_PARTS", "HalfContext", "split"]

# The minimum number of files or chunks per half. If there are fewer, each half reads every second
# record or row instead of whole files or chunks: a few files may differ too much in size and
# content, for example if each contains a single class.
MIN_PARTS = 16


class HalfContext(tf.distribute.InputContext):
    """The context of an input pipeline that reads one half of the training data.

    For a source that does not call `split`, it looks as if each pipeline were two pipelines, one
    for each half. All counts are doubled, so the number of replicas per pipeline stays the same.

    Args:
        whole: The context of the pipeline.
        half: The index of the half, 0 or 1.

    Attributes:
        whole: The context of the pipeline.
        half: The index of the half, 0 or 1.
    """

    def __init__(self, whole: tf.distribute.InputContext, half: int) -> None:
        super().__init__(
            num_input_pipelines=2 * whole.num_input_pipelines,
            input_pipeline_id=2 * whole.input_pipeline_id + half,
            num_replicas_in_sync=2 * whole.num_replicas_in_sync,
        )
        self.whole = whole
        self.half = half


def split(
    input_context: tf.distribute.InputContext | None,
) -> tuple[slice, tf.distribute.InputContext | None]:
    """Return the slice of the data that a pipeline shares, and the context for sharing it.

    Apply the slice before shuffling. It selects everything if the data are not halved.
    """
    if isinstance(input_context, HalfContext):
        return slice(input_context.half, None, 2), input_context.whole
    return slice(0, None, 1), input_context
