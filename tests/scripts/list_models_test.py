"""The tables that scripts/list_models.sh prints, against the code and the figures published with the checkpoints."""

import pathlib

import numpy as np
import pytest
import script_module
import tiny_run
from absl import flags
from absl.testing import flagsaver

from deeplab import common, export_model, model
from deeplab.core.base.tf_compat import tf
from deeplab.core.networks import feature_extractor

_ROOT = pathlib.Path(__file__).parents[2]
list_models = script_module.load('list_models.py')

common.define_network_flags()
_README = (_ROOT / 'README.md').read_text(encoding='utf-8').splitlines()
_CLASSES = {'PASCAL VOC': 21, 'Cityscapes': 19, 'ADE20K': 151}


def _arguments(row):
  return row.flags.replace('json=core/', f'json={_ROOT}/core/').split()


def _options(row, crop_size):
  flags.FLAGS(['list_models', *_arguments(row)])
  return common.ModelOptions({common.OUTPUT_TYPE: _CLASSES.get(row.trained_on, 21)}, crop_size, flags.FLAGS.atrous_rates,
                             flags.FLAGS.output_stride)


@pytest.mark.parametrize('row', list_models.PUBLISHED, ids=lambda row: row.name)
def test_flags_of_published_checkpoints_go_together(row):
  options = _options(row, [513, 513])
  model.check_options(options)
  assert options.model_variant in row.flags


_SMALL = ('mobilenetv2_dm05_coco_voc_trainaug', 'mobilenetv3_small_cityscapes_trainfine', 'EdgeTPU-DeepLab-slim')
_LARGE = [row.name for row in list_models.PUBLISHED if row.trained_on in _CLASSES and row.name not in _SMALL]


@pytest.mark.parametrize('name', [*_SMALL, *(pytest.param(name, marks=pytest.mark.full) for name in _LARGE)])
def test_published_checkpoint_is_exported_by_its_flags(name, tmp_path):
  """One of random weights, with the published command line and no description beside it."""
  row = next(row for row in list_models.PUBLISHED if row.name == name)
  with tf.Graph().as_default(), tf.Session() as session, flagsaver.flagsaver():
    options = _options(row, None)
    # The head of MobileNetV3 pools over a window of fixed size.
    crop_size = options.image_pooling_crop_size or [65, 65]
    model.multi_scale_logits(tf.placeholder(tf.float32, [1, *crop_size, 3]), options._replace(crop_size=crop_size), None)
    session.run(tf.global_variables_initializer())
    tf.train.Saver().save(session, str(tmp_path / 'model.ckpt'))
  code, log = tiny_run.run(export_model, f'--checkpoint_path={tmp_path}/model.ckpt', *_arguments(row),
                           f'--crop_size={crop_size[0]}', f'--export_path={tmp_path}/graph.pb')
  assert not code, log
  graph_def = tf.GraphDef.FromString((tmp_path / 'graph.pb').read_bytes())
  with tf.Graph().as_default(), tf.Session() as session:
    probabilities, = session.run(tf.import_graph_def(graph_def, {}, ['SemanticProbabilities:0'], name=''),
                                 {'ImageTensor:0': np.full([1, 60, 50, 3], 127, np.uint8)})
  assert probabilities.shape == (1, 60, 50, _CLASSES[row.trained_on])
  np.testing.assert_allclose(probabilities.sum(axis=3), 1, atol=1e-5)


@pytest.mark.parametrize('name,published', [
    ('mobilenetv2_coco_voc_trainaug', 2.75),
    ('mobilenetv2_dm05_coco_voc_trainaug', 0.88),
    ('EdgeTPU-DeepLab', 5.6),
])
def test_multiply_adds_are_those_published(name, published):
  row = next(row for row in list_models.PUBLISHED if row.name == name)
  with tf.Graph().as_default() as graph:
    options = _options(row, [513, 513])._replace(outputs_to_num_classes={common.OUTPUT_TYPE: 21})
    model.multi_scale_logits(tf.placeholder(tf.float32, [1, 513, 513, 3]), options, None)
    assert list_models.multiply_adds(graph) / 1e9 == pytest.approx(published, rel=0.02)


_QUICK = ('mobilenet_v2', 'mobilenet_v3_small_seg', 'mobilenet_edgetpu')


@pytest.mark.parametrize('name', [
    name if name in _QUICK else pytest.param(name, marks=pytest.mark.full) for name in feature_extractor.BACKBONES])
def test_table_of_readme(name):
  assert list_models.backbone_row(name) in _README


def test_table_of_readme_has_every_backbone():
  listed = [line.split(' | ')[0].removeprefix('| ') for line in _README if ' B | ' in line]
  assert listed == list(feature_extractor.BACKBONES)
