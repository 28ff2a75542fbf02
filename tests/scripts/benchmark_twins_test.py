"""The networks of scripts/benchmarks/pytorch_twins.py are those of the graph: same parameters, same logits."""

import math

import numpy as np
import pytest
import script_module
from golden import assign_weights

from deeplab import common, model
from deeplab.core.base.tf_compat import tf
from deeplab.core.layers import utils

torch = pytest.importorskip('torch')

pytorch_twins = script_module.load('benchmarks/pytorch_twins.py')

# At 321 pixels every atrous rate sees more than its centre.
_CLASSES, _CROP = 21, 321
_FLAGS = {'mobilenet_v2': {}, 'xception_65': {'atrous_rates': [6, 12, 18], 'decoder_output_stride': [4]}}


def _graph_run(model_variant, images):
  """The graph's trainable variables and moving averages, in order, as PyTorch lays them out, and its logits."""
  with tf.Graph().as_default(), tf.Session() as session:
    options = common.ModelOptions({common.OUTPUT_TYPE: _CLASSES}, [_CROP, _CROP], output_stride=16, model_variant=model_variant,
                                  **_FLAGS[model_variant])
    logits = model.multi_scale_logits(tf.constant(images), options, None)[common.OUTPUT_TYPE][model.MERGED_LOGITS_SCOPE]
    assign_weights(session, tf.model_variables())
    trainable = [_pytorch_layout(variable.op.name, value)
                 for variable, value in zip(tf.trainable_variables(), session.run(tf.trainable_variables()), strict=True)]
    averages = session.run([variable for variable in tf.model_variables() if variable not in set(tf.trainable_variables())])
    return trainable, averages, session.run(utils.resize_to(logits, [_CROP, _CROP]))


def _pytorch_layout(name, value):
  if value.ndim < 4:
    return value
  return value.transpose(2, 3, 0, 1) if name.endswith('depthwise_weights') else value.transpose(3, 2, 0, 1)


def _assign(tensors, values):
  with torch.no_grad():
    for tensor, value in zip(tensors, values, strict=True):
      assert tensor.shape == value.shape
      tensor.copy_(torch.from_numpy(value))


@pytest.mark.parametrize('model_variant', _FLAGS)
def test_parameters_and_logits_are_those_of_the_graph(model_variant):
  images = np.random.RandomState(0).uniform(0, 255, [1, _CROP, _CROP, 3]).astype(np.float32)
  trainable, averages, expected = _graph_run(model_variant, images)
  network = pytorch_twins.NETWORKS[model_variant](_CLASSES).eval()
  _assign(network.parameters(), trainable)
  _assign([buffer for buffer in network.buffers() if buffer.ndim], averages)
  with torch.no_grad():
    logits = network(torch.from_numpy(images / 127.5 - 1).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).numpy()
  np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * expected.std())


def test_every_network_is_compared():
  assert set(_FLAGS) == set(pytorch_twins.NETWORKS)


def test_steps_lower_the_loss_of_chance():
  torch.manual_seed(0)
  step = pytorch_twins.training_step('mobilenet_v2', crop_size=33, batch_size=4)
  losses = [step() for _ in range(8)]
  assert losses[0] == pytest.approx(math.log(21), abs=0.3)
  assert losses[-1] < losses[0] - 0.01
