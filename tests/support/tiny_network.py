"""A small network with a checkpoint, and images for it: what the tests of vis.py and export_model.py share."""

import io

import numpy as np
from golden import assign_weights
from PIL import Image

from deeplab import common, model
from deeplab.core.base.tf_compat import tf
from deeplab.core.run import run_options
from deeplab.datasets import dataset_info

CLASS_NAMES = ['none', 'disc', 'star', 'box', 'ring']
NUM_CLASSES, CROP = len(CLASS_NAMES), [65, 65]
# No two alike: square, wide, high, as large as the crop.
SIZES = [(60, 60), (40, 65), (65, 33), (65, 65)]


def options(**changes):
  return common.ModelOptions({common.OUTPUT_TYPE: NUM_CLASSES}, CROP, None, 16, model_variant='mobilenet_v2',
                             depth_multiplier=0.35)._replace(**changes)


def images(sizes=SIZES):
  """Smooth colours, uint8 [height, width, 3] each."""
  random = np.random.RandomState(3)
  return [np.asarray(Image.fromarray(random.randint(0, 256, [6, 6, 3]).astype(np.uint8)).resize(size[::-1])) for size in sizes]


def png(array):
  encoded = io.BytesIO()
  Image.fromarray(array).save(encoded, 'png')
  return encoded.getvalue()


def padded(image, value=127.5, dtype=np.float32):
  canvas = np.full([1, *CROP, 3], value, dtype)
  canvas[0, :image.shape[0], :image.shape[1]] = image
  return canvas


def write_run(folder, **changes):
  """Writes a checkpoint of step 7 and its options, as a training run leaves them; `changes` are fields of the options."""
  with tf.Graph().as_default(), tf.Session() as session:
    inputs = tf.placeholder(tf.float32, [1, *CROP, 3])
    probabilities = model.predict_labels(inputs, options(**changes))['semantic_prob']
    assign_weights(session, tf.model_variables())
    # The biases are set so that no class wins everywhere.
    biases, = (variable for variable in tf.model_variables() if variable.op.name == 'logits/semantic/biases')
    mean = np.mean([np.log(session.run(probabilities, {inputs: padded(image)})) for image in images()], axis=(0, 1, 2, 3))
    biases.load(session.run(biases) - mean, session)
    tf.train.create_global_step().load(7, session)
    tf.train.Saver().save(session, str(folder / 'model.ckpt'), global_step=7)
  run_options.write(str(folder), common.run_flags(options(**changes)),
                    dataset_info.describe('shapes', NUM_CLASSES, class_names=CLASS_NAMES))


def predict(folder, pictures, scales=(1.0,), flip=False):
  """What the network of write_run sees, without eval.py, vis.py or export_model.py.

  Args:
    folder: of the run.
    pictures: uint8 or float32 [height, width, 3] each.
    scales: scales to average over.
    flip: whether to average with the mirrored image.

  Returns:
    List of (labels [height, width], probabilities [height, width, classes]).
  """
  with tf.Graph().as_default(), tf.Session() as session:
    inputs = tf.placeholder(tf.float32, [1, *CROP, 3])
    if flip or tuple(scales) != (1.0,):
      predictions = model.predict_labels_multi_scale(inputs, options(), scales, flip)
    else:
      predictions = model.predict_labels(inputs, options())
    tf.train.Saver().restore(session, str(folder / 'model.ckpt-7'))
    results = []
    for picture in pictures:
      labels, probabilities = session.run([predictions['semantic'], predictions['semantic_prob']], {inputs: padded(picture)})
      height, width = picture.shape[:2]
      results.append((labels[0, :height, :width], probabilities[0, :height, :width]))
  return results
