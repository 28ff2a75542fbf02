"""Draws what DeepLabv3+ sees, in the images of a split or in a folder of photographs: checkpoint -> graph -> pictures.

python vis.py --checkpoint_dir=... --vis_logdir=... --dataset_dir=... --max_number_of_iterations=1
python vis.py --checkpoint_dir=... --vis_logdir=... --image_dir=... --vis_crop_size=auto

In <vis_logdir>/segmentation_results each image, by its number or by the name of the photograph, has the pictures _image,
_prediction (classes in colour), _overlay (both, with a legend) and _error (where there is a label).
"""

import os
import time
from typing import NamedTuple

import numpy as np
from absl import flags, logging

from deeplab import common, data_generator, model
from deeplab.core.base import files
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.images import colormap, input_preprocess, tiling
from deeplab.core.networks import feature_extractor
from deeplab.core.report import visualization
from deeplab.core.run import checkpoint_fit, checkpoint_follower, limits
from deeplab.datasets import dataset_info, photographs, tfexample

FLAGS = flags.FLAGS

common.define_network_flags()
common.define_data_flags()
common.define_evaluation_flags()

flags.DEFINE_string('vis_logdir', None, 'Folder for the pictures.')
flags.DEFINE_string('image_dir', None, 'Folder of photographs to draw in place of records, upright.')
flags.DEFINE_integer('vis_batch_size', 1, 'Images per batch; they may differ in size.', lower_bound=1)
common.define_numbers('vis_crop_size', [513, 513], 'height,width of the network input in pixels, no smaller than any image; '
                      'auto: that of the largest image.', words=(common.AUTO,))
common.define_numbers('vis_tile_size', None, 'height,width of tiles that larger images are predicted in, to save memory; unset: '
                      'whole images.')
flags.DEFINE_string('vis_split', 'val', 'Split to draw; it may lack labels.')
flags.DEFINE_integer('max_number_of_iterations', 0, 'Number of checkpoints after which to end; 0: one for --image_dir, else wait '
                     'for new ones for ever.')
flags.DEFINE_enum('colormap_type', None, ['pascal', 'cityscapes', 'ade20k'],
                  'Colours of the classes; unset: those of the data set.')
flags.DEFINE_boolean('also_save_raw_predictions', False, 'Also write the classes as gray PNG files to '
                     '<vis_logdir>/raw_segmentation_results, under the names of the images.')

_PROGRESS_SECS = 10
_PICTURE_FOLDER = 'segmentation_results'
_RAW_FOLDER = 'raw_segmentation_results'
_LEGEND_FILE = 'legend.png'

# Keys of a sample beside those of common.py: (height, width) of what they are named after, int32 [2].
_IMAGE_SIZE = 'image_size'
_INPUT_SIZE = 'input_size'
_LABEL_SIZE = 'label_size'


class _Records:
  """The images of a split; their pictures have numbers."""

  def __init__(self, dataset_name):
    self._dataset_name = dataset_name
    self._files = dataset_info.find_split_files(FLAGS.dataset_dir, FLAGS.vis_split, dataset_name)
    self.num_images = sum(len(data_generator.record_lengths(path)) for path in self._files)
    self.flags = f'--vis_split={FLAGS.vis_split} of --dataset_dir={FLAGS.dataset_dir}'

  def largest_size(self, **resize):
    return data_generator.largest_image_size(self._dataset_name, FLAGS.vis_split, FLAGS.dataset_dir, **resize)

  def dataset(self):
    """tf.data.Dataset of (name, encoded image, encoded label or ''), string scalars."""
    @tf.autograph.experimental.do_not_convert
    def take_apart(serialized):
      record = tfexample.parse_features(serialized)
      return record.name, record.image, record.label
    return tf.data.TFRecordDataset(self._files).map(take_apart)

  def result_names(self, index, image_name):
    """Names for the pictures and the raw prediction of an image."""
    number = f'{index:06d}'
    return number, os.path.splitext(os.path.basename(image_name))[0] or number


class _Setup(NamedTuple):
  """What is drawn, for one checkpoint."""
  prefix: str
  source: _Records | photographs.Photographs
  descriptor: dataset_info.DatasetDescriptor
  options: common.CheckpointOptions
  crop_size: list
  tile_size: list


