"""Trains DeepLabv3+ on TFRecords: flags -> data -> graph of one or more clones -> session.

python train.py --model_variant=mobilenet_v2 --dataset_dir=... --train_logdir=...
"""

from absl import flags, logging

from deeplab import common, data_generator, model, train_utils
from deeplab.core import training_hooks
from deeplab.core.errors import InputError
from deeplab.core.tf_compat import tf
from deeplab.datasets import colormap

FLAGS = flags.FLAGS

common.define_network_flags()
common.define_data_flags()

# Clones and replicas.
flags.DEFINE_integer('num_clones', 1, 'Number of GPUs (or, with --clone_on_cpu, of parts on the CPU) that share a batch.',
                     lower_bound=1)
flags.DEFINE_boolean('clone_on_cpu', False, 'Run the clones on the CPU.')
flags.DEFINE_integer('num_replicas', 1, 'Number of worker processes.', lower_bound=1)
flags.DEFINE_integer('startup_delay_steps', 15, 'Worker i starts when the global step has reached i times this number.',
                     lower_bound=0)
flags.DEFINE_integer('num_ps_tasks', 0, 'Number of parameter servers; 0: the variables are in this process.', lower_bound=0)
flags.DEFINE_integer('task', 0, 'Index of this worker; worker 0 saves checkpoints and summaries.', lower_bound=0)

# Output.
flags.DEFINE_string('train_logdir', None, 'Folder of checkpoints and summaries.')
flags.DEFINE_integer('log_steps', 10, 'Steps between two lines of progress; 0: none.', lower_bound=0)
flags.DEFINE_integer('save_interval_secs', 1200, 'Seconds between two checkpoints.', lower_bound=1)
flags.DEFINE_integer('save_summaries_secs', 600, 'Seconds between two summaries.', lower_bound=1)
flags.DEFINE_boolean('save_summaries_images', False, 'Add images, labels and predictions to the summaries.')
flags.DEFINE_boolean('save_summaries_histograms', False, 'Add a histogram of each variable to the summaries.')
flags.DEFINE_string('profile_logdir', None, 'Folder for a profile of every 100th step.')

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
flags.DEFINE_enum('slow_start_burnin_type', 'none', ['none', 'linear'], 'Whether the rate of the slow start is constant or climbs '
                  'to the base rate.')
flags.DEFINE_integer('training_number_of_steps', 30000, 'Global step at which training ends, over all workers.', lower_bound=1)
flags.DEFINE_float('momentum', 0.9, 'Momentum of the momentum optimizer.', lower_bound=0.0, upper_bound=1.0)
flags.DEFINE_float('adam_learning_rate', 0.001, 'Constant rate of the Adam optimizer.', lower_bound=0.0)
flags.DEFINE_float('adam_epsilon', 1e-08, 'Epsilon of the Adam optimizer.', lower_bound=0.0)
flags.DEFINE_integer('train_batch_size', 8, 'Images per step of one worker, over its clones.', lower_bound=1)
flags.DEFINE_float('weight_decay', 0.00004, 'Factor of the L2 penalty; 0.0001 for ResNet.', lower_bound=0.0)
common.define_numbers('train_crop_size', [513, 513], 'height,width of the training crops in pixels.')
flags.DEFINE_float('last_layer_gradient_multiplier', 1.0, 'Factor of the gradients of the last layers.', lower_bound=0.0)
flags.DEFINE_boolean('upsample_logits', True, 'Resize the logits to the labels for the loss; else the labels to the logits.')
flags.DEFINE_integer('hard_example_mining_step', 0, 'Steps over which the loss narrows to the hardest pixels; 0: at once.',
                     lower_bound=0)
flags.DEFINE_float('top_k_percent_pixels', 1.0, 'Share of the pixels, the hardest ones, that make the loss.')
flags.DEFINE_float('drop_path_keep_prob', 1.0, 'Keep probability of a path of the NAS networks.', lower_bound=0.0, upper_bound=1.0)

# Start.
flags.DEFINE_string('tf_initial_checkpoint', None, 'Checkpoint whose weights training starts from.')
flags.DEFINE_boolean('initialize_last_layer', True, 'Restore the last layers from it, too.')
flags.DEFINE_boolean('last_layers_contain_logits_only', False, 'Only the logits count as last layers; else the whole head.')
flags.DEFINE_boolean('fine_tune_batch_norm', True, 'Train batch norm; needs 12 or more images per clone.')
flags.DEFINE_integer('seed', None, 'Seed of weights, data order and augmentation; unset: another one each run.')

