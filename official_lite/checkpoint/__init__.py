"""Checkpoints of a run, and weights loaded from other runs and frameworks.

To load the weights of a Model Garden (Keras 2) checkpoint::

    from official_lite.checkpoint import keras2_converter

    report = keras2_converter.restore_keras2_checkpoint(model, "model_dir_of_tfm")
"""
