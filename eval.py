"""Measures DeepLabv3+ on a split of labelled TFRecords: checkpoint -> graph -> confusion matrix -> report.

python eval.py --checkpoint_dir=... --dataset_dir=... --eval_logdir=... --eval_crop_size=auto --max_number_of_evaluations=1
"""

import time
from typing import NamedTuple

import numpy as np
from absl import flags, logging

from deeplab import common, data_generator, model
from deeplab.core.base import files
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.images import tiling
from deeplab.core.report import evaluation_report, metrics
from deeplab.core.run import best_checkpoint, checkpoint, checkpoint_follower, limits, run_options
from deeplab.datasets import dataset_info

FLAGS = flags.FLAGS

common.define_network_flags()
common.define_data_flags()
common.define_evaluation_flags()

flags.DEFINE_string('eval_logdir', None, 'Folder of metrics.json, metrics.csv, confusion_matrix.png and the TensorBoard events.')
flags.DEFINE_integer('eval_batch_size', 1, 'Images per batch.', lower_bound=1)
common.define_numbers('eval_crop_size', [513, 513], 'height,width of the network input in pixels, no smaller than any image; '
                      'auto: that of the largest image.', words=(common.AUTO,))
common.define_numbers('eval_tile_size', None, 'height,width of tiles that larger images are predicted in, to save memory; unset: '
                      'whole images.')
flags.DEFINE_string('eval_split', 'val', 'Split to evaluate on.')
flags.DEFINE_integer('max_number_of_evaluations', 0, 'Number of checkpoints after which to end; 0: wait for new ones for ever.')
flags.DEFINE_string('best_checkpoint_dir', None, 'Folder that gets a copy of the checkpoint with the highest mIoU; unset: none.')

_PROGRESS_SECS = 10


class _Setup(NamedTuple):
  """What is evaluated, for one checkpoint."""
  prefix: str
  descriptor: dataset_info.DatasetDescriptor
  options: run_options.CheckpointOptions
  crop_size: list
  tile_size: list


def _check_flags():
  """Refuses values that cannot be right, before any work."""
  if not FLAGS.eval_scales or min(FLAGS.eval_scales) <= 0:
    raise InputError(f'--eval_scales={",".join(map(str, FLAGS.eval_scales))}: give scales above 0, for example 0.5,1.0,1.5.')
  if FLAGS.eval_split == common.TEST_SET:
    raise InputError(f'--eval_split={FLAGS.eval_split} has no labels to evaluate on; choose another split, or see vis.py.')


def _set_up(prefix):
  dataset_name = run_options.dataset_name_for_checkpoint(prefix, FLAGS.dataset_dir)
  descriptor = dataset_info.get_descriptor(dataset_name, FLAGS.dataset_dir)
  options = run_options.model_options_for_checkpoint(prefix, descriptor.num_classes, None)
  crop_size = common.evaluation_crop_size(
      FLAGS.eval_crop_size, 'eval_crop_size',
      lambda: data_generator.largest_image_size(dataset_name, FLAGS.eval_split, FLAGS.dataset_dir, **options.resize),
      options.model_options.output_stride)
  tile_size = crop_size
  if FLAGS.eval_tile_size:
    tile_size = [min(sides) for sides in zip(
        crop_size, common.parse_size(FLAGS.eval_tile_size, 'eval_tile_size'), strict=True)]
  if options.dataset and options.dataset.class_names != descriptor.class_names:
    logging.warning('The checkpoint was trained on %s with the classes %s; data set %s has %s.', options.dataset.name,
                    ', '.join(options.dataset.class_names), descriptor.name, ', '.join(descriptor.class_names))
  if options.resize['min_resize_value'] or options.resize['max_resize_value']:
    logging.warning('Images and labels are resized (--min_resize_value, --max_resize_value): the metrics are those of the '
                    'resized pixels.')
  model_options = options.model_options._replace(crop_size=tile_size)
  return _Setup(prefix, descriptor, options._replace(model_options=model_options), crop_size, tile_size)


def _build_dataset(setup):
  return data_generator.Dataset(
      setup.descriptor.name, FLAGS.eval_split, FLAGS.dataset_dir, FLAGS.eval_batch_size, setup.crop_size,
      model_variant=setup.options.model_options.model_variant, num_readers=2, with_original_image=False,
      **setup.options.resize)


def _log_progress(done, total, start):
  elapsed = time.time() - start
  minutes, seconds = divmod(round(elapsed / done * (total - done)), 60)
  logging.info('%d of %d images, %.2f a second, %d:%02d left.', done, total, done / elapsed, minutes, seconds)