# Data.
flags.DEFINE_float('min_scale_factor', 0.5, 'Least factor of the random scaling.', lower_bound=0.0)
flags.DEFINE_float('max_scale_factor', 2.0, 'Largest factor of the random scaling.', lower_bound=0.0)
flags.DEFINE_float('scale_factor_step_size', 0.25, 'Step of the random scaling; 0: any factor.', lower_bound=0.0)
flags.DEFINE_string('train_split', 'train', 'Split to train on.')

_CPU = '/device:CPU:0'
_VARIABLE_OPS = ('VarHandleOp', 'VariableV2', 'Variable')
# Collection of the one tensor that holds the learning rate in use.
_LEARNING_RATE = 'learning_rate'
_PROFILE_STEPS = 100
# Pictures in one summary.
_MAX_SUMMARY_IMAGES = 3


def _build_deeplab(iterator, outputs_to_num_classes, ignore_label):
  """Takes the next batch, builds the network on it and adds its losses to the graph.

  Args:
    iterator: of samples with common.IMAGE float32 [batch, height, width, 3] and common.LABEL int32 [batch, height, width, 1].
    outputs_to_num_classes: output name -> number of classes.
    ignore_label: label of pixels without loss.
  """
  with tf.device(_CPU):
    samples = iterator.get_next()
  # Graphs, summaries and tools find the batch and the logits by these names.
  image = tf.identity(samples[common.IMAGE], name=common.IMAGE)
  label = tf.identity(samples[common.LABEL], name=common.LABEL)
  model_options = common.ModelOptions(
      outputs_to_num_classes=outputs_to_num_classes,
      crop_size=common.parse_size(FLAGS.train_crop_size, 'train_crop_size'),
      atrous_rates=FLAGS.atrous_rates,
      output_stride=FLAGS.output_stride)
  outputs_to_scales_to_logits = model.multi_scale_logits(
      image,
      model_options=model_options,
      image_pyramid=FLAGS.image_pyramid,
      weight_decay=FLAGS.weight_decay,
      is_training=True,
      fine_tune_batch_norm=FLAGS.fine_tune_batch_norm,
      nas_training_hyper_parameters={
          'drop_path_keep_prob': FLAGS.drop_path_keep_prob,
          'total_training_steps': FLAGS.training_number_of_steps,
      })
  for output, num_classes in outputs_to_num_classes.items():
    scales_to_logits = outputs_to_scales_to_logits[output]
    scales_to_logits[model.MERGED_LOGITS_SCOPE] = tf.identity(scales_to_logits[model.MERGED_LOGITS_SCOPE], name=output)
    train_utils.add_softmax_cross_entropy_loss_for_each_scale(
        scales_to_logits, label, num_classes, ignore_label,
        loss_weight=model_options.label_weights,
        upsample_logits=FLAGS.upsample_logits,
        hard_example_mining_step=FLAGS.hard_example_mining_step,
        top_k_percent_pixels=FLAGS.top_k_percent_pixels,
        scope=output)
    # The first clone speaks for all.
    if not tf.get_variable_scope().reuse:
      _log_summaries(image, label, num_classes, scales_to_logits[model.MERGED_LOGITS_SCOPE])


def _scalar_summary(tag, value):
  """Adds a scalar under exactly this tag; tf.summary.scalar appends _1 where an op has the name already."""
  tf.add_to_collection(tf.GraphKeys.SUMMARIES, tf.raw_ops.ScalarSummary(tags=tag, values=value))


