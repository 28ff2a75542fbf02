"""The tables that scripts/list_models.sh prints, against the code and the figures published with the checkpoints."""

import importlib.util
import pathlib

import pytest
from absl import flags

from deeplab import common, model
from deeplab.core import feature_extractor
from deeplab.core.tf_compat import tf

_ROOT = pathlib.Path(__file__).parent.parent
_SPEC = importlib.util.spec_from_file_location('list_models', _ROOT / 'scripts' / 'list_models.py')
list_models = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(list_models)

common.define_network_flags()
_CLASSES = {'PASCAL VOC': 21, 'Cityscapes': 19, 'ADE20K': 151}


def _options(row, crop_size):
  arguments = row.flags.replace('json=core/', f'json={_ROOT}/core/').split()
  flags.FLAGS(['list_models', *arguments])
  return common.ModelOptions({common.OUTPUT_TYPE: _CLASSES.get(row.trained_on, 21)}, crop_size, flags.FLAGS.atrous_rates,
                             flags.FLAGS.output_stride)


@pytest.mark.parametrize('row', list_models.PUBLISHED, ids=lambda row: row.name)
def test_flags_of_published_checkpoints_go_together(row):
  options = _options(row, [513, 513])
  model.check_options(options)
  assert options.model_variant in row.flags


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


def test_readme_lists_every_backbone():
  readme = (_ROOT / 'README.md').read_text(encoding='utf-8')
  for name, backbone in feature_extractor.BACKBONES.items():
    row = next(line for line in readme.splitlines() if line.startswith(f'| {name} |'))
    assert row.split(' | ')[3:] == [', '.join(map(str, sorted(backbone.output_strides))),
                                    ', '.join(map(str, sorted(backbone.low_level))) + ' |']
