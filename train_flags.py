"""The flags of train.py, and what must hold among them before any work is done."""

import os
from collections.abc import Callable
from typing import NamedTuple

from absl import flags, logging

from deeplab import common, train_utils
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.cluster import cluster as cluster_lib
from deeplab.core.layers import layers, mixed_precision, utils
from deeplab.core.networks import feature_extractor
from deeplab.core.run import checkpoint, run_options

FLAGS = flags.FLAGS

common.define_network_flags()
common.define_data_flags()

# Clones and replicas.
flags.DEFINE_integer('num_clones', 1, 'Number of GPUs (or, with --clone_on_cpu, of parts on the CPU) that share a batch.',
                     lower_bound=1)
flags.DEFINE_boolean('clone_on_cpu', False, 'Run the clones on the CPU.')
flags.DEFINE_enum('job_name', None, cluster_lib.JOBS, 'What this process of a cluster is; chief is another name of worker 0. '
                  'TF_CONFIG can say it, too.')
flags.DEFINE_integer('task', 0, 'Index of this process in its job; worker 0 saves checkpoints and summaries.', lower_bound=0)
common.define_numbers('ps_hosts', None, 'Addresses of the parameter servers, host:port,host:port.', str)
common.define_numbers('worker_hosts', None, 'Addresses of the workers, host:port,host:port.', str)
flags.DEFINE_integer('num_replicas', 1, 'Number of workers, with --master: where servers are started elsewhere.', lower_bound=1)
flags.DEFINE_integer('num_ps_tasks', 0, 'Number of parameter servers, with --master; 0: the variables are in this process.',
                     lower_bound=0)
flags.DEFINE_integer('startup_delay_steps', 15, 'Worker i starts when the global step has reached i times this number.',
                     lower_bound=0)
flags.DEFINE_boolean('sync_replicas', False, 'Make one update per step, from the mean of the gradients of all workers.')
flags.DEFINE_integer('backup_workers', 0, 'Number of workers, the slowest of each step, that --sync_replicas does not wait for.',
                     lower_bound=0)
flags.DEFINE_integer('peer_timeout_secs', 600, 'Seconds after which a process of the cluster that does not answer is given up.',
                     lower_bound=1)
flags.DEFINE_integer('termination_grace_secs', 25, 'Seconds from SIGTERM to the end of a process of a cluster, within which the '
                     'chief saves; less than what the cluster manager gives.', lower_bound=1)

# Output.
flags.DEFINE_string('train_logdir', None, 'Folder of checkpoints and summaries.')
flags.DEFINE_integer('log_steps', 10, 'Steps between two lines of progress; 0: none.', lower_bound=0)
flags.DEFINE_integer('save_interval_secs', 1200, 'Seconds between two checkpoints.', lower_bound=1)
flags.DEFINE_integer('max_checkpoints_to_keep', 5, 'Number of newest checkpoints that are kept; 0: all.', lower_bound=0)
flags.DEFINE_float('keep_checkpoint_every_n_hours', 10000.0, 'Hours after which one more checkpoint is kept for good.',
                   lower_bound=0.0)
flags.DEFINE_integer('save_summaries_secs', 600, 'Seconds between two summaries.', lower_bound=1)
flags.DEFINE_boolean('save_summaries_images', False, 'Add images, labels and predictions to the summaries.')
flags.DEFINE_boolean('save_summaries_histograms', False, 'Add a histogram of each variable to the summaries.')
flags.DEFINE_string('profile_logdir', None, 'Folder for a profile of every 100th step.')

# Validation.
flags.DEFINE_string('validation_split', None, 'Split that is evaluated while training, as eval.py does it; unset: none.')
flags.DEFINE_integer('validation_interval_steps', None, 'Steps between two validations; unset: one at each checkpoint.',
                     lower_bound=1)
flags.DEFINE_integer('validation_max_images', None, 'Images that a validation sees, the first of the split; unset: all.',
                     lower_bound=1)
