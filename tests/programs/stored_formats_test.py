"""Training folders of every stored format, with the data they were trained on: what the next version must still go on with.

`testdata/stored_formats/<format>` holds the dataset.json, the folder `train` of two steps of tiny_run's network, and what the
version that wrote them made of it: metrics.json of eval, and expected.json, the probabilities of the exported graph for `_RAMP`.
"""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tiny_run

from deeplab import eval as evaluation
from deeplab import export_model, train, vis
from deeplab.core.base import stored_format
from deeplab.core.base.tf_compat import tf
from deeplab.core.run import run_options

_STORED = pathlib.Path(__file__).parents[1] / 'testdata' / 'stored_formats'
_FORMATS = sorted(path.name for path in _STORED.iterdir())
_RAMP = np.linspace(0, 255, 40 * 36 * 3).reshape(1, 40, 36, 3).astype(np.uint8)


def _read(path):
  return json.loads(path.read_text(encoding='utf-8'))


@pytest.fixture(scope='module', params=_FORMATS)
def folder(request, tmp_path_factory):
  """A copy of a stored folder with records beside its dataset.json."""
  folder = tmp_path_factory.mktemp('stored') / request.param
  shutil.copytree(_STORED / request.param, folder)
  for split in ('train', 'val'):
    tiny_run.write_records(folder / 'records', split=split)
  shutil.move(folder / 'dataset.json', folder / 'records' / 'dataset.json')
  return folder


def _run(program, *arguments):
  code, log = tiny_run.run(program, *arguments)
  assert not code, log
  return log


def test_every_format_is_kept():
  assert [str(number) for number in range(1, stored_format.FORMAT + 1)] == _FORMATS
  for name in _FORMATS:
    content = _read(_STORED / name / 'train' / run_options.FILE_NAME)
    assert content.get('format', 1) == _read(_STORED / name / 'dataset.json').get('format', 1) == int(name)


def test_eval(folder):
  _run(evaluation, f'--dataset_dir={folder}/records', f'--checkpoint_dir={folder}/train', f'--eval_logdir={folder}/eval',
       '--eval_crop_size=auto', '--max_number_of_evaluations=1')
  found, expected = _read(folder / 'eval' / 'metrics.json'), _read(folder / 'metrics.json')
  assert found['miou'] == pytest.approx(expected['miou'], abs=0.01)
  for name in ('step', 'dataset', 'crop_size', 'output_stride', 'atrous_rates', 'resize', 'num_images'):
    assert found[name] == expected[name]


def test_vis(folder):
  _run(vis, f'--dataset_dir={folder}/records', f'--checkpoint_dir={folder}/train', f'--vis_logdir={folder}/vis',
       '--vis_crop_size=auto', '--max_number_of_iterations=1')
  assert len(list((folder / 'vis' / 'segmentation_results').glob('*_prediction.png'))) == 4


def test_export(folder):
  _run(export_model, f'--checkpoint_path={folder}/train', f'--export_path={folder}/graph.pb', '--crop_size=49')
  graph_def = tf.GraphDef.FromString((folder / 'graph.pb').read_bytes())
  with tf.Graph().as_default(), tf.Session() as session:
    probabilities, = tf.import_graph_def(graph_def, return_elements=['SemanticProbabilities:0'])
    found = session.run(probabilities, {'import/ImageTensor:0': _RAMP})
  expected = _read(folder / 'expected.json')
  np.testing.assert_allclose(found.mean((0, 1, 2)), expected['mean_probabilities'], atol=1e-4)
  np.testing.assert_allclose(found[0, 0, 0], expected['corner'], atol=1e-4)


def test_resume_with_renamed_classes(folder):
  """By the flags that the folder itself holds; the description is then of the format of today."""
  description = folder / 'records' / 'dataset.json'
  description.write_text(description.read_text(encoding='utf-8').replace('"star"', '"moon"'), encoding='utf-8')
  resume = (f'--flagfile={folder}/train/flags.txt', f'--dataset_dir={folder}/records', f'--train_logdir={folder}/train')
  log = _run(train, *resume, '--training_number_of_steps=3')
  assert 'WARNING Classes have other names than in the run so far, by which it goes on: star -> moon.' in log
  assert 'Training from step 2 to 3' in log and (folder / 'train' / 'model.ckpt-3.index').exists()
  content = _read(folder / 'train' / run_options.FILE_NAME)
  assert content['format'] == stored_format.FORMAT and content['dataset']['class_names'] == ['none', 'disc', 'moon']
  # The same names in another order are other classes.
  description.write_text(description.read_text(encoding='utf-8').replace('"disc", "moon"', '"moon", "disc"'), encoding='utf-8')
  code, log = tiny_run.run(train, *resume, '--training_number_of_steps=4')
  assert code == 1 and 'class_names of the data set: none,disc,moon in the run (shapes), none,moon,disc now (shapes)' in log