def _check_flags():
  """Refuses values that cannot be right, before any work."""
  if not (FLAGS.dataset_dir or FLAGS.image_dir):
    raise InputError('Nothing to draw: give --dataset_dir, a folder of records, or --image_dir, a folder of photographs.')
  if not FLAGS.eval_scales or min(FLAGS.eval_scales) <= 0:
    raise InputError(f'--eval_scales={",".join(map(str, FLAGS.eval_scales))}: give scales above 0, for example 0.5,1.0,1.5.')


def _descriptor_of_records(prefix):
  name = dataset_info.name_for_checkpoint(prefix, FLAGS.dataset, 'dataset' in common.given_flags(), FLAGS.dataset_dir)
  return dataset_info.get_descriptor(name, FLAGS.dataset_dir)


def _descriptor_of_photographs(options):
  """The data set of the training run, or of --dataset where that has as many classes; else one with numbered classes."""
  num_classes = options.model_options.outputs_to_num_classes[common.OUTPUT_TYPE]
  descriptor = options.dataset or dataset_info.get_descriptor(FLAGS.dataset, FLAGS.dataset_dir)
  return descriptor if descriptor.num_classes == num_classes else dataset_info.describe('', num_classes)


def _with_colors(descriptor):
  """The descriptor with the colours of --colormap_type."""
  if FLAGS.colormap_type is None:
    return descriptor
  colors = colormap.create_label_colormap(FLAGS.colormap_type)
  if len(colors) < descriptor.num_classes:
    raise InputError(f'--colormap_type={FLAGS.colormap_type} has {len(colors)} colours, the data set {descriptor.num_classes} '
                     'classes; use pascal, or leave it out.')
  return descriptor._replace(colors=colors[:descriptor.num_classes].tolist())


def _set_up(prefix):
  if FLAGS.image_dir:
    source: _Records | photographs.Photographs = photographs.Photographs(FLAGS.image_dir)
    options = common.checkpoint_options(prefix, None, None)
    descriptor = _descriptor_of_photographs(options)
  else:
    descriptor = _descriptor_of_records(prefix)
    source = _Records(descriptor.name)
    options = common.checkpoint_options(prefix, descriptor.num_classes, None)
  crop_size = tile_size = common.evaluation_crop_size(
      FLAGS.vis_crop_size, 'vis_crop_size', lambda: source.largest_size(**options.resize), options.model_options.output_stride)
  if FLAGS.vis_tile_size:
    tile_size = [min(sides) for sides in zip(crop_size, common.parse_size(FLAGS.vis_tile_size, 'vis_tile_size'), strict=True)]
  options = options._replace(model_options=options.model_options._replace(crop_size=tile_size))
  return _Setup(prefix, source, _with_colors(descriptor), options, crop_size, tile_size)


def _build_samples(setup):
  """Iterator over batches; images, labels and originals of a batch are padded to one size each, their own sizes go with them."""
  pad_pixel = feature_extractor.mean_pixel(setup.options.model_options.model_variant)

  height, width = setup.crop_size

  @tf.autograph.experimental.do_not_convert
  def load(name, encoded_image, encoded_label):
    image = tfexample.decode_image(encoded_image)
    label = tf.cond(tf.equal(encoded_label, ''), lambda: tf.zeros([0, 0, 1], tf.uint8),
                    lambda: tfexample.decode_label(encoded_label))
    resized, padded, _ = input_preprocess.preprocess_image_and_label(
        image, None, height, width, is_training=False, pad_pixel=pad_pixel, image_name=name, **setup.options.resize)
    return {
        common.IMAGE: padded, common.IMAGE_NAME: name, common.ORIGINAL_IMAGE: image, common.LABEL: label,
        _IMAGE_SIZE: tf.shape(image)[:2], _INPUT_SIZE: tf.shape(resized)[:2], _LABEL_SIZE: tf.shape(label)[:2]}

  dataset = setup.source.dataset().map(load, num_parallel_calls=tf.data.AUTOTUNE)
  dataset = dataset.padded_batch(FLAGS.vis_batch_size, tf.data.get_output_shapes(dataset)).prefetch(1)
  return tf.data.make_initializable_iterator(dataset)


def _save_raw(path, prediction, descriptor):
  """Writes the classes, or the numbers that the benchmark of the data set has for them."""
  if descriptor.train_id_to_eval_id:
    prediction = np.array(descriptor.train_id_to_eval_id)[prediction]
  visualization.save_png(prediction.astype(np.uint8 if descriptor.num_classes <= 256 else np.uint16), path)