flags.DEFINE_enum('validation_job', 'chief', ['chief', 'evaluator'], 'Who validates: this process (of a cluster, the chief), or '
                  'another one, train.py --job_name=evaluator.')
flags.DEFINE_integer('early_stopping_validations', None, 'End training after that many validations without a new best; unset: at '
                     'the last step.', lower_bound=1)

# Optimisation.
flags.DEFINE_enum('optimizer', 'momentum', ['momentum', 'adam'], 'Optimizer.')
flags.DEFINE_enum('learning_policy', 'poly', ['poly', 'step', 'cosine', 'multi_steps'], 'How the learning rate falls.')
flags.DEFINE_float('base_learning_rate', 0.0001, 'Learning rate at the start: 0.007 to train on PASCAL VOC, 0.0001 to fine-tune.',
                   lower_bound=0.0)
flags.DEFINE_float('decay_steps', 0.0, 'Steps of the poly policy; 0: to the end of training.', lower_bound=0.0)
flags.DEFINE_float('end_learning_rate', 0.0, 'Rate at which the poly policy ends.', lower_bound=0.0)
flags.DEFINE_float('learning_rate_decay_factor', 0.1, 'Factor of the step policy.', lower_bound=0.0)
flags.DEFINE_integer('learning_rate_decay_step', 2000, 'Steps between two decays of the step policy.', lower_bound=1)
flags.DEFINE_float('learning_power', 0.9, 'Exponent of the poly policy.', lower_bound=0.0)
common.define_numbers('learning_rate_boundaries', None, 'Steps at which the multi_steps policy changes the rate.')
common.define_numbers('boundary_learning_rates', None, 'Rates of the multi_steps policy, one more than boundaries.', float)
flags.DEFINE_integer('slow_start_step', 0, 'Number of first steps with a small rate.', lower_bound=0)
flags.DEFINE_float('slow_start_learning_rate', 1e-4, 'Rate of the slow start.', lower_bound=0.0)
flags.DEFINE_enum('slow_start_burnin_type', 'none', ['none', 'linear'], 'Whether the rate of the slow start is constant or '
                  'climbs to the base rate.')
flags.DEFINE_integer('training_number_of_steps', 30000, 'Global step at which training ends, over all workers.', lower_bound=1)
flags.DEFINE_float('momentum', 0.9, 'Momentum of the momentum optimizer.', lower_bound=0.0, upper_bound=1.0)
flags.DEFINE_float('adam_learning_rate', 0.001, 'Constant rate of the Adam optimizer.', lower_bound=0.0)
flags.DEFINE_float('adam_epsilon', 1e-08, 'Epsilon of the Adam optimizer.', lower_bound=0.0)
flags.DEFINE_integer('train_batch_size', 8, 'Images per batch of one worker, over its clones.', lower_bound=1)
flags.DEFINE_integer('accumulate_steps', 1, 'Batches of an update, each with the memory of one: the step that they make together '
                     'has the mean of their gradients. Batch norm sees one batch at a time.', lower_bound=1)
flags.DEFINE_float('weight_decay', 0.00004, 'Factor of the L2 penalty; 0.0001 for ResNet.', lower_bound=0.0)
common.define_numbers('train_crop_size', [513, 513], 'height,width of the training crops in pixels.')
flags.DEFINE_float('last_layer_gradient_multiplier', 1.0, 'Factor of the gradients of the last layers.', lower_bound=0.0)
flags.DEFINE_boolean('upsample_logits', True, 'Resize the logits to the labels for the loss; else the labels to the logits.')
flags.DEFINE_integer('hard_example_mining_step', 0, 'Steps over which the loss narrows to the hardest pixels; 0: at once.',
                     lower_bound=0)
flags.DEFINE_float('top_k_percent_pixels', 1.0, 'Share of the pixels, the hardest ones, that make the loss.')
flags.DEFINE_float('drop_path_keep_prob', 1.0, 'Keep probability of a path of the NAS networks.', lower_bound=0.0,
                   upper_bound=1.0)

