"""The training graph as the earlier code would build it, for scripts/benchmarks/benchmark_train.py to compare with.

Labels are one-hot vectors, all losses of a batch are sorted for the hardest, the gradients of clones are stacked, and variables
are of the reference kind.
"""

from deeplab import train, train_utils
from deeplab.core.base.tf_compat import tf


def _pixel_losses(logits, labels, ignore_label):
  num_classes = logits.shape[-1].value
  keep = tf.not_equal(tf.reshape(labels, [-1]), ignore_label)
  targets = tf.one_hot(tf.where(keep, tf.reshape(labels, [-1]), tf.zeros_like(keep, tf.int32)), num_classes)
  losses = tf.nn.softmax_cross_entropy_with_logits_v2(labels=tf.stop_gradient(targets),
                                                      logits=tf.reshape(logits, [-1, num_classes]))
  return tf.reshape(losses, tf.shape(labels))


def _is_among_largest(values, k):
  _, indices = tf.nn.top_k(values, k=k, sorted=True)
  return tf.scatter_nd(indices[:, tf.newaxis], tf.ones_like(indices, tf.bool), tf.shape(values))


def _average_gradients(tower_grads):
  return [(tf.reduce_mean(tf.stack([gradient for gradient, _ in of_clones]), axis=0), of_clones[0][1])
          for of_clones in zip(*tower_grads) if of_clones[0][0] is not None]


def install():
  """Puts these functions in the place of those of train.py; for a process that does nothing else."""
  tf.disable_resource_variables()
  train_utils._pixel_losses = _pixel_losses
  train_utils._is_among_largest = _is_among_largest
  train._average_gradients = _average_gradients
