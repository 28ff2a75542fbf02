"""The programs on a file system of TensorFlow that is no disk, ram://, and on one that cannot rename."""

import json

import pytest
import tiny_run

from deeplab import eval as evaluation
from deeplab import export_model, train, vis
from deeplab.core.base import errors, files
from deeplab.core.base.tf_compat import tf


@pytest.fixture(scope='module')
def ram(tmp_path_factory):
  """A folder of its own on ram://, with records of the splits train and val."""
  folder = f'ram://{tmp_path_factory.mktemp("ram").name}'
  local = tmp_path_factory.mktemp('records')
  tf.io.gfile.makedirs(f'{folder}/records')
  for split in ('train', 'val'):
    tiny_run.write_records(local, split=split)
  for path in local.iterdir():
    tf.io.gfile.copy(str(path), f'{folder}/records/{path.name}')
  return folder


def _run(program, *arguments):
  code, log = tiny_run.run(program, *arguments)
  assert not code, log
  return log


def _read(path):
  with tf.io.gfile.GFile(path, 'rb') as content:
    return content.read()


def test_each_program_after_the_other(ram):
  _run(train, *tiny_run.FLAGS, f'--dataset_dir={ram}/records', f'--train_logdir={ram}/train')
  assert b'--train_batch_size=2\n' in _read(f'{ram}/train/flags.txt')

  repeat = f'--flagfile={ram}/train/flags.txt'
  log = _run(train, repeat, f'--train_logdir={ram}/train', '--training_number_of_steps=3')
  assert 'Training from step 2 to 3' in log

  _run(evaluation, f'--dataset_dir={ram}/records', f'--checkpoint_dir={ram}/train', f'--eval_logdir={ram}/eval',
       '--eval_crop_size=auto', '--max_number_of_evaluations=1', f'--best_checkpoint_dir={ram}/best')
  metrics = json.loads(_read(f'{ram}/eval/metrics.json'))
  assert (metrics['step'], metrics['num_images']) == (3, 4)
  assert _read(f'{ram}/eval/confusion_matrix.png').startswith(b'\x89PNG')

  _run(vis, f'--dataset_dir={ram}/records', f'--checkpoint_dir={ram}/best', f'--vis_logdir={ram}/vis', '--vis_crop_size=auto',
       '--max_number_of_iterations=1', '--also_save_raw_predictions')
  assert len(tf.io.gfile.glob(f'{ram}/vis/segmentation_results/*_prediction.png')) == 4
  assert len(tf.io.gfile.glob(f'{ram}/vis/raw_segmentation_results/*.png')) == 4

  photograph = f'{ram}/vis/segmentation_results/000000_image.png'
  tf.io.gfile.makedirs(f'{ram}/photographs')
  tf.io.gfile.copy(photograph, f'{ram}/photographs/street.png')
  _run(vis, f'--image_dir={ram}/photographs', f'--checkpoint_dir={ram}/train', f'--vis_logdir={ram}/drawn',
       '--vis_crop_size=auto')
  assert tf.io.gfile.exists(f'{ram}/drawn/segmentation_results/street_prediction.png')

  # The second time it replaces what is there.
  for _ in range(2):
    _run(export_model, f'--checkpoint_path={ram}/best', '--crop_size=49', f'--export_path={ram}/out/graph.pb',
         f'--saved_model_dir={ram}/out/saved_model', f'--tflite_path={ram}/out/model.tflite')
  with tf.Graph().as_default(), tf.Session() as session:
    loaded = tf.saved_model.load(session, ['serve'], f'{ram}/out/saved_model')
    assert list(loaded.signature_def['serving_default'].inputs) == ['ImageTensor']
  assert _read(f'{ram}/out/model.tflite')[4:8] == b'TFL3'
  left_over = [name for folder in ('train', 'eval', 'best', 'out') for name in tf.io.gfile.listdir(f'{ram}/{folder}')
               if '.tmp' in name]
  assert not left_over


@pytest.fixture
def without_rename(monkeypatch):
  """No file or folder can be renamed, as on file systems that show an object store as folders."""
  def refuse(*unused_arguments, **unused_named):
    raise tf.errors.UnimplementedError(None, None, 'rename')
  monkeypatch.setattr(tf.io.gfile, 'rename', refuse)


def test_file_that_cannot_be_renamed(without_rename, tmp_path):
  path = tmp_path / 'a.txt'
  for content in ('one', 'two'):
    files.replace_file(str(path), content)
    assert path.read_text() == content
  assert [found.name for found in tmp_path.iterdir()] == ['a.txt']


def test_folder_that_cannot_be_renamed(without_rename, tmp_path):
  path = str(tmp_path / 'model')
  for name in ('stale', 'fresh'):
    new = files.prepare_folder(path)
    tf.io.gfile.makedirs(f'{new}/inside')
    files.replace_file(f'{new}/inside/{name}.txt', name)
    files.replace_folder(path)
  assert [found.name for found in tmp_path.iterdir()] == ['model']
  assert [found.name for found in (tmp_path / 'model' / 'inside').iterdir()] == ['fresh.txt']


def test_error_without_a_text():
  assert errors.explain(tf.errors.NotFoundError(None, None, '')) == 'NotFoundError'