# Speed and memory.
flags.DEFINE_enum('mixed_precision', None, ['bfloat16', 'float16'], 'Compute the network in this type; weights, statistics, loss '
                  'and optimizer stay float32.')
flags.DEFINE_boolean('xla', False, 'Compile the graph with XLA; for GPUs.')
flags.DEFINE_boolean('recompute_grad', False, 'Keep only the results of the blocks of the backbone for the gradient, and compute '
                     'what is inside of them anew: less memory, more time.')

# Start.
flags.DEFINE_string('tf_initial_checkpoint', None, 'Checkpoint whose weights training starts from.')
common.define_switch('initialize_last_layer', True, common.AUTO, 'Restore the last layers from it, too; auto: those that fit.')
flags.DEFINE_boolean('last_layers_contain_logits_only', False, 'Only the logits count as last layers; else the whole head.')
flags.DEFINE_boolean('freeze_backbone', False, 'Leave the backbone as it starts, batch norm included; train the rest.')
common.define_numbers('frozen_scopes', None, 'Variable scopes to leave so, for example MobilenetV2/Conv,aspp0.', str)
flags.DEFINE_boolean('fine_tune_batch_norm', True, 'Train batch norm; needs 12 or more images per clone.')
flags.DEFINE_integer('seed', None, 'Seed of weights, data order and augmentation; unset: another one each run.')

# Data.
flags.DEFINE_float('min_scale_factor', 0.5, 'Least factor of the random scaling.', lower_bound=0.0)
flags.DEFINE_float('max_scale_factor', 2.0, 'Largest factor of the random scaling.', lower_bound=0.0)
flags.DEFINE_float('scale_factor_step_size', 0.25, 'Step of the random scaling; 0: any factor.', lower_bound=0.0)
flags.DEFINE_string('train_split', 'train', 'Split to train on.')
flags.DEFINE_integer('check_images', 200, 'Images that are looked through before the first step; 0: none.', lower_bound=0)

# Fewer images make poor statistics.
_MIN_BATCH_FOR_BATCH_NORM = 8
# Moving averages are e^-x of their initial values after steps * (1 - decay) = x.
_SETTLED = 3.0
_SCHEDULE_FLAGS = ('base_learning_rate', 'learning_policy', 'decay_steps', 'end_learning_rate', 'learning_rate_decay_factor',
                   'learning_rate_decay_step', 'learning_power', 'learning_rate_boundaries', 'boundary_learning_rates',
                   'slow_start_step')


class _Idle(NamedTuple):
  """Flags that nothing looks at in some runs.

  Attributes:
    names: the flags.
    is_idle: function without arguments.
    reason: end of the sentence "--name=value has no effect: ".
    refused: whether that is an error, because it makes another run than the one asked for.
  """
  names: tuple
  is_idle: Callable
  reason: str
  refused: bool = False


def _uses_adam():
  return FLAGS.optimizer == 'adam'


def _resizes():
  return FLAGS.min_resize_value or FLAGS.max_resize_value


