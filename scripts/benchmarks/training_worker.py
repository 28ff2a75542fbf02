"""A process of scripts/benchmarks/benchmark_train.py: builds one training step and times it whenever it is told to.

    python scripts/benchmarks/training_worker.py KIND INPUT FLAGS...

KIND is one of KINDS, INPUT `fixed` (the same batch each step) or `records` (the input pipeline), FLAGS are those of train.py.
It writes a JSON object to stdout when it has trained the first step; then it reads a number of steps per line from stdin and
writes the seconds of each step, and ends with its input.
"""

import collections
import json
import os
import pathlib
import resource
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

# train.py as it is; the graph, kernels and allocator of the earlier code on this TensorFlow; the twin in PyTorch.
KINDS = ('train', 'unchanged', 'pytorch')
_MATRIX_SIDE = 2048
_NUM_CLASSES = 21


def peak_megabytes():
  """Peak of the memory of this process."""
  # Kilobytes, on macOS bytes.
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == 'darwin' else 2**10)


class _FixedBatch:
  """Gives the same random images and labels again and again, as the iterator of a data set."""

  def __init__(self, tf, common, batch_size, crop_size):
    random = np.random.RandomState(0)
    self._tf = tf
    self._values = {common.IMAGE: random.uniform(0, 255, [batch_size, *crop_size, 3]).astype(np.float32),
                    common.LABEL: random.randint(0, _NUM_CLASSES, [batch_size, *crop_size, 1]).astype(np.int32)}

  def get_next(self):
    # Local variables: a constant would be copied into the graph, and what depends on it alone be computed once.
    return {name: self._tf.stop_gradient(self._tf.get_variable(
        f'fixed_{name}', initializer=value, trainable=False, collections=[self._tf.GraphKeys.LOCAL_VARIABLES]))
            for name, value in self._values.items()}


class TensorFlowStep:
  """The training step of train.py.

  Attribute `seconds`: what each part of the start took.
  """

  def __init__(self, is_unchanged, uses_records, argv):
    start = time.monotonic()
    if is_unchanged:
      import tensorflow  # noqa: F401  Decides on its kernels before deeplab asks for others.
    from deeplab import common, train
    from deeplab.core.base import host_memory
    from deeplab.core.base.tf_compat import tf
    self._tf = tf
    if is_unchanged:
      from benchmarks import unchanged_graph
      unchanged_graph.install()
    else:
      host_memory.keep_freed_memory()
    imported = time.monotonic()
    train.FLAGS([sys.argv[0], *argv])
    with tf.Graph().as_default() as self._graph:
      self._train_tensor = self._build(train, common, uses_records)
      built = time.monotonic()
      config = train.session_config()
      self._session = tf.Session(config=config)
      self._session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    opened = time.monotonic()
    self.run()
    self.seconds = {'import': imported - start, 'graph': built - imported, 'session': opened - built,
                    'first step': time.monotonic() - opened}

  def _build(self, train, common, uses_records):
    flags = train.FLAGS
    if uses_records:
      cluster = train.train_flags.cluster()
      iterator = train._build_dataset(cluster).get_one_shot_iterator()
    else:
      crop_size = common.parse_size(flags.train_crop_size, 'train_crop_size')
      iterator = _FixedBatch(self._tf, common, flags.train_batch_size // flags.num_clones, crop_size)
    return train._train_deeplab_model(iterator, _NUM_CLASSES, ignore_label=255)[0]

  def run(self):
    """Trains one step; returns the loss."""
    return self._session.run(self._train_tensor)

  def trace(self):
    """Seconds of one step by the type of op, largest first; parallel ops count each."""
    tf, metadata = self._tf, self._tf.RunMetadata()
    self._session.run(self._train_tensor, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
    seconds = collections.Counter()
    for device in metadata.step_stats.dev_stats:
      for node in device.node_stats:
        # "name = type(inputs)"
        name, _, call = node.timeline_label.partition(' = ')
        seconds[call.partition('(')[0] or name] += node.all_end_rel_micros / 1e6
    return dict(seconds.most_common())

  def multiply_adds(self):
    """Multiplications of the convolutions of one step: forwards, and twice that for both gradients."""
    import list_models
    return 3 * list_models.multiply_adds(self._graph)

  def matrix_product_speed(self):
    """Multiply-adds per second of a product of large float32 matrices."""
    tf = self._tf
    with self._graph.as_default():
      matrix = tf.ones([_MATRIX_SIDE, _MATRIX_SIDE]) * tf.random.uniform([])
      product = tf.linalg.matmul(matrix, matrix).op
    seconds = []
    for _ in range(6):
      start = time.monotonic()
      self._session.run(product)
      seconds.append(time.monotonic() - start)
    return _MATRIX_SIDE ** 3 / min(seconds)


class PyTorchStep:
  """The training step of the twin; it takes the size of network, crop and batch from the flags."""

  def __init__(self, argv):
    values = dict(argument.lstrip('-').split('=', 1) for argument in argv)
    start = time.monotonic()
    from benchmarks import pytorch_twins
    imported = time.monotonic()
    self.run = pytorch_twins.training_step(values['model_variant'], int(values['train_crop_size'].split(',')[0]),
                                           int(values['train_batch_size']))
    built = time.monotonic()
    self.run()
    self.seconds = {'import': imported - start, 'graph': built - imported, 'first step': time.monotonic() - built}


def _serve(step):
  for line in sys.stdin:
    seconds = []
    for _ in range(int(line)):
      start = time.monotonic()
      step.run()
      seconds.append(time.monotonic() - start)
    _tell({'seconds': seconds})


def _tell(message):
  print(json.dumps(message), flush=True)


def _describe(kind, step, uses_records):
  """What is told after the first step."""
  description = {'start': step.seconds, 'peak_megabytes': peak_megabytes()}
  if kind != 'pytorch':
    step.run()
    description['peak_megabytes'] = peak_megabytes()
    description['seconds_by_op'] = step.trace()
    if not uses_records:
      description.update(multiply_adds=step.multiply_adds(), multiply_adds_per_second=step.matrix_product_speed())
  return description


def main(kind, input_name, argv):
  uses_records = input_name == 'records'
  step = PyTorchStep(argv) if kind == 'pytorch' else TensorFlowStep(kind == 'unchanged', uses_records, argv)
  _tell(_describe(kind, step, uses_records))
  _serve(step)
  # Threads of the input pipeline would be waited for.
  os._exit(0)


if __name__ == '__main__':
  main(sys.argv[1], sys.argv[2], sys.argv[3:])