def _sum_confusion(session, samples, predict_tile, setup, num_examples):
  """Runs through the data once; int64 [classes, classes]."""
  confusion = np.zeros([setup.descriptor.num_classes] * 2, np.int64)
  done, start = 0, time.time()
  next_report = start + _PROGRESS_SECS
  while done < num_examples:
    batch = session.run(samples)
    predictions = tiling.predict(predict_tile, batch[common.IMAGE], setup.tile_size)
    confusion += metrics.confusion_matrix(batch[common.LABEL][..., 0], predictions, setup.descriptor.num_classes,
                                          setup.descriptor.ignore_label)
    done += len(predictions)
    if time.time() >= next_report or done == num_examples:
      _log_progress(done, num_examples, start)
      next_report = time.time() + _PROGRESS_SECS
  return confusion


def _evaluate(setup):
  """Predicts every image of the split once; (confusion matrix int64 [classes, classes], number of images)."""
  with tf.Graph().as_default():
    with tf.device('/device:CPU:0'):
      dataset = _build_dataset(setup)
      samples = dataset.get_one_shot_iterator().get_next()
    images = tf.placeholder(tf.float32, [None, *setup.tile_size, 3], common.IMAGE)
    predictions, _ = model.predict(images, setup.options.model_options, FLAGS.eval_scales, FLAGS.add_flipped_images,
                                   setup.options.image_pyramid, setup.options.quantize_delay_step)
    with run_options.restored_session(setup.prefix, FLAGS.master) as session:
      limits.report_memory(session, predictions, 'eval', FLAGS.eval_batch_size, setup.tile_size)
      source = f'--eval_split={FLAGS.eval_split} of --dataset_dir={FLAGS.dataset_dir}'
      with limits.explained('eval', source, FLAGS.eval_batch_size, setup.crop_size, setup.tile_size):
        return _sum_confusion(session, samples, lambda tile: session.run(predictions, {images: tile}), setup,
                              dataset.num_examples), dataset.num_examples


def _metric_name():
  """'miou', the scales, and whether mirrored images took part."""
  return '_'.join(['miou', *map(str, FLAGS.eval_scales)]) + ('_flipped' if FLAGS.add_flipped_images else '')


def _facts(setup, step, num_images):
  return {
      'checkpoint': setup.prefix, 'step': step, 'dataset': setup.descriptor.name, 'split': FLAGS.eval_split,
      'num_images': num_images, 'ignore_label': setup.descriptor.ignore_label, 'crop_size': setup.crop_size,
      'tile_size': setup.tile_size, 'output_stride': setup.options.model_options.output_stride,
      'atrous_rates': setup.options.model_options.atrous_rates, 'eval_scales': list(FLAGS.eval_scales),
      'add_flipped_images': FLAGS.add_flipped_images, 'resize': setup.options.resize}


def _report(setup, confusion, num_images):
  """Table on the console, files, TensorBoard scalars, and the copy of the best checkpoint."""
  found = metrics.from_confusion_matrix(confusion)
  if not confusion.any():
    logging.warning('No pixel counts: all labels are the ignored value %d.', setup.descriptor.ignore_label)
  step = checkpoint.global_step(setup.prefix) or 0
  class_names = setup.descriptor.class_names
  logging.info('%s, step %d, on %d images of split %s (%s):\n%s', setup.prefix, step, num_images, FLAGS.eval_split,
               _metric_name(), evaluation_report.table(found, class_names))
  evaluation_report.write_files(FLAGS.eval_logdir, found, confusion, class_names, _facts(setup, step, num_images))
  evaluation_report.add_scalars(tf.summary.FileWriterCache.get(FLAGS.eval_logdir), found, _metric_name(), step)
  if FLAGS.best_checkpoint_dir:
    best_checkpoint.keep_if_best(setup.prefix, found.mean_iou, step, FLAGS.best_checkpoint_dir)


def main(unused_argv):
  _check_flags()
  for name in ('eval_logdir', 'best_checkpoint_dir'):
    if FLAGS[name].value:
      files.make_folder(FLAGS[name].value, name)
  for prefix in checkpoint_follower.follow(FLAGS.checkpoint_dir, FLAGS.eval_interval_secs, FLAGS.max_number_of_evaluations,
                                           'max_number_of_evaluations'):
    logging.info('Evaluating %s on split %s in %s.', prefix, FLAGS.eval_split, FLAGS.dataset_dir)
    setup = _set_up(prefix)
    confusion, num_images = _evaluate(setup)
    _report(setup, confusion, num_images)


def run():
  """Entry of the program."""
  common.run_program(main, ['checkpoint_dir', 'eval_logdir', 'dataset_dir'])


if __name__ == '__main__':
  run()