_IDLE = (
    _Idle(_SCHEDULE_FLAGS, _uses_adam, '--optimizer=adam has a constant rate, --adam_learning_rate.', refused=True),
    _Idle(('momentum',), _uses_adam, '--optimizer is adam.'),
    _Idle(('adam_learning_rate', 'adam_epsilon'), lambda: not _uses_adam(), '--optimizer is not adam.', refused=True),
    _Idle(('learning_rate_boundaries', 'boundary_learning_rates'), lambda: FLAGS.learning_policy != 'multi_steps',
          '--learning_policy is not multi_steps.', refused=True),
    _Idle(('base_learning_rate',), lambda: FLAGS.learning_policy == 'multi_steps',
          '--learning_policy=multi_steps has --boundary_learning_rates.'),
    _Idle(('decay_steps', 'end_learning_rate', 'learning_power'), lambda: FLAGS.learning_policy != 'poly',
          '--learning_policy is not poly.'),
    _Idle(('learning_rate_decay_factor', 'learning_rate_decay_step'), lambda: FLAGS.learning_policy != 'step',
          '--learning_policy is not step.'),
    _Idle(('slow_start_learning_rate', 'slow_start_burnin_type'), lambda: not FLAGS.slow_start_step, '--slow_start_step is 0.'),
    _Idle(('hard_example_mining_step',), lambda: FLAGS.top_k_percent_pixels == 1.0, '--top_k_percent_pixels is 1.'),
    _Idle(('initialize_last_layer',), lambda: not FLAGS.tf_initial_checkpoint, 'there is no --tf_initial_checkpoint.'),
    _Idle(('resize_factor', 'keep_aspect_ratio'), lambda: not _resizes(), 'there is no --min_resize_value.'),
    _Idle(('batch_norm_decay',), lambda: not FLAGS.fine_tune_batch_norm, '--fine_tune_batch_norm is false.'),
    _Idle(('drop_path_keep_prob',), lambda: not FLAGS.model_variant.startswith('nas_'), '--model_variant is no NAS network.'),
    _Idle(('startup_delay_steps',), lambda: cluster().num_workers == 1, 'there is one worker.'),
    _Idle(('startup_delay_steps',), lambda: FLAGS.sync_replicas, '--sync_replicas starts all workers together.'),
    _Idle(('xla',), lambda: not tf.config.list_physical_devices('GPU'), 'it is for GPUs, and there is none.'),
    _Idle(('recompute_grad',), lambda: FLAGS.model_variant.startswith('nas_'),
          'the paths that the NAS networks drop at random cannot be computed anew.', refused=True),
    _Idle(('validation_interval_steps', 'validation_max_images', 'early_stopping_validations', 'validation_job'),
          lambda: not FLAGS.validation_split, 'there is no --validation_split.', refused=True),
    _Idle(('backup_workers',), lambda: not FLAGS.sync_replicas, 'there is no --sync_replicas.', refused=True),
)


def check():
  """Refuses values that do not go together, and warns of those that are seldom meant.

  Raises:
    InputError: names the flags, their values and what would be right.
  """
  for rule in (_check_clones, _check_cluster, _check_idle, _check_schedule, _check_loss, _check_images, _check_batch_norm,
               _check_precision, _check_paths):
    rule()


def cluster():
  """The processes that train together, as flags or TF_CONFIG say; cluster.Cluster.

  Raises:
    InputError: wrong or contradicting descriptions.
  """
  given = {name: FLAGS[name].value for name in cluster_lib.FLAG_NAMES if FLAGS[name].value != FLAGS[name].default}
  return cluster_lib.describe(given, os.environ.get('TF_CONFIG', ''))


def frozen_scopes():
  """Variable scopes that --freeze_backbone and --frozen_scopes keep as they are; tuple of texts."""
  backbone = [feature_extractor.get_backbone(FLAGS.model_variant).scope] if FLAGS.freeze_backbone else []
  return (*backbone, *(scope.strip('/') for scope in FLAGS.frozen_scopes or []))


def _check_clones():
  if FLAGS.train_batch_size % FLAGS.num_clones:
    raise InputError(f'--train_batch_size={FLAGS.train_batch_size} cannot be split over --num_clones={FLAGS.num_clones}: give a '
                     'multiple.')
  num_gpus = len(tf.config.list_physical_devices('GPU'))
  if FLAGS.num_clones > max(num_gpus, 1) and not FLAGS.clone_on_cpu:
    raise InputError(f'--num_clones={FLAGS.num_clones}, but this machine has {num_gpus} GPUs; give at most that number, or '
                     '--clone_on_cpu.')


def _check_cluster():
  if cluster().is_evaluator:
    if not FLAGS.validation_split or FLAGS.validation_job != 'evaluator':
      raise InputError('An evaluator (--job_name, or TF_CONFIG) needs --validation_split and --validation_job=evaluator, and so '
                       'does the process that trains, which else validates itself; or run eval.py --checkpoint_dir=TRAIN_LOGDIR.')
    return
  num_workers = cluster().num_workers
  if FLAGS.sync_replicas and num_workers == 1:
    raise InputError('--sync_replicas needs a cluster of two or more workers: --ps_hosts and --worker_hosts, or TF_CONFIG.')
  if FLAGS.backup_workers >= num_workers > 1:
    raise InputError(f'--backup_workers={FLAGS.backup_workers}: of {num_workers} workers at most {num_workers - 1}.')


