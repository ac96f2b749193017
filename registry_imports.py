"""Import all modules that register experiments. These contain configs and need no TensorFlow.

Your own project needs a file like this one, or passes `--import my_package` on the command line.
"""

# Importing these modules registers their experiments.
import experiments.language.bert_pretraining.configs
import experiments.language.char_gpt.configs
import experiments.language.gpt2.configs
import experiments.language.gpt_stdlib.configs
import experiments.nas.digits.configs
import experiments.nas.fashion_mnist.configs
import experiments.recommendation.deepfm.configs
import experiments.recommendation.dlrm.configs
import experiments.recommendation.ml100k.configs
import experiments.recommendation.tdm.configs
import experiments.sequence.mnist1d.configs
import experiments.tabular.configs
import experiments.vision.digits.configs
import experiments.vision.digits_multitask.configs
import experiments.vision.digits_pretraining.configs
import experiments.vision.fashion_mnist.configs
import experiments.vision.resnet_cifar10.configs
import experiments.vision.resnet_imagenet.configs  # noqa: F401
