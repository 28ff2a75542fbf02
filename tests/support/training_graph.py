"""Training graphs of whole networks with the weights and inputs of golden.py: what the tests of types and of memory share.

`python tests/training_graph.py RECOMPUTE` runs one step of mobilenet_v2 and prints the most memory it took, in kilobytes.
"""

import pathlib
import re
import sys
from typing import Any, NamedTuple

import golden

from deeplab import common, model, train_utils
from deeplab.core.base.tf_compat import tf


class Graph(NamedTuple):
  """Tensors of one training graph, before any gradient."""
  logits: Any
  cross_entropy: Any
  penalty: Any
  update_ops: list


def figures(name):
  return golden.load(f'architectures/{name}.json')


def build(case, fine_tune_batch_norm, dtype=tf.float32, recompute_grad=False, batch=4):
  """Builds the network of a golden case in the default graph; Graph."""
  num_classes = case.get('num_classes', 21)
  options = common.ModelOptions({common.OUTPUT_TYPE: num_classes}, case['crop_size'], case.get('atrous_rates'),
                                case.get('output_stride', 16), preprocessed_images_dtype=dtype, **case['flags'])
  image, label = golden.inputs(case['crop_size'], num_classes, batch)
  logits = model.multi_scale_logits(
      tf.constant(image), options, None, 4e-5, is_training=True, fine_tune_batch_norm=fine_tune_batch_norm,
      nas_training_hyper_parameters={'drop_path_keep_prob': 1.0, 'total_training_steps': 10},
      recompute_grad=recompute_grad)[common.OUTPUT_TYPE]
  train_utils.add_softmax_cross_entropy_loss_for_each_scale(logits, tf.constant(label), num_classes, 255,
                                                            scope=common.OUTPUT_TYPE)
  return Graph(logits[model.MERGED_LOGITS_SCOPE], tf.add_n(tf.losses.get_losses()), tf.losses.get_regularization_loss(),
               tf.get_collection(tf.GraphKeys.UPDATE_OPS))


def _print_peak_memory(recompute_grad):
  case = {'crop_size': [513, 513], 'flags': {'model_variant': 'mobilenet_v2'}}
  graph = build(case, True, recompute_grad=recompute_grad, batch=2)
  gradients = tf.gradients(graph.cross_entropy, tf.trainable_variables())
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run([gradient.op for gradient in gradients])
  # Linux; what getrusage tells also counts the process that started this one.
  print(re.search(r'VmHWM:\s*(\d+) kB', pathlib.Path('/proc/self/status').read_text())[1])


if __name__ == '__main__':
  _print_peak_memory(sys.argv[1] == 'true')