def _log_summaries(input_image, label, num_of_classes, logits):
  """Adds pictures and histograms of variables to the summaries, as the flags ask.

  Args:
    input_image: float32 [batch, height, width, 3], 0..255.
    label: int32 [batch, height, width, 1].
    num_of_classes: number of classes.
    logits: float32 [batch, h, w, num_of_classes].
  """
  if FLAGS.save_summaries_histograms:
    for variable in tf.model_variables():
      tf.add_to_collection(tf.GraphKeys.SUMMARIES, tf.raw_ops.HistogramSummary(tag=variable.op.name, values=variable))
  if not FLAGS.save_summaries_images:
    return
  colors = tf.constant(colormap.create_label_colormap(), tf.uint8)
  prediction = tf.argmax(tf.image.resize_bilinear(logits, tf.shape(label)[1:3], align_corners=True), axis=3)
  for name, picture in (('image', tf.cast(input_image, tf.uint8)),
                        ('label', tf.gather(colors, label[..., 0])),
                        (common.OUTPUT_TYPE, tf.gather(colors, prediction))):
    tf.summary.image(f'samples/{name}', picture, max_outputs=_MAX_SUMMARY_IMAGES)


def _tower_loss(iterator, num_of_classes, ignore_label, scope, reuse_variable):
  """Builds one clone.

  Args:
    iterator: as in _build_deeplab.
    num_of_classes: number of classes.
    ignore_label: label of pixels without loss.
    scope: name scope of the clone, '' for the first.
    reuse_variable: whether an earlier clone has made the variables.

  Returns:
    float32 scalar: the cross entropies of the clone. That of the first clone also holds the L2 penalty, times the number of
    clones: the mean over the clones then holds it once, whatever their number.
  """
  with tf.variable_scope(tf.get_variable_scope(), reuse=True if reuse_variable else None):
    _build_deeplab(iterator, {common.OUTPUT_TYPE: num_of_classes}, ignore_label)
  losses = tf.losses.get_losses(scope=scope)
  if reuse_variable:
    return tf.add_n(losses)
  regularization_loss = tf.losses.get_regularization_loss()
  for loss in losses:
    _scalar_summary(f'Losses/{loss.op.name}', loss)
  _scalar_summary('Losses/total_regularization_loss', regularization_loss)
  return tf.add_n(losses) + FLAGS.num_clones * regularization_loss


def _average_gradients(tower_grads):
  """Mean of the gradients of each variable over the clones.

  Args:
    tower_grads: for each clone the list of (gradient or None, variable) that compute_gradients gives.

  Returns:
    List of (mean gradient, variable); variables without a gradient are left out.
  """
  averaged = []
  for grads_and_vars in zip(*tower_grads):
    gradients = [gradient for gradient, _ in grads_and_vars if gradient is not None]
    if gradients:
      averaged.append((tf.add_n(gradients) / len(tower_grads) if len(tower_grads) > 1 else gradients[0], grads_and_vars[0][1]))
  return averaged


def _clone_device(index):
  """Device function of a clone: its variables on the CPU (or where the parameter servers are), all else on its GPU."""
  device = _CPU if FLAGS.clone_on_cpu else f'/device:GPU:{index}'
  return lambda op: _CPU if op.type in _VARIABLE_OPS else device


def _build_optimizer():
  """(optimizer, learning rate really used)."""
  if FLAGS.optimizer == 'adam':
    learning_rate = tf.constant(FLAGS.adam_learning_rate)
    return tf.train.AdamOptimizer(learning_rate, epsilon=FLAGS.adam_epsilon), learning_rate
  learning_rate = train_utils.get_model_learning_rate(
      FLAGS.learning_policy, FLAGS.base_learning_rate, FLAGS.learning_rate_decay_step, FLAGS.learning_rate_decay_factor,
      FLAGS.training_number_of_steps, FLAGS.learning_power, FLAGS.slow_start_step, FLAGS.slow_start_learning_rate,
      FLAGS.slow_start_burnin_type, FLAGS.decay_steps, FLAGS.end_learning_rate, FLAGS.learning_rate_boundaries,
      FLAGS.boundary_learning_rates)
  return tf.train.MomentumOptimizer(learning_rate, FLAGS.momentum), learning_rate


def _last_layers():
  """Scopes of the layers that --last_layer_gradient_multiplier and --initialize_last_layer are about."""
  if FLAGS.decoder_output_is_logits and FLAGS.last_layers_contain_logits_only:
    return [model.DECODER_SCOPE]
  return model.get_extra_layer_scopes(FLAGS.last_layers_contain_logits_only)


def _multiply_gradients(grads_and_vars):
  multipliers = train_utils.get_model_gradient_multipliers(_last_layers(), FLAGS.last_layer_gradient_multiplier)
  return [(gradient * multipliers.get(variable.op.name, 1.0), variable) for gradient, variable in grads_and_vars]


