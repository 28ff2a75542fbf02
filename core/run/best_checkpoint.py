"""Keeps a copy of the checkpoint with the highest mIoU, in a folder that eval.py, vis.py and export_model.py take as it is."""

import json
import os

from absl import logging

from deeplab.core.base import files
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.run import run_options

_RECORD = 'best.json'


def keep_if_best(prefix, mean_iou, step, folder):
  """Copies a checkpoint unless the folder holds one that is as good.

  The folder is usable at any moment: the copy is complete before the `checkpoint` file names it and the earlier one goes.

  Args:
    prefix: prefix of the checkpoint.
    mean_iou: its figure.
    step: its training step.
    folder: where to; made if need be.

  Returns:
    Whether it was copied.

  Raises:
    InputError: the record of the folder is damaged.
  """
  best = _read_record(folder)
  if best and best['miou'] >= mean_iou:
    logging.info('mIoU %.4f is not above the best, %.4f of %s.', mean_iou, best['miou'], best['checkpoint'])
    return False
  tf.io.gfile.makedirs(folder)
  name = copy(prefix, folder)
  files.replace_file(os.path.join(folder, _RECORD), json.dumps({'checkpoint': name, 'miou': mean_iou, 'step': step}) + '\n')
  if best and best['checkpoint'] != name:
    for path in tf.io.gfile.glob(os.path.join(folder, best['checkpoint'] + '.*')):
      tf.io.gfile.remove(path)
  logging.info('Best mIoU so far, %.4f: copied %s to %s.', mean_iou, name, folder)
  return True


def replace(prefix, folder, write_metrics):
  """Makes a folder that is ours alone hold this checkpoint and nothing else, in one step.

  Args:
    prefix: prefix of the checkpoint.
    folder: the folder, there or not; recover_folder of core/base/files.py repairs what a kill has left beside it.
    write_metrics: function that writes more files into the folder that it gets.

  Raises:
    tf.errors.OpError, OSError: something cannot be written; the folder is as it was.
  """
  new = files.prepare_folder(folder)
  try:
    copy(prefix, new)
    write_metrics(new)
    files.replace_folder(folder)
  except Exception:
    files.remove_folder(new)
    raise


def copy(prefix, folder):
  """Copies the files of a checkpoint and the options of its run to a folder, then names it there; returns its name."""
  name = os.path.basename(prefix)
  for source in [*tf.io.gfile.glob(prefix + '.*'), os.path.join(os.path.dirname(prefix), run_options.FILE_NAME)]:
    if tf.io.gfile.exists(source):
      tf.io.gfile.copy(source, os.path.join(folder, os.path.basename(source)), overwrite=True)
  state = tf.train.generate_checkpoint_state_proto('', name)
  files.replace_file(os.path.join(folder, 'checkpoint'), str(state))
  return name


def _read_record(folder):
  path = os.path.join(folder, _RECORD)
  try:
    content = files.read_json(path)
    return content and {'checkpoint': str(content['checkpoint']), 'miou': float(content['miou'])}
  except (ValueError, KeyError, TypeError) as error:
    raise InputError(f'{path} is damaged ({error}). Remove it, or name another --best_checkpoint_dir.') from error
