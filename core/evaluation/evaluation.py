"""How a network is measured on a split: the graph that predicts it, and the confusion matrix over all images.

eval.py and the validation of train.py both go through here, so that they give the same figures.
"""

from typing import Any, NamedTuple

import numpy as np

from deeplab import common
from deeplab.core.base.tf_compat import tf
from deeplab.core.report import metrics
from deeplab.datasets import dataset_info

# Least probability in the loss; the smallest float32 has a logarithm, too.
_MIN_PROBABILITY = 1e-37


class Subject(NamedTuple):
  """What is evaluated.

  Attributes:
    descriptor: of the data set.
    split: name of the split.
    num_images: images that are seen.
    model_options: common.ModelOptions, its crop_size is the network input.
    resize: dict, flags of resizing -> value (run_options.RESIZE_FLAGS).
    crop_size: [height, width] into which images are padded, pixels.
    tile_size: [height, width] of the network input, pixels.
    scales: scales at which each image is seen.
    add_flipped_images: whether mirrored images take part.
  """
  descriptor: dataset_info.DatasetDescriptor
  split: str
  num_images: int
  model_options: Any
  resize: dict
  crop_size: list
  tile_size: list
  scales: tuple = (1.0,)
  add_flipped_images: bool = False

  @property
  def metric_name(self):
    """'miou', the scales, and whether mirrored images took part."""
    return '_'.join(['miou', *map(str, self.scales)]) + ('_flipped' if self.add_flipped_images else '')

  def facts(self, prefix, step):
    """What metrics.json says of it: dict of JSON values.

    Args:
      prefix: prefix of the checkpoint.
      step: its training step.
    """
    return {
        'checkpoint': prefix, 'step': step, 'dataset': self.descriptor.name, 'split': self.split, 'num_images': self.num_images,
        'ignore_label': self.descriptor.ignore_label, 'crop_size': self.crop_size, 'tile_size': self.tile_size,
        'output_stride': self.model_options.output_stride, 'atrous_rates': self.model_options.atrous_rates,
        'eval_scales': list(self.scales), 'add_flipped_images': self.add_flipped_images, 'resize': self.resize}


class Network(NamedTuple):
  """Ops and tensors that evaluate.

  Attributes:
    start: op that lets the samples begin at the first image.
    samples: dict of the next batch, keys of common.py.
    images: placeholder, float32 [batch, height, width, 3].
    labels: placeholder, int32 [batch, height, width].
    predictions: int64 [batch, height, width], classes of `images`.
    loss: float32 scalar, sum of the cross entropies of all pixels of `images` whose label is not ignored.
  """
  start: Any
  samples: dict
  images: Any
  labels: Any
  predictions: Any
  loss: Any


def build(dataset, predict, tile_size):
  """Adds a Network to the default graph.

  Args:
    dataset: data_generator.Dataset.
    predict: function, images -> (labels, probabilities), as model.predict.
    tile_size: (height, width) of the network input in pixels.
  """
  with tf.device('/device:CPU:0'):
    iterator = dataset.get_initializable_iterator()
    samples = iterator.get_next()
  images = tf.placeholder(tf.float32, [None, *tile_size, 3], common.IMAGE)
  labels = tf.placeholder(tf.int32, [None, *tile_size], common.LABEL)
  predictions, probabilities = predict(images)
  loss = _cross_entropy(probabilities, labels, dataset.ignore_label)
  return Network(iterator.initializer, samples, images, labels, predictions, loss)


def _cross_entropy(probabilities, labels, ignore_label):
  counted = tf.not_equal(labels, ignore_label)
  of_label = tf.gather(probabilities, tf.where(counted, labels, tf.zeros_like(labels)), batch_dims=3)
  losses = -tf.log(tf.maximum(of_label, _MIN_PROBABILITY))
  return tf.reduce_sum(tf.where(counted, losses, tf.zeros_like(losses)))


def sum_confusion(session, network, subject, predict, is_told):
  """Runs through the split once.

  Args:
    session: session on the graph of the network.
    network: Network.
    subject: Subject.
    predict: function, batch as dict of arrays -> int [batch, height, width], classes.
    is_told: function, number of images done -> whether to end now; called before each batch and after the last.

  Returns:
    int64 [classes, classes], pixels of label i predicted as j; None where it was told to end.
  """
  num_classes = subject.descriptor.num_classes
  confusion, done = np.zeros([num_classes] * 2, np.int64), 0
  session.run(network.start)
  while not is_told(done) and done < subject.num_images:
    batch = session.run(network.samples)
    predictions = predict(batch)
    confusion += metrics.confusion_matrix(batch[common.LABEL][..., 0], predictions, num_classes, subject.descriptor.ignore_label)
    done += len(predictions)
  return confusion if done >= subject.num_images else None