def _require_finite_loss(total_loss, learning_rate):
  """Op that fails where the loss is not finite; the update waits for it."""
  step = tf.identity(tf.train.get_global_step())
  message = tf.strings.format('Training has diverged: the loss is {} at step {} with learning rate {}. The checkpoints hold '
                              'earlier steps; start again from one with a smaller --base_learning_rate, and look at the labels.',
                              [total_loss, step, learning_rate])
  return tf.Assert(tf.math.is_finite(total_loss), [message])


def _train_deeplab_model(iterator, num_of_classes, ignore_label):
  """Builds the clones and the update of their variables.

  Args:
    iterator: as in _build_deeplab; every clone takes a batch of its own.
    num_of_classes: number of classes.
    ignore_label: label of pixels without loss.

  Returns:
    train_tensor: float32 scalar; running it trains one step and gives the loss before the update, the mean of the clones' cross
      entropies plus one L2 penalty.
    summary_op: string scalar, all summaries.
  """
  global_step = tf.train.get_or_create_global_step()
  with tf.device(_CPU):
    optimizer, learning_rate = _build_optimizer()
  tower_losses, tower_grads = [], []
  for i in range(FLAGS.num_clones):
    with tf.device(_clone_device(i)), tf.name_scope(f'clone_{i}' if i else '') as scope:
      tower_losses.append(_tower_loss(iterator, num_of_classes, ignore_label, scope=scope, reuse_variable=i > 0))
    if i == 0:
      # Those of one clone: the moving averages would else decay once per clone.
      update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
  for i, tower_loss in enumerate(tower_losses):
    with tf.device(_clone_device(i)), tf.name_scope(f'clone_{i}' if i else ''):
      tower_grads.append(optimizer.compute_gradients(tower_loss))
  with tf.device(_CPU):
    total_loss = tf.add_n(tower_losses) / FLAGS.num_clones
    grads_and_vars = _multiply_gradients(_average_gradients(tower_grads))
    with tf.control_dependencies([_require_finite_loss(total_loss, learning_rate)]):
      apply_op = optimizer.apply_gradients(grads_and_vars, global_step=global_step)
    with tf.control_dependencies([apply_op, *update_ops]):
      train_tensor = tf.identity(total_loss, name='train_op')
    _scalar_summary('total_loss', total_loss)
    _scalar_summary('learning_rate', learning_rate)
    tf.add_to_collection(_LEARNING_RATE, learning_rate)
    return train_tensor, tf.summary.merge_all()


def _build_dataset():
  crop_size = common.parse_size(FLAGS.train_crop_size, 'train_crop_size')
  return data_generator.Dataset(
      dataset_name=FLAGS.dataset,
      split_name=FLAGS.train_split,
      dataset_dir=FLAGS.dataset_dir,
      batch_size=FLAGS.train_batch_size // FLAGS.num_clones,
      crop_size=crop_size,
      min_resize_value=FLAGS.min_resize_value,
      max_resize_value=FLAGS.max_resize_value,
      resize_factor=FLAGS.resize_factor,
      keep_aspect_ratio=FLAGS.keep_aspect_ratio,
      min_scale_factor=FLAGS.min_scale_factor,
      max_scale_factor=FLAGS.max_scale_factor,
      scale_factor_step_size=FLAGS.scale_factor_step_size,
      model_variant=FLAGS.model_variant,
      num_readers=2,
      is_training=True,
      should_shuffle=True,
      should_repeat=True,
      seed=FLAGS.seed)


def _check_flags():
  """Refuses values that do not go together, before any work."""
  if FLAGS.train_batch_size % FLAGS.num_clones:
    raise InputError(f'--train_batch_size={FLAGS.train_batch_size} cannot be split over --num_clones={FLAGS.num_clones}: give a '
                     'multiple.')
  num_gpus = len(tf.config.list_physical_devices('GPU'))
  if FLAGS.num_clones > max(num_gpus, 1) and not FLAGS.clone_on_cpu:
    raise InputError(f'--num_clones={FLAGS.num_clones}, but this machine has {num_gpus} GPUs; give at most that number, or '
                     '--clone_on_cpu.')
  if FLAGS.num_ps_tasks and not FLAGS.master:
    raise InputError(f'--num_ps_tasks={FLAGS.num_ps_tasks} needs --master, the address of a server of the cluster.')
  if FLAGS.num_replicas > 1 and not FLAGS.num_ps_tasks:
    raise InputError(f'--num_replicas={FLAGS.num_replicas} needs --num_ps_tasks of 1 or more, for the variables they share.')
  if FLAGS.task >= FLAGS.num_replicas:
    raise InputError(f'--task={FLAGS.task}: with --num_replicas={FLAGS.num_replicas} it is at most {FLAGS.num_replicas - 1}.')
  if FLAGS.quantize_delay_step >= 0:
    raise InputError(f'--quantize_delay_step={FLAGS.quantize_delay_step}: quantised training is not supported yet; leave it out.')


