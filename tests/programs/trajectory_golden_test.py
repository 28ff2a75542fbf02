"""Several training steps in a row against those of the TensorFlow 1.15 code, through train._train_deeplab_model.

The momentum runs go on from a checkpoint that TensorFlow 1.15 wrote. It is not part of the repository: they run where the
environment variable DEEPLAB_REFERENCE_DIR names the folder that holds it. The Adam run needs no file.
"""

import os
import pathlib

import golden
import numpy as np
import pytest
from absl import flags

from deeplab import train
from deeplab.core.base.tf_compat import slim, tf

FLAGS = flags.FLAGS
_CASES = {case['name']: case for case in golden.load('trajectories.json')}
_REFERENCE_DIR = os.environ.get('DEEPLAB_REFERENCE_DIR')
_FLAGS = ('optimizer', 'model_variant', 'depth_multiplier', 'output_stride', 'weight_decay', 'fine_tune_batch_norm',
          'base_learning_rate', 'learning_policy', 'training_number_of_steps', 'learning_power', 'momentum',
          'last_layer_gradient_multiplier')


class _Batches:
  """An iterator over given batches, one placeholder pair for each clone."""

  def __init__(self, case):
    self._case = case
    self.clones = []

  def get_next(self):
    size = [self._case['batch_per_clone'], *self._case['crop_size']]
    sample = {'image': tf.placeholder(tf.float32, size + [3]), 'label': tf.placeholder(tf.int32, size + [1])}
    self.clones.append(sample)
    return sample

  def feed(self, step):
    feed = {}
    for clone, sample in enumerate(self.clones):
      seed = self._case['seed0'] + step * self._case['clones'] + clone
      image, label = golden.inputs(self._case['crop_size'], 21, self._case['batch_per_clone'], seed)
      feed.update({sample['image']: image, sample['label']: label})
    return feed


def _set_flags(case):
  for name in _FLAGS:
    setattr(FLAGS, name, case[name])
  FLAGS.num_clones = case['clones']
  FLAGS.clone_on_cpu = True
  FLAGS.train_crop_size = case['crop_size']


def _start(case, session):
  session.run(tf.global_variables_initializer())
  if case['start'] == 'recipe weights':
    golden.assign_weights(session, tf.model_variables())
  else:
    tf.train.Saver().restore(session, str(pathlib.Path(_REFERENCE_DIR) / case['start']))


def _run(case):
  """[(global step, loss)] before each update, and the model variables at the end."""
  with tf.Graph().as_default(), tf.Session() as session:
    batches = _Batches(case)
    train_tensor, _ = train._train_deeplab_model(batches, 21, 255)
    _start(case, session)
    steps = [(session.run(tf.train.get_global_step()), session.run(train_tensor, batches.feed(k)))
             for k in range(len(case['steps']))]
    return steps, session.run({v.op.name: v for v in tf.model_variables()})


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[] if case['start'] == 'recipe weights' else pytest.mark.skipif(
        not _REFERENCE_DIR, reason='DEEPLAB_REFERENCE_DIR is not set')) for name, case in _CASES.items()])
def test_trajectory(name, monkeypatch):
  monkeypatch.setattr(slim, 'dropout', lambda inputs, *args, **kwargs: inputs)
  case = _CASES[name]
  _set_flags(case)
  steps, variables = _run(case)
  assert [step for step, _ in steps] == [row['global_step'] for row in case['steps']]
  # Adam divides by the size of the gradient, and so by its rounding noise.
  tolerance = 3e-3 if case['optimizer'] == 'adam' else 2e-4
  np.testing.assert_allclose([loss for _, loss in steps], [row['cross_entropy'] + row['regularization'] for row in case['steps']],
                             rtol=tolerance)
  if case['optimizer'] == 'adam':
    return
  for variable, (_, expected_norm) in case['final_variables_sum_and_l2'].items():
    np.testing.assert_allclose(np.linalg.norm(variables[variable]), expected_norm, rtol=1e-4, err_msg=variable)