def _label_of(sample, name):
  """uint8 [height, width], or None where the sample has no label of the size of its image."""
  size, label_size = sample[_IMAGE_SIZE], sample[_LABEL_SIZE]
  if np.array_equal(label_size, size):
    return sample[common.LABEL][:size[0], :size[1], 0]
  if label_size.any():
    logging.warning('Image %s is %dx%d but its label is %dx%d (height x width); its errors are not drawn.', name, *size,
                    *label_size)
  return None


def _draw_sample(sample, prediction, index, setup):
  name = os.fsdecode(sample[common.IMAGE_NAME])
  (height, width), (input_height, input_width) = sample[_IMAGE_SIZE], sample[_INPUT_SIZE]
  prediction = visualization.resize_label(prediction[:input_height, :input_width], (height, width))
  picture_name, raw_name = setup.source.result_names(index, name)
  image = sample[common.ORIGINAL_IMAGE][:height, :width]
  visualization.save_pictures(os.path.join(FLAGS.vis_logdir, _PICTURE_FOLDER), picture_name, image, prediction,
                              _label_of(sample, name), setup.descriptor)
  if FLAGS.also_save_raw_predictions:
    _save_raw(os.path.join(FLAGS.vis_logdir, _RAW_FOLDER, f'{raw_name}.png'), prediction, setup.descriptor)


def _draw_all(session, samples, predict_tile, setup):
  """Runs through the data once and returns the number of images."""
  done, next_report = 0, time.time() + _PROGRESS_SECS
  while True:
    try:
      batch = session.run(samples)
    except tf.errors.OutOfRangeError:
      return done
    for offset, prediction in enumerate(tiling.predict(predict_tile, batch[common.IMAGE], setup.tile_size)):
      _draw_sample({key: value[offset] for key, value in batch.items()}, prediction, done, setup)
      done += 1
    if time.time() >= next_report:
      logging.info('%d of %d images.', done, setup.source.num_images)
      next_report = time.time() + _PROGRESS_SECS


def _visualize(setup):
  """Draws every image of the source once and returns their number."""
  with tf.Graph().as_default():
    with tf.device('/device:CPU:0'):
      iterator = _build_samples(setup)
    images = tf.placeholder(tf.float32, [None, *setup.tile_size, 3], common.IMAGE)
    predictions, _ = model.predict(images, setup.options.model_options, FLAGS.eval_scales, FLAGS.add_flipped_images,
                                   setup.options.image_pyramid, setup.options.quantize_delay_step)
    with checkpoint_fit.restored_session(setup.prefix, common.session_config(), FLAGS.master) as session:
      session.run(iterator.initializer)
      limits.report_memory(session, predictions, 'vis', FLAGS.vis_batch_size, setup.tile_size)
      with limits.explained('vis', setup.source.flags, FLAGS.vis_batch_size, setup.crop_size, setup.tile_size):
        return _draw_all(session, iterator.get_next(), lambda tile: session.run(predictions, {images: tile}), setup)


def main(unused_argv):
  _check_flags()
  for folder in (_PICTURE_FOLDER, _RAW_FOLDER):
    files.make_folder(os.path.join(FLAGS.vis_logdir, folder), 'vis_logdir')
  max_rounds = FLAGS.max_number_of_iterations or (1 if FLAGS.image_dir else 0)
  for prefix in checkpoint_follower.follow(FLAGS.checkpoint_dir, FLAGS.eval_interval_secs, max_rounds,
                                           'max_number_of_iterations'):
    with checkpoint_follower.unless_removed(prefix, max_rounds):
      setup = _set_up(prefix)
      logging.info('Drawing %d images with %s.', setup.source.num_images, prefix)
      visualization.save_legend(os.path.join(FLAGS.vis_logdir, _LEGEND_FILE), setup.descriptor)
      num_images = _visualize(setup)
      logging.info('Drew %d images into %s.', num_images, os.path.join(FLAGS.vis_logdir, _PICTURE_FOLDER))
      if FLAGS.image_dir:
        setup.source.refuse_unreadable()


def run():
  """Entry of the program."""
  common.run_program(main, ['checkpoint_dir', 'vis_logdir'])


if __name__ == '__main__':
  run()
