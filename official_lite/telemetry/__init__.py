"""Metrics reporting: an `EventStorage` that collects values, and writers that publish them.

Any code that runs inside a step, and every hook, can record values::

    class Encoder(keras.layers.Layer):
        def call(self, inputs, training=False):
            outputs = self.mix(inputs)
            if training:
                telemetry.put_scalar("encoder/norm", tf.norm(outputs))
            return outputs

Values recorded since the last report become part of the next `Record`, which every `Writer`
receives::

    with telemetry.MultiWriter([
        telemetry.JsonLinesWriter("runs/mnist/metrics.json"),
        telemetry.TensorBoardWriter("runs/mnist"),
        telemetry.build_console_writer(total_steps=1000),
    ]) as writer:
        writer.write(telemetry.Record(step=10, split="train", values={"loss": 0.5}))

To add a custom destination, subclass `Writer` and implement `write`.
"""

from official_lite.common import plugins

__getattr__, __all__ = plugins.attach_stub(__name__, __file__)
