"""Measures DeepLabv3+ on a split of labelled TFRecords: checkpoint -> graph -> confusion matrix -> report.

python eval.py --checkpoint_dir=... --dataset_dir=... --eval_logdir=... --eval_crop_size=auto --max_number_of_evaluations=1
"""

import time
from typing import NamedTuple

from absl import flags, logging

from deeplab import common, data_generator, model
from deeplab.core.base import files
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.evaluation import evaluation
from deeplab.core.images import tiling
from deeplab.core.report import evaluation_report, metrics
from deeplab.core.run import best_checkpoint, checkpoint, checkpoint_fit, checkpoint_follower, limits
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
  options: common.CheckpointOptions
  crop_size: list
  tile_size: list


def _check_flags():
  """Refuses values that cannot be right, before any work."""
  if not FLAGS.eval_scales or min(FLAGS.eval_scales) <= 0:
    raise InputError(f'--eval_scales={",".join(map(str, FLAGS.eval_scales))}: give scales above 0, for example 0.5,1.0,1.5.')
  if FLAGS.eval_split == common.TEST_SET:
    raise InputError(f'--eval_split={FLAGS.eval_split} has no labels to evaluate on; choose another split, or see vis.py.')


def _set_up(prefix):
  dataset_name = dataset_info.name_for_checkpoint(prefix, FLAGS.dataset, 'dataset' in common.given_flags(), FLAGS.dataset_dir)
  descriptor = dataset_info.get_descriptor(dataset_name, FLAGS.dataset_dir)
  options = common.checkpoint_options(prefix, descriptor.num_classes, None)
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


def _sum_confusion(session, network, subject):
  """Runs through the data once, telling every few seconds how far it is; int64 [classes, classes]."""
  start = time.time()
  next_report = start + _PROGRESS_SECS

  def report(done):
    nonlocal next_report
    if done and (time.time() >= next_report or done == subject.num_images):
      _log_progress(done, subject.num_images, start)
      next_report = time.time() + _PROGRESS_SECS
    return False

  def predict(batch):
    return tiling.predict(lambda tile: session.run(network.predictions, {network.images: tile}), batch[common.IMAGE],
                          subject.tile_size)

  return evaluation.sum_confusion(session, network, subject, predict, report)


def _predict(images, options):
  return model.predict(images, options.model_options, FLAGS.eval_scales, FLAGS.add_flipped_images, options.image_pyramid,
                       options.quantize_delay_step)


def _evaluate(setup):
  """Predicts every image of the split once; (evaluation.Subject, confusion matrix int64 [classes, classes])."""
  with tf.Graph().as_default():
    dataset = _build_dataset(setup)
    subject = evaluation.Subject(
        setup.descriptor, FLAGS.eval_split, dataset.num_examples, setup.options.model_options, setup.options.resize,
        setup.crop_size, setup.tile_size, tuple(FLAGS.eval_scales), FLAGS.add_flipped_images)
    network = evaluation.build(dataset, lambda images: _predict(images, setup.options), setup.tile_size)
    with checkpoint_fit.restored_session(setup.prefix, common.session_config(), FLAGS.master) as session:
      limits.report_memory(session, network.predictions, 'eval', FLAGS.eval_batch_size, setup.tile_size)
      source = f'--eval_split={FLAGS.eval_split} of --dataset_dir={FLAGS.dataset_dir}'
      with limits.explained('eval', source, FLAGS.eval_batch_size, setup.crop_size, setup.tile_size):
        return subject, _sum_confusion(session, network, subject)


def _report(prefix, step, subject, confusion):
  """Table on the console, files, TensorBoard scalars, and the copy of the best checkpoint."""
  found = metrics.from_confusion_matrix(confusion)
  if not confusion.any():
    logging.warning('No pixel counts: all labels are the ignored value %d.', subject.descriptor.ignore_label)
  class_names = subject.descriptor.class_names
  logging.info('%s, step %d, on %d images of split %s (%s):\n%s', prefix, step, subject.num_images, subject.split,
               subject.metric_name, evaluation_report.table(found, class_names))
  evaluation_report.write_files(FLAGS.eval_logdir, found, confusion, class_names, subject.facts(prefix, step))
  evaluation_report.add_scalars(tf.summary.FileWriterCache.get(FLAGS.eval_logdir), found, subject.metric_name, step)
  if FLAGS.best_checkpoint_dir:
    best_checkpoint.keep_if_best(prefix, found.mean_iou, step, FLAGS.best_checkpoint_dir)


def main(unused_argv):
  _check_flags()
  for name in ('eval_logdir', 'best_checkpoint_dir'):
    if FLAGS[name].value:
      files.make_folder(FLAGS[name].value, name)
  for prefix in checkpoint_follower.follow(FLAGS.checkpoint_dir, FLAGS.eval_interval_secs, FLAGS.max_number_of_evaluations,
                                           'max_number_of_evaluations'):
    logging.info('Evaluating %s on split %s in %s.', prefix, FLAGS.eval_split, FLAGS.dataset_dir)
    with checkpoint_follower.unless_removed(prefix, FLAGS.max_number_of_evaluations):
      # Now, as its run may remove it meanwhile.
      step = checkpoint.global_step(prefix) or 0
      subject, confusion = _evaluate(_set_up(prefix))
      _report(prefix, step, subject, confusion)


def run():
  """Entry of the program."""
  common.run_program(main, ['checkpoint_dir', 'eval_logdir', 'dataset_dir'])


if __name__ == '__main__':
  run()