def _check_idle():
  for row in _IDLE:
    # A file of flags may hold defaults, too.
    changed = [FLAGS[name] for name in row.names if FLAGS[name].value != FLAGS[name].default]
    if not changed or not row.is_idle():
      continue
    message = f'{" ".join(changed[0].serialize().splitlines())} has no effect: {row.reason}'
    if row.refused:
      raise InputError(f'{message} Leave it out.')
    logging.warning('%s', message)


def _check_schedule():
  if FLAGS.slow_start_step >= FLAGS.training_number_of_steps:
    raise InputError(f'--slow_start_step={FLAGS.slow_start_step} is not less than '
                     f'--training_number_of_steps={FLAGS.training_number_of_steps}: the base rate would never be reached.')
  with tf.Graph().as_default():
    learning_rate()


def learning_rate():
  """float32 scalar tensor in the default graph, the rate that the flags mean."""
  if _uses_adam():
    return tf.constant(FLAGS.adam_learning_rate)
  return train_utils.get_model_learning_rate(
      FLAGS.learning_policy, FLAGS.base_learning_rate, FLAGS.learning_rate_decay_step, FLAGS.learning_rate_decay_factor,
      FLAGS.training_number_of_steps, FLAGS.learning_power, FLAGS.slow_start_step, FLAGS.slow_start_learning_rate,
      FLAGS.slow_start_burnin_type, FLAGS.decay_steps, FLAGS.end_learning_rate, FLAGS.learning_rate_boundaries,
      FLAGS.boundary_learning_rates)


def _check_loss():
  train_utils.check_mining(FLAGS.hard_example_mining_step, FLAGS.top_k_percent_pixels)
  if FLAGS.drop_path_keep_prob == 0:
    raise InputError('--drop_path_keep_prob=0: give a probability above 0, up to 1 (no drop path).')
  if FLAGS.label_weights and FLAGS.label_weights != [common.AUTO] and not any(FLAGS.label_weights):
    raise InputError('--label_weights are all 0: nothing would be learned.')
  if FLAGS.image_pyramid and min(FLAGS.image_pyramid) <= 0:
    raise InputError(f'--image_pyramid={",".join(map(str, FLAGS.image_pyramid))}: give scales above 0, for example 0.5,1.0,1.5.')


def _check_images():
  for name in ('train_crop_size', 'image_pooling_crop_size', 'image_pooling_stride'):
    if FLAGS[name].value is not None:
      common.parse_size(FLAGS[name].value, name)
  low, high, step = FLAGS.min_scale_factor, FLAGS.max_scale_factor, FLAGS.scale_factor_step_size
  if not 0 < low <= high:
    raise InputError(f'--min_scale_factor={low} and --max_scale_factor={high}: give a number above 0 and one not below it.')
  if step > high - low > 0:
    raise InputError(f'--scale_factor_step_size={step} is more than --max_scale_factor={high} less --min_scale_factor={low}: '
                     'give a smaller step, or 0 for any factor between them.')
  run_options.check_resizing(FLAGS.min_resize_value, FLAGS.max_resize_value)
  if FLAGS.validation_split == FLAGS.train_split:
    logging.warning('--validation_split=%s is what is trained on: it tells nothing of images that the network has not seen.',
                    FLAGS.validation_split)
  for name, purpose in (('train_split', 'train on'), ('validation_split', 'compare with')):
    if FLAGS[name].value == common.TEST_SET:
      raise InputError(f'--{name}={FLAGS[name].value} has no labels to {purpose}; choose another split.')


