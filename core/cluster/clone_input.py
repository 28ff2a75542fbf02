"""What the clones are trained on: one input pipeline, from which each takes its batches in a fixed order."""

from deeplab.core.base.tf_compat import tf


class CloneInput(tf.train.SessionRunHook):
  """Hands the batches of an iterator to the clones in turn: clone 0, clone 1, ..., once per step.

  A clone on a GPU finds its batch there: as a hook of the training session this object copies the batches of the next step while
  the present one is computed. Without the hook such a clone waits for ever.
  """

  def __init__(self, iterator, keys, devices):
    """Adds nothing to the graph yet.

    Args:
      iterator: on the CPU; gives dicts and never ends.
      keys: keys of these dicts, what the clones need.
      devices: device name of each clone, such as /device:GPU:0.
    """
    self._iterator = iterator
    self._keys = keys
    self._devices = devices
    self._batches = []
    # What fetches the batches of the next step; whatever runs the clones outside of the hooks runs them, too.
    self.fetch_ops = []
    self._clear_ops = []

  def get_next(self):
    """The batch of the next clone: dict of `keys`, as the iterator gives them.

    Call it once for each clone, in their order.
    """
    clone = len(self._batches)
    # Clones that reached for the pipeline at the same time would swap their batches from run to run.
    with tf.control_dependencies(self._batches[-1:]):
      samples = self._iterator.get_next()
    batch = [samples[key] for key in self._keys]
    self._batches.append(batch[0].op)
    if 'GPU' in self._devices[clone]:
      batch = self._prefetched(batch, clone)
    return dict(zip(self._keys, batch))

  def _prefetched(self, batch, clone):
    """Tensors that lie on the device of the clone since the step before."""
    area = {'dtypes': [tensor.dtype for tensor in batch], 'shared_name': f'batch_of_clone_{clone}'}
    with tf.device(self._devices[clone]):
      self.fetch_ops.append(tf.raw_ops.Stage(values=batch, shared_name=area['shared_name']))
      self._clear_ops.append(tf.raw_ops.StageClear(**area))
      prefetched = tf.raw_ops.Unstage(**area)
    for tensor, source in zip(prefetched, batch):
      tensor.set_shape(source.shape)
    return prefetched

  def after_create_session(self, session, coord):
    if self.fetch_ops:
      # A server outlives its sessions: batches of one that has failed would be a step too many.
      session.run(self._clear_ops)
      session.run(self.fetch_ops)

  def before_run(self, run_context):
    return tf.train.SessionRunArgs(self.fetch_ops)
