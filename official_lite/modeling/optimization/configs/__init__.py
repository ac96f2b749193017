"""What an optimizer and its learning rate are made from: plain values, without TensorFlow."""

__all__: list[str] = []
