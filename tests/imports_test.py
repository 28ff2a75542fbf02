"""Imports run strictly downward, and only one module knows TensorFlow."""

import ast
import pathlib

import pytest

_ROOT = pathlib.Path(__file__).parent.parent
# From the programs down to what imports nothing of ours; a module may import from the rows below its own.
_ROWS = [
    'train eval vis export_model',
    'train_flags',
    'model train_utils data_generator',
    'core.feature_extractor',
    'core.nas_network',
    '''core.mobilenet_v2 core.mobilenet_v3 core.resnet_v1_beta core.xception core.nas_genotypes datasets.build_ade20k_data
       datasets.build_cityscapes_data datasets.build_own_data datasets.build_shapes_data datasets.build_voc2012_data
       datasets.check_data datasets.remove_gt_colormap''',
    '''core.backbone core.mobilenet core.nas_cell core.stack core.aspp core.decoder core.dense_prediction_cell
       core.input_preprocess core.photographs core.best_checkpoint core.mixed_precision core.quantized_layers
       datasets.build_data''',
    '''core.clone_input core.layers core.run_options core.checkpoint_follower core.cluster_server core.evaluation_report
       core.limits core.replicas core.training_hooks core.training_folder core.visualization''',
    'common core.utils core.preprocess_utils core.checkpoint core.cluster core.metrics core.tiling datasets.dataset_info',
    'core.fake_quantize core.files datasets.tfexample datasets.colormap datasets.image_files',
    'core.tf_compat',
    'core.errors core.host_memory',
]
_LEVELS = {f'deeplab.{name}': level for level, row in enumerate(_ROWS) for name in row.split()}


def _modules():
  paths = [path for folder in ('.', 'core', 'datasets') for path in (_ROOT / folder).glob('*.py')]
  return {'.'.join(('deeplab', *path.relative_to(_ROOT).with_suffix('').parts)): path
          for path in paths if path.name not in ('__init__.py', 'setup.py')}


def _imports(path):
  """Full names of everything a file imports, at any depth of its code."""
  for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def _level(name):
  """Row of a module, also for a name inside of it; None for what is not ours."""
  return _LEVELS.get(name, _LEVELS.get(name.rpartition('.')[0]))


def test_every_module_has_a_row():
  assert set(_modules()) == set(_LEVELS)


@pytest.mark.parametrize('module', sorted(_LEVELS))
def test_imports_run_downward(module):
  upward = [name for name in _imports(_modules()[module])
            if name.startswith('deeplab') and (_level(name) is None or _level(name) <= _LEVELS[module])]
  assert not upward


def test_one_module_imports_tensorflow():
  importers = {module for module, path in _modules().items()
               if any(name.split('.')[0] in ('tensorflow', 'tf_slim', 'tf_keras') for name in _imports(path))}
  assert importers == {'deeplab.core.tf_compat'}
