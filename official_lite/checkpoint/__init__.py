"""What a run saves besides its variables, and how weights come in from elsewhere.

The weights of a Model Garden (Keras 2) checkpoint::

    from official_lite.checkpoint import keras2_converter

    report = keras2_converter.restore_keras2_checkpoint(model, "model_dir_of_tfm")
"""

__all__: list[str] = []
