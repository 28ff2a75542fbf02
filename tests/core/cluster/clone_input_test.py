"""The batches of the clones: which clone sees which, and where."""

import numpy as np
import pytest

from deeplab import common
from deeplab.core.base.tf_compat import tf
from deeplab.core.cluster.clone_input import CloneInput

_GPUS = ['/device:GPU:0', '/device:GPU:1']
_CPUS = ['/device:CPU:0'] * 2
_STEPS = 4
# Runs the graph of GPUs on the CPU.
_CONFIG = tf.ConfigProto(allow_soft_placement=True)


def _batches(devices):
  """CloneInput over batches filled with 0, 1, 2, ..., and the tensors of both clones, in the default graph."""
  def batch(number):
    label = tf.fill([2, 3, 3, 1], tf.cast(number, tf.int32))
    return {common.IMAGE: tf.cast(tf.tile(label, [1, 1, 1, 3]), tf.float32), common.LABEL: label, common.IMAGE_NAME: number}

  with tf.device('/device:CPU:0'):
    iterator = tf.data.make_one_shot_iterator(tf.data.Dataset.range(1000).map(batch))
    batches = CloneInput(iterator, (common.IMAGE, common.LABEL), devices)
    return batches, [batches.get_next() for _ in devices]


@pytest.mark.parametrize('devices', [_CPUS, _GPUS], ids=['cpu', 'gpu'])
def test_clones_take_turns(devices):
  with tf.Graph().as_default():
    batches, of_clones = _batches(devices)
    for batch in of_clones:
      assert {name: (tensor.dtype, tensor.shape.as_list()) for name, tensor in batch.items()} == {
          common.IMAGE: (tf.float32, [2, 3, 3, 3]), common.LABEL: (tf.int32, [2, 3, 3, 1])}
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(config=_CONFIG), [batches]) as session:
      for step in range(_STEPS):
        for clone, batch in enumerate(session.run(of_clones)):
          for value in batch.values():
            np.testing.assert_array_equal(value, step * len(devices) + clone)


def test_gpus_have_their_batches_on_themselves():
  with tf.Graph().as_default():
    for device, batch in zip(_GPUS, _batches(_GPUS)[1]):
      for tensor in batch.values():
        assert (tensor.op.type, tensor.device) == ('Unstage', device)


def test_session_that_follows_a_failed_one_has_no_batch_left_over():
  with tf.Graph().as_default():
    batches, of_clones = _batches(_GPUS)
    server = tf.train.Server.create_local_server(config=_CONFIG)
    for _ in range(2):
      # The second begins anew.
      with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(master=server.target), [batches]) as session:
        assert [batch[common.LABEL][0, 0, 0, 0] for batch in session.run(of_clones)] == [0, 1]
