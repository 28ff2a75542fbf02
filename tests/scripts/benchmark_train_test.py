"""scripts/benchmarks/benchmark_train.py: a small run, and the losses of its unchanged graph."""

import json
import subprocess
import sys

import numpy as np
import pytest
import script_module

from deeplab import common, model, train_utils
from deeplab.core.base.tf_compat import tf

list_models = script_module.load('list_models.py')
unchanged_graph = script_module.load('benchmarks/unchanged_graph.py')

_BATCH, _CROP = 2, 65


@pytest.fixture(scope='module')
def rows(tmp_path_factory):
  path = tmp_path_factory.mktemp('benchmark') / 'figures.json'
  finished = subprocess.run(
      [sys.executable, str(script_module.SCRIPTS / 'benchmarks' / 'benchmark_train.py'), '--rounds=2', '--steps=1',
       f'--json={path}', '--setting=', '--setting=unchanged', '--', '--model_variant=mobilenet_v2',
       f'--train_crop_size={_CROP},{_CROP}', f'--train_batch_size={_BATCH}'],
      capture_output=True, text=True)
  assert finished.returncode == 0, finished.stderr
  return json.loads(path.read_text()), finished.stdout


def test_settings_are_compared(rows):
  figures, table = rows
  ours, unchanged = figures
  assert [row['setting'] for row in figures] == ['train.py', 'unchanged']
  assert ours['seconds_over_first'] == 1.0
  assert unchanged['seconds_over_first'] > 0.0
  assert 'SparseSoftmaxCrossEntropyWithLogits' in ours['seconds_by_op']
  assert 'SoftmaxCrossEntropyWithLogits' in unchanged['seconds_by_op']
  for row in figures:
    assert row['images_per_second'] == pytest.approx(_BATCH / row['seconds_per_step'])
    assert row['end_to_end_seconds'] > 0.0
    assert 0.0 <= row['input_wait_share'] < 1.0
    assert row['peak_megabytes'] > 100
    assert sum(row['start'].values()) > 0.0
    assert f'{row["seconds_per_step"]:.3f}' in table


def test_multiply_adds_are_those_of_the_network(rows):
  with tf.Graph().as_default() as graph:
    options = common.ModelOptions({common.OUTPUT_TYPE: 21}, [_CROP, _CROP], None, 16, model_variant='mobilenet_v2')
    model.multi_scale_logits(tf.placeholder(tf.float32, [_BATCH, _CROP, _CROP, 3]), options, image_pyramid=None)
    forwards = list_models.multiply_adds(graph)
  assert [row['multiply_adds'] for row in rows[0]] == [3 * forwards] * 2


def test_losses_of_the_unchanged_graph_are_ours():
  random = np.random.RandomState(1)
  logits = random.normal(size=[2, 9, 9, 5]).astype(np.float32)
  labels = random.choice([0, 1, 2, 3, 4, 255], size=[2, 9, 9]).astype(np.int32)
  with tf.Session() as session:
    losses = [session.run(module._pixel_losses(tf.constant(logits), tf.constant(labels), 255))
              for module in (train_utils, unchanged_graph)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    hardest = [session.run(module._is_among_largest(tf.constant(losses[0].ravel()), 30))
               for module in (train_utils, unchanged_graph)]
  np.testing.assert_array_equal(*hardest)
  assert hardest[0].sum() == 30
