"""Imports everything that registers an experiment. Only configs: TensorFlow is not needed here.

A project of one's own has such a file too, or names its modules with `--import`.
"""

# Imported for their registrations.
import experiments.language.bert_pretraining.configs
import experiments.language.char_gpt.configs
import experiments.language.gpt2.configs
import experiments.language.gpt_stdlib.configs
import experiments.nas.digits.configs
import experiments.recommendation.deepfm.configs
import experiments.recommendation.dlrm.configs
import experiments.recommendation.tdm.configs
import experiments.vision.digits.configs
import experiments.vision.digits_multitask.configs
import experiments.vision.digits_pretraining.configs
import experiments.vision.resnet_cifar10.configs
import experiments.vision.resnet_imagenet.configs  # noqa: F401