def _is_chief():
  return FLAGS.task == 0


def _hooks(progress, scaffold):
  """(hooks of every worker, hooks of the chief)."""
  hooks = [tf.train.StopAtStepHook(last_step=FLAGS.training_number_of_steps), progress]
  if not _is_chief() and FLAGS.startup_delay_steps:
    hooks.append(tf.train.GlobalStepWaiterHook(FLAGS.task * FLAGS.startup_delay_steps))
  if FLAGS.profile_logdir:
    hooks.append(tf.train.ProfilerHook(save_steps=_PROFILE_STEPS, output_dir=FLAGS.profile_logdir))
  saver = tf.train.CheckpointSaverHook(FLAGS.train_logdir, save_secs=FLAGS.save_interval_secs, scaffold=scaffold,
                                       listeners=[training_hooks.FiniteWeightsListener()])
  return hooks, [saver]


def _train(train_tensor, summary_op, init_fn):
  """Runs the training session to the last step; returns the global step that it reached."""
  scaffold = tf.train.Scaffold(init_fn=init_fn, summary_op=summary_op, saver=tf.train.Saver(save_relative_paths=True))
  progress = training_hooks.ProgressHook(train_tensor, tf.get_collection(_LEARNING_RATE)[0], FLAGS.train_batch_size,
                                         FLAGS.training_number_of_steps, FLAGS.log_steps)
  hooks, chief_only_hooks = _hooks(progress, scaffold)
  with tf.train.MonitoredTrainingSession(
      master=FLAGS.master,
      is_chief=_is_chief(),
      config=tf.ConfigProto(allow_soft_placement=True),
      scaffold=scaffold,
      checkpoint_dir=FLAGS.train_logdir,
      hooks=hooks,
      chief_only_hooks=chief_only_hooks,
      save_checkpoint_secs=None,
      save_summaries_secs=FLAGS.save_summaries_secs,
      save_summaries_steps=None,
      log_step_count_steps=FLAGS.log_steps or None) as session:
    # A run that has ended is not trained one step further.
    while progress.global_step < FLAGS.training_number_of_steps and not session.should_stop():
      session.run(train_tensor)
  return progress.global_step


def main(unused_argv):
  _check_flags()
  tf.gfile.MakeDirs(FLAGS.train_logdir)
  logging.info('Training on the %s split of %s.', FLAGS.train_split, FLAGS.dataset)
  with tf.Graph().as_default():
    tf.set_random_seed(FLAGS.seed)
    with tf.device(tf.train.replica_device_setter(FLAGS.num_ps_tasks)):
      dataset = _build_dataset()
      train_tensor, summary_op = _train_deeplab_model(dataset.get_one_shot_iterator(), dataset.num_of_classes,
                                                      dataset.ignore_label)
      init_fn = train_utils.get_model_init_fn(FLAGS.train_logdir, FLAGS.tf_initial_checkpoint, FLAGS.initialize_last_layer,
                                              _last_layers(), ignore_missing_vars=True)
    last_step = _train(train_tensor, summary_op, init_fn)
  if last_step < FLAGS.training_number_of_steps:
    raise InputError(f'The data of split {FLAGS.train_split} in {FLAGS.dataset_dir} ended at step {last_step} of '
                     f'{FLAGS.training_number_of_steps}.')
  logging.info('Finished at step %d. Checkpoints are in %s.', last_step, FLAGS.train_logdir)


def run():
  """Entry of the program."""
  common.run_program(main, ['train_logdir', 'dataset_dir'])


if __name__ == '__main__':
  run()
