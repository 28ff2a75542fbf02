"""Losses and their gradients against the earlier code under TensorFlow 1.15."""

import golden
import numpy as np
import pytest

from deeplab import train_utils
from deeplab.core.base.tf_compat import tf

_CASES = golden.load('losses.json')


def _inputs(case):
  """Logits and labels, drawn by the rule by which the figures were made."""
  random = np.random.RandomState(7)
  logits = 3 * random.standard_normal([2, *case['logits_size'], case['num_classes']])
  labels = random.randint(0, case['num_classes'], [2, *case['label_size'], 1])
  labels[random.random_sample(labels.shape) < 0.1] = case['ignore_label']
  return logits.astype(np.float32), labels.astype(np.int32)


@pytest.mark.parametrize('case', _CASES, ids=lambda case: case['name'])
def test_loss_and_gradient(case):
  logits, labels = _inputs(case)
  with tf.Graph().as_default(), tf.Session() as session:
    logits = tf.constant(logits)
    global_step = tf.train.create_global_step()
    train_utils.add_softmax_cross_entropy_loss_for_each_scale(
        {'merged_logits': logits}, tf.constant(labels), case['num_classes'], case['ignore_label'], scope='semantic',
        **case['args'])
    loss, = tf.losses.get_losses()
    global_step.load(case['global_step'], session)
    loss, gradient = session.run([loss, tf.gradients(loss, logits)[0]])
  expected = case['gradient']
  sample = np.linspace(0, gradient.size - 1, len(expected['values'])).astype(np.int64)
  np.testing.assert_allclose(loss, case['loss'], rtol=1e-5)
  np.testing.assert_allclose(gradient.std(), expected['std'], rtol=1e-5)
  np.testing.assert_allclose([gradient.min(), gradient.max()], [expected['min'], expected['max']], rtol=1e-5)
  np.testing.assert_allclose(gradient.flatten()[sample], expected['values'], rtol=1e-5, atol=1e-5 * expected['std'])