def _check_batch_norm():
  if not FLAGS.fine_tune_batch_norm:
    return
  batch_size = FLAGS.train_batch_size // FLAGS.num_clones
  if batch_size == 1 and _pools_to_one_pixel() and not layers.is_in_scopes('image_pooling', frozen_scopes()):
    raise InputError('--fine_tune_batch_norm with 1 image per clone: the pooled image is a single pixel, which has no variance. '
                     'Give --fine_tune_batch_norm=false, a larger --train_batch_size, or --add_image_level_feature=false.')
  if batch_size < _MIN_BATCH_FOR_BATCH_NORM:
    logging.warning('--fine_tune_batch_norm with %d images per clone: each clone has statistics of its own images alone, and of '
                    'fewer than %d they are poor (12 or more are good). Give --fine_tune_batch_norm=false, or a larger '
                    '--train_batch_size (--accumulate_steps does not help here).', batch_size, _MIN_BATCH_FOR_BATCH_NORM)
  decay = layers.HEAD_BATCH_NORM_DECAY if FLAGS.batch_norm_decay is None else FLAGS.batch_norm_decay
  if FLAGS.training_number_of_steps * (1 - decay) < _SETTLED:
    fitting = max(0.9, 1 - 10 / FLAGS.training_number_of_steps)
    logging.warning('Moving averages of batch norm with a decay of %g hardly move in %d steps: training may look good and '
                    'evaluation bad. For so few steps give --batch_norm_decay=%.4g, or --fine_tune_batch_norm=false.', decay,
                    FLAGS.training_number_of_steps, fitting)


def _check_precision():
  if FLAGS.xla and FLAGS.recompute_grad:
    raise InputError('--xla would undo --recompute_grad: give one of them.')
  if not FLAGS.mixed_precision:
    return
  if FLAGS.quantize_delay_step >= 0:
    raise InputError(f'--mixed_precision={FLAGS.mixed_precision} does not go with --quantize_delay_step: 8-bit arithmetic is '
                     'simulated in float32. Leave one of them out.')
  if FLAGS.mixed_precision == 'float16' and FLAGS.sync_replicas:
    raise InputError('--mixed_precision=float16 does not go with --sync_replicas: each worker would scale its loss by its own '
                     'factor; bfloat16 needs none.')
  if not tf.config.list_physical_devices('GPU'):
    _warn_of_slow_precision()


def _warn_of_slow_precision():
  if FLAGS.mixed_precision == 'float16' or not mixed_precision.cpu_has_bfloat16():
    logging.warning('--mixed_precision=%s will be slower than float32: this CPU has no units for it.', FLAGS.mixed_precision)
  elif FLAGS.model_variant.startswith('mobilenet'):
    logging.warning('--mixed_precision=%s may be slower than float32: on a CPU --model_variant=%s spends its time on depthwise '
                    'convolutions and batch norm, which gain nothing.', FLAGS.mixed_precision, FLAGS.model_variant)


def _pools_to_one_pixel():
  """Whether the image-level branch normalises one pixel per image."""
  if not (FLAGS.aspp_with_batch_norm and FLAGS.add_image_level_feature):
    return False
  if FLAGS.dense_prediction_cell_json or FLAGS.aspp_with_squeeze_and_excitation:
    return False
  crop_size = common.parse_size(FLAGS.train_crop_size, 'train_crop_size')
  pooled_size = common.parse_size(FLAGS.image_pooling_crop_size or crop_size, 'image_pooling_crop_size')
  stride = common.parse_size(FLAGS.image_pooling_stride, 'image_pooling_stride')
  scale = 1.0 / FLAGS.output_stride
  return all(utils.scale_dimension(side, scale) - utils.scale_dimension(pooled, scale) < step
             for side, pooled, step in zip(crop_size, pooled_size, stride, strict=True))


def _check_paths():
  if FLAGS.tf_initial_checkpoint:
    checkpoint.resolve_checkpoint(FLAGS.tf_initial_checkpoint, 'tf_initial_checkpoint')
  for name in ('train_logdir', 'profile_logdir'):
    path = FLAGS[name].value
    if path and tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path):
      raise InputError(f'--{name}={path} is a file; give a folder.')
