"""Trains DeepLabv3+ on TFRecords: flags -> data -> graph of one or more clones -> session.

python train.py --model_variant=mobilenet_v2 --dataset_dir=... --train_logdir=...
"""

import math
import os
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

from absl import flags, logging

from deeplab import common, data_generator, model, train_flags, train_utils
from deeplab.core.base import errors
from deeplab.core.base.errors import InputError
from deeplab.core.base.stop_signal import end_process
from deeplab.core.base.tf_compat import tf
from deeplab.core.cluster import cluster_server, peers, replicas, stop_request
from deeplab.core.cluster.accumulation import GradientAccumulator
from deeplab.core.cluster.clone_input import CloneInput
from deeplab.core.cluster.early_stop import EarlyStopHook
from deeplab.core.evaluation import evaluation, evaluator, history, validation
from deeplab.core.images import colormap
from deeplab.core.layers import layers
from deeplab.core.run import checkpoint, checkpoint_fit, run_options, training_folder, training_hooks
from deeplab.datasets import check_data, dataset_info

FLAGS = flags.FLAGS

for _module in (common, train_flags):
  flags.adopt_module_key_flags(_module)

_CPU = '/device:CPU:0'
# Those of the same name as an argument of data_generator.Dataset.
_DATASET_FLAGS = ('model_variant', 'min_resize_value', 'max_resize_value', 'resize_factor', 'keep_aspect_ratio',
                  'min_scale_factor', 'max_scale_factor', 'scale_factor_step_size')
_VARIABLE_OPS = ('VarHandleOp', 'VariableV2', 'Variable')
# Collection of the one tensor that holds the learning rate in use.
_LEARNING_RATE = 'learning_rate'
_PROFILE_STEPS = 100
# Pictures in one summary.
_MAX_SUMMARY_IMAGES = 3


def _model_options(outputs_to_num_classes):
  crop_size = common.parse_size(FLAGS.train_crop_size, 'train_crop_size')
  return common.ModelOptions(outputs_to_num_classes, crop_size, FLAGS.atrous_rates, FLAGS.output_stride,
                             preprocessed_images_dtype=tf.as_dtype(FLAGS.mixed_precision or 'float32'))


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
  options = _model_options(outputs_to_num_classes)
  logits_of_outputs = model.multi_scale_logits(
      image, options, FLAGS.image_pyramid, FLAGS.weight_decay, is_training=True, fine_tune_batch_norm=FLAGS.fine_tune_batch_norm,
      nas_training_hyper_parameters={'drop_path_keep_prob': FLAGS.drop_path_keep_prob,
                                     'total_training_steps': FLAGS.training_number_of_steps},
      frozen_scopes=train_flags.frozen_scopes(), quantize_delay_step=FLAGS.quantize_delay_step,
      recompute_grad=FLAGS.recompute_grad)
  for output, num_classes in outputs_to_num_classes.items():
    scales_to_logits = logits_of_outputs[output]
    merged = scales_to_logits[model.MERGED_LOGITS_SCOPE] = tf.identity(scales_to_logits[model.MERGED_LOGITS_SCOPE], name=output)
    train_utils.add_softmax_cross_entropy_loss_for_each_scale(
        scales_to_logits, label, num_classes, ignore_label, options.label_weights, FLAGS.upsample_logits,
        FLAGS.hard_example_mining_step, FLAGS.top_k_percent_pixels, scope=output)
    # The first clone speaks for all.
    if not tf.get_variable_scope().reuse:
      _log_summaries(image, label, num_classes, merged)


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
  losses = tf.losses.get_losses(scope)
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


def _gpu(index):
  return f'/device:GPU:{index}'


def _clone_device(index):
  """Device function of a clone: its variables on the CPU (here or of a parameter server), all else on its GPU."""
  device = _CPU if FLAGS.clone_on_cpu else _gpu(index)
  # What has a device already, such as the input, keeps it.
  return lambda op: op.device or (_CPU if op.type in _VARIABLE_OPS else device)


def _build_optimizer():
  """(optimizer, learning rate really used)."""
  learning_rate = train_flags.learning_rate()
  if FLAGS.optimizer == 'adam':
    optimizer = tf.train.AdamOptimizer(learning_rate, epsilon=FLAGS.adam_epsilon)
  else:
    optimizer = tf.train.MomentumOptimizer(learning_rate, FLAGS.momentum)
  if FLAGS.mixed_precision == 'float16':
    # Small gradients would be 0. The scale halves, without an update, where gradients overflow, and doubles after 2000 steps.
    optimizer = tf.mixed_precision.MixedPrecisionLossScaleOptimizer(optimizer, tf.mixed_precision.DynamicLossScale())
  return optimizer, learning_rate


def _variables_to_train():
  """The trainable variables but those of frozen scopes."""
  scopes = train_flags.frozen_scopes()
  names = [variable.op.name for variable in tf.model_variables()]
  for scope in scopes:
    if not any(layers.is_in_scopes(name, [scope]) for name in names):
      raise InputError(f'--frozen_scopes={scope}: no variable of the network lies in it; scopes: '
                       f'{", ".join(dict.fromkeys(name.split("/")[0] for name in names))} and those inside of them.')
  variables = [variable for variable in tf.trainable_variables() if not layers.is_in_scopes(variable.op.name, scopes)]
  if not variables:
    raise InputError(f'--frozen_scopes={",".join(scopes)} leaves nothing to train.')
  if scopes:
    logging.info('Frozen: %s; %d of %d variables are trained.', ', '.join(scopes), len(variables), len(tf.trainable_variables()))
  return variables


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


def _train_deeplab_model(iterator, num_of_classes, ignore_label, updates=None, accumulator=None):
  """Builds the clones and the update of their variables.

  Args:
    iterator: as in _build_deeplab; every clone takes a batch of its own.
    num_of_classes: number of classes.
    ignore_label: label of pixels without loss.
    updates: replicas.AsynchronousUpdates, the default, or replicas.SynchronousUpdates.
    accumulator: GradientAccumulator; by default each batch makes an update.

  Returns:
    train_tensor: float32 scalar; running it trains one step and gives the loss before the update, the mean of the clones' cross
      entropies (and of those of accumulated batches) plus one L2 penalty.
    summary_op: string scalar, all summaries.
  """
  tf.train.get_or_create_global_step()
  updates = updates or replicas.AsynchronousUpdates(FLAGS.training_number_of_steps)
  accumulator = accumulator or GradientAccumulator()
  with tf.device(_CPU):
    optimizer, learning_rate = _build_optimizer()
  tower_losses, tower_grads = [], []
  for i in range(FLAGS.num_clones):
    with tf.device(_clone_device(i)), tf.name_scope(f'clone_{i}' if i else '') as scope:
      tower_losses.append(_tower_loss(iterator, num_of_classes, ignore_label, scope=scope, reuse_variable=i > 0))
    if i == 0:
      # Those of one clone: the moving averages would else decay once per clone.
      update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
  variables = _variables_to_train()
  for i, tower_loss in enumerate(tower_losses):
    with tf.device(_clone_device(i)), tf.name_scope(f'clone_{i}' if i else ''):
      tower_grads.append(optimizer.compute_gradients(tower_loss, variables))
  with tf.device(_CPU):
    total_loss = tf.add_n(tower_losses) / FLAGS.num_clones
    finite_loss = _require_finite_loss(total_loss, learning_rate)
    batch_ops = update_ops if updates.moves_averages else []
    total_loss, tower_grads = accumulator.mean(total_loss, tower_grads, [finite_loss, *batch_ops])
    with tf.control_dependencies([finite_loss]):
      grads_and_vars = _multiply_gradients(_average_gradients(tower_grads))
    apply_op = updates.apply(optimizer, grads_and_vars)
    with tf.control_dependencies([apply_op, *batch_ops]):
      train_tensor = tf.identity(total_loss, name='train_op')
    _scalar_summary('total_loss', total_loss)
    _scalar_summary('learning_rate', learning_rate)
    tf.add_to_collection(_LEARNING_RATE, learning_rate)
    return train_tensor, tf.summary.merge_all()


def _seed(cluster):
  """--seed for the data order, augmentation and dropout of this worker, which are its own."""
  return None if FLAGS.seed is None else FLAGS.seed + cluster.task


def _build_dataset(cluster):
  return data_generator.Dataset(
      FLAGS.dataset, FLAGS.train_split, FLAGS.dataset_dir, FLAGS.train_batch_size // FLAGS.num_clones,
      common.parse_size(FLAGS.train_crop_size, 'train_crop_size'), num_readers=2, is_training=True, should_shuffle=True,
      should_repeat=True, seed=_seed(cluster), num_replicas=cluster.num_workers, replica_index=cluster.task,
      **{name: FLAGS[name].value for name in _DATASET_FLAGS})


def _updates(cluster, is_resumed):
  if FLAGS.sync_replicas:
    return replicas.SynchronousUpdates(cluster, FLAGS.backup_workers, is_resumed)
  return replicas.AsynchronousUpdates(FLAGS.training_number_of_steps)


class _Validator(NamedTuple):
  """Validation of the run.

  Attributes:
    record: validation.Record.
    measure: function, (session, prefix of the checkpoint of its weights, is_told) -> validation.Measured, or None where it was
      told to end.
  """
  record: validation.Record
  measure: Callable


def _is_exhausted(past):
  """Whether the latest validations of a history.History, --early_stopping_validations of them, brought no new best."""
  return past.num_without_best >= (FLAGS.early_stopping_validations or math.inf)


class _Outcome(NamedTuple):
  """How the training session ended.

  Attributes:
    last_step: global step that was reached.
    signal_number: number of the signal that ended it, or None.
    is_early: whether --early_stopping_validations ended it.
  """
  last_step: int
  signal_number: int | None
  is_early: bool


class _Work(NamedTuple):
  """What the session runs.

  Attributes:
    train_tensor, summary_op: as _train_deeplab_model gives them.
    init_fn: function that initialises the variables, or None.
    hooks: those that belong to the graph.
    interrupt: function that lets a step wait for no other worker.
    validator: _Validator, or None.
  """
  train_tensor: Any
  summary_op: Any
  init_fn: Callable | None
  hooks: list
  interrupt: Callable
  validator: _Validator | None


def _validation_dataset(model_options):
  """Whole images of --validation_split, as eval.py has them: those of another size are padded to that of the largest."""
  resize = {name: FLAGS[name].value for name in run_options.RESIZE_FLAGS}
  largest = data_generator.largest_image_size(FLAGS.dataset, FLAGS.validation_split, FLAGS.dataset_dir, **resize)
  return data_generator.Dataset(
      FLAGS.dataset, FLAGS.validation_split, FLAGS.dataset_dir, 1,
      common.fitting_crop_size(largest, model_options.output_stride), model_variant=FLAGS.model_variant, num_readers=2,
      with_original_image=False, **resize)


def _validation_network(dataset, options):
  """Adds the network that validates to the default graph; evaluation.Network."""
  def predict(images):
    return model.predict(images, options, image_pyramid=FLAGS.image_pyramid, quantize_delay_step=FLAGS.quantize_delay_step)

  with tf.device(_clone_device(0)), tf.name_scope('validation'):
    return evaluation.build(dataset, predict, options.crop_size)


def _validator(model_options, descriptor, shares_weights):
  """_Validator of --validation_split.

  Args:
    model_options: common.ModelOptions of training.
    descriptor: of the data set.
    shares_weights: whether it validates with the variables of the default graph, which stand still meanwhile; else with a copy
      from the checkpoint.
  """
  dataset = _validation_dataset(model_options)
  # In float32 as in eval.py, whatever training computes in.
  options = model_options._replace(crop_size=dataset.crop_size, preprocessed_images_dtype=tf.float32)
  subject = evaluation.Subject(
      descriptor, FLAGS.validation_split, min(dataset.num_examples, FLAGS.validation_max_images or dataset.num_examples), options,
      {name: FLAGS[name].value for name in run_options.RESIZE_FLAGS}, dataset.crop_size, dataset.crop_size)
  if shares_weights:
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
      network = _validation_network(dataset, options)

  def measure(session, prefix, is_told):
    if shares_weights:
      return validation.measure(session, network, subject, is_told)
    with tf.Graph().as_default():
      copy = _validation_network(dataset, options)
      with checkpoint_fit.restored_session(prefix, common.session_config()) as own_session:
        return validation.measure(own_session, copy, subject, is_told)

  return _Validator(validation.Record(FLAGS.train_logdir, subject), measure)


def _checkpoint_hook(progress, scaffold, stop_hook, validator):
  """Hook that saves, and validates what it has saved."""
  listeners = [training_hooks.FiniteWeightsListener()]
  hook = training_hooks.CheckpointHook(FLAGS.train_logdir, FLAGS.save_interval_secs, FLAGS.validation_interval_steps, scaffold,
                                       listeners)

  def is_told():
    # After the last one that counts, others may have made further steps, which are saved at the end.
    return bool(stop_hook.signal_number) or hook.is_urgent or _is_exhausted(validator.record.history)

  def leave_out(seconds, steps):
    progress.leave_out(seconds, steps)
    hook.leave_out(seconds)

  if validator:
    listeners.append(validation.ValidationListener(
        validator.record, lambda session, prefix: validator.measure(session, prefix, is_told), FLAGS.validation_interval_steps,
        FLAGS.training_number_of_steps, leave_out, is_told))
  return hook


def _early_stop_hook(cluster, work):
  watch = history.Watch(FLAGS.train_logdir)

  def is_over():
    past = work.validator.record.history if work.validator else watch.latest()
    return past is not None and _is_exhausted(past)

  return EarlyStopHook(cluster, work.train_tensor, is_over if cluster.is_chief else None)


def _hooks(cluster, progress, saver, stop_hook):
  """(hooks of every worker, hooks of the chief)."""
  hooks = [tf.train.StopAtStepHook(last_step=FLAGS.training_number_of_steps), progress]
  if not FLAGS.sync_replicas:
    first_step = min(cluster.task * FLAGS.startup_delay_steps, FLAGS.training_number_of_steps)
    hooks.append(tf.train.GlobalStepWaiterHook(first_step))
  if FLAGS.profile_logdir:
    hooks.append(tf.train.ProfilerHook(save_steps=_PROFILE_STEPS, output_dir=FLAGS.profile_logdir))
  if cluster.starts_servers:
    hooks.append(stop_request.StopRequestHook(cluster, stop_hook, FLAGS.termination_grace_secs,
                                              saver.save_now if cluster.is_chief else None))
  return hooks, [saver]


def session_config():
  """Settings of the training session, tf.ConfigProto."""
  config = common.session_config()
  if FLAGS.xla:
    config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_2
  return config


def _open_session(cluster, target, scaffold, hooks, chief_only_hooks):
  config = session_config()
  config.device_filters.extend(cluster.device_filters)
  if not cluster.is_chief:
    return tf.train.MonitoredSession(cluster_server.WorkerSessionCreator(scaffold, target, config), hooks)
  return tf.train.MonitoredTrainingSession(
      master=target,
      config=config,
      scaffold=scaffold,
      checkpoint_dir=FLAGS.train_logdir,
      hooks=hooks,
      chief_only_hooks=chief_only_hooks,
      save_checkpoint_secs=None,
      save_summaries_secs=FLAGS.save_summaries_secs,
      save_summaries_steps=None,
      log_step_count_steps=FLAGS.log_steps or None)


def _train(cluster, target, work):
  """Runs the training session; _Outcome."""
  saver = tf.train.Saver(save_relative_paths=True, max_to_keep=FLAGS.max_checkpoints_to_keep,
                         keep_checkpoint_every_n_hours=FLAGS.keep_checkpoint_every_n_hours)
  scaffold = tf.train.Scaffold(init_fn=work.init_fn, summary_op=work.summary_op, saver=saver)
  progress = training_hooks.ProgressHook(work.train_tensor, tf.get_collection(_LEARNING_RATE)[0],
                                         FLAGS.train_batch_size * FLAGS.accumulate_steps, FLAGS.training_number_of_steps,
                                         FLAGS.log_steps)
  react = peers.end_in_time(cluster, FLAGS.termination_grace_secs, work.interrupt, _tell_saved) if cluster.num_ps else None
  stop_hook = training_hooks.StopOnSignalHook(react)
  hooks, chief_only_hooks = _hooks(cluster, progress, _checkpoint_hook(progress, scaffold, stop_hook, work.validator), stop_hook)
  early_stop = [_early_stop_hook(cluster, work)] if FLAGS.early_stopping_validations else []
  try:
    with stop_hook, _open_session(cluster, target, scaffold, [*hooks, *work.hooks, *early_stop, stop_hook],
                                  chief_only_hooks) as session:
      # A run that has ended is not trained one step further.
      while progress.global_step < FLAGS.training_number_of_steps and not session.should_stop():
        session.run(work.train_tensor)
  except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
    if not stop_hook.signal_number:
      raise
    end_process(128 + stop_hook.signal_number, f'A parameter server has ended: {errors.explain(error)}. {_tell_saved()}')
  return _Outcome(progress.global_step, stop_hook.signal_number, any(hook.has_stopped for hook in early_stop))


def _tell_saved():
  """A sentence about what a stop leaves."""
  step = _saved_step()
  if step is None:
    return f'There is no checkpoint in {FLAGS.train_logdir}: all is lost.'
  return f'The newest checkpoint in {FLAGS.train_logdir} is of step {step}; later steps are lost.'


def _fix_label_weights(descriptor):
  """Puts numbers in the place of --label_weights=auto, and compares their count with that of the classes."""
  if FLAGS.label_weights == [common.AUTO]:
    report = check_data.check(descriptor, FLAGS.dataset_dir, FLAGS.train_split)
    check_data.require(report)
    weights = train_utils.balanced_label_weights(report.counts[:descriptor.num_classes], descriptor.ignore_label)
    logging.info('--label_weights=%s', ','.join(f'{weight:.4g}' for weight in weights))
    FLAGS.label_weights = weights
  if FLAGS.label_weights and len(FLAGS.label_weights) != descriptor.num_classes:
    raise InputError(f'--label_weights holds {len(FLAGS.label_weights)} numbers, data set {descriptor.name} has '
                     f'{descriptor.num_classes} classes; give one for each class.')


def _look_through_data(descriptor, is_training):
  """Refuses records that cannot be trained on, as far as the first of them tell; the pipeline refuses any other when it comes."""
  train_split = FLAGS.train_split if is_training else None
  for split, max_images in ((train_split, None), (FLAGS.validation_split, FLAGS.validation_max_images)):
    if split and FLAGS.check_images:
      report = check_data.check(descriptor, FLAGS.dataset_dir, split,
                                max_images=min(FLAGS.check_images, max_images or FLAGS.check_images))
      check_data.require(report)
      if split == FLAGS.validation_split:
        _require_labelled_pixels(report, descriptor)


def _require_labelled_pixels(report, descriptor):
  counts = [count for value, count in enumerate(report.counts) if value < descriptor.num_classes
            and value != descriptor.ignore_label]
  if not any(counts):
    raise InputError(f'--validation_split={report.split}: none of the {report.num_images} images that were looked at has a '
                     f'labelled pixel other than the ignored value {descriptor.ignore_label}; choose another split.')


def _prepare_folder(model_options, descriptor, is_chief):
  """Prefix of the checkpoint in --train_logdir that training goes on from, of the same network and classes; or None."""
  prefix = checkpoint.prepare_resume(FLAGS.train_logdir) if is_chief else None
  stored = run_options.read(prefix) if prefix else None
  if stored is None:
    return prefix
  differences = run_options.differences(stored, common.run_flags(model_options), descriptor)
  if differences:
    lines = '\n  '.join(differences)
    raise InputError(f'--train_logdir={FLAGS.train_logdir} holds the checkpoint {prefix} of another run:\n  {lines}\nGive the '
                     'flags of that run, or another --train_logdir to start afresh.')
  renamed = run_options.renamed_classes(stored, descriptor)
  if renamed:
    logging.warning('Classes have other names than in the run so far, by which it goes on: %s.', ', '.join(renamed))
  return prefix


def _start_run(prefix, model_options, descriptor):
  """Stores flags and options beside the checkpoints, after a last look at the one that training goes on from.

  Returns:
    Function that initialises the variables from --tf_initial_checkpoint, or None.
  """
  lines = common.flags_in_force()
  if prefix:
    checkpoint_fit.check_variables(prefix, tf.model_variables())
    training_folder.check_optimizer_variables(prefix, tf.global_variables())
    training_folder.warn_of_changes(training_folder.changed_flags(FLAGS.train_logdir, lines))
  tf.gfile.MakeDirs(FLAGS.train_logdir)
  if FLAGS.validation_split:
    validation.prepare_folder(FLAGS.train_logdir, is_resumed=prefix is not None)
  run_options.write(FLAGS.train_logdir, common.run_flags(model_options), descriptor)
  training_folder.record_flags(FLAGS.train_logdir, lines, checkpoint.global_step(prefix) if prefix else 0)
  return train_utils.get_model_init_fn(FLAGS.train_logdir, FLAGS.tf_initial_checkpoint, FLAGS.initialize_last_layer,
                                       _last_layers(), ignore_missing_vars=True)


def _devices():
  """Name of the device that each clone really runs on; logs them."""
  has_gpus = bool(tf.config.list_physical_devices('GPU'))
  if not has_gpus and not FLAGS.clone_on_cpu:
    logging.warning('TensorFlow finds no GPU: training runs on the CPU.')
  devices = [_gpu(i) if has_gpus and not FLAGS.clone_on_cpu else _CPU for i in range(FLAGS.num_clones)]
  for i, device in enumerate(devices):
    logging.info('Clone %d: %d images per step on %s.', i, FLAGS.train_batch_size // FLAGS.num_clones * FLAGS.accumulate_steps,
                 device)
  return devices


def _end(last_step, signal_number, is_early):
  """Exit code of the program; arguments as in _Outcome."""
  if last_step >= FLAGS.training_number_of_steps:
    logging.info('Finished at step %d. Checkpoints are in %s.', last_step, FLAGS.train_logdir)
    return 0
  if is_early:
    logging.info('Finished at step %d of %d: the last %d validations brought no new best (--early_stopping_validations). '
                 'The best checkpoint is in %s.', last_step, FLAGS.training_number_of_steps, FLAGS.early_stopping_validations,
                 os.path.join(FLAGS.train_logdir, validation.BEST_FOLDER))
    return 0
  if signal_number:
    logging.warning('Ended by %s at step %d of %d; the same command goes on from there.', signal.Signals(signal_number).name,
                    last_step, FLAGS.training_number_of_steps)
    return 128 + signal_number
  raise InputError(f'The data of split {FLAGS.train_split} in {FLAGS.dataset_dir} ended at step {last_step} of '
                   f'{FLAGS.training_number_of_steps}.')


def _saved_step():
  """Global step of the newest checkpoint in the training folder, or None."""
  try:
    prefix = tf.train.latest_checkpoint(FLAGS.train_logdir)
    return checkpoint.global_step(prefix) if prefix else None
  except (ValueError, tf.errors.OpError):  # What a crash has left; or it is being written.
    return None


def _is_finished():
  """Whether the training folder holds the last step, or says that training ended before."""
  try:
    stored = history.read(FLAGS.train_logdir) if FLAGS.early_stopping_validations else None
  except (ValueError, tf.errors.OpError):  # As above.
    stored = None
  if stored and stored.split == FLAGS.validation_split and _is_exhausted(stored):
    return True
  return (_saved_step() or 0) >= FLAGS.training_number_of_steps


def _run_in_cluster(cluster):
  """Starts the server of this process and lives as its job demands; exit code of the program."""
  server = cluster_server.start(cluster, common.session_config())
  if cluster.is_ps:
    signal_number = cluster_server.serve_variables(cluster, server, FLAGS.peer_timeout_secs, FLAGS.termination_grace_secs,
                                                   _is_finished)
    return 128 + signal_number if signal_number else 0
  needed_workers = cluster.num_workers - FLAGS.backup_workers if FLAGS.sync_replicas else 1
  with peers.PeerWatch(cluster, FLAGS.peer_timeout_secs, _is_finished, needed_workers):
    exit_code = _run_to_the_end(cluster, server.target)
    if not exit_code:
      cluster_server.report_finished(cluster, server)
  return exit_code


def _own_validator(cluster, model_options, descriptor):
  """_Validator of a process that trains; None where it does not validate."""
  if not (cluster.is_chief and FLAGS.validation_split and FLAGS.validation_job == 'chief'):
    return None
  # Variables on parameter servers move on meanwhile.
  return _validator(model_options, descriptor, shares_weights=not cluster.num_ps)


def _run_evaluator(cluster):
  """Validates the checkpoints of a run until that ends; exit code of the program."""
  train_flags.check()
  descriptor = dataset_info.get_descriptor(FLAGS.dataset, FLAGS.dataset_dir)
  model_options = _model_options({common.OUTPUT_TYPE: descriptor.num_classes})
  model.check_options(model_options, FLAGS.quantize_delay_step)
  _look_through_data(descriptor, is_training=False)
  validator = _validator(model_options, descriptor, shares_weights=False)
  logging.info('Validating the checkpoints in %s on split %s.', FLAGS.train_logdir, FLAGS.validation_split)
  chief_watch = peers.ChiefWatch(cluster, FLAGS.peer_timeout_secs)
  evaluator.follow(validator.record, lambda prefix: validator.measure(None, prefix, lambda: False),
                   FLAGS.validation_interval_steps, FLAGS.training_number_of_steps,
                   lambda: _is_exhausted(validator.record.history), chief_watch.look)
  logging.info('The run has ended, and so does its evaluator. The best checkpoint is in %s.',
               os.path.join(FLAGS.train_logdir, validation.BEST_FOLDER))
  return 0


def _run_to_the_end(cluster, target):
  """Trains until nothing is left to do; exit code of the program."""
  # One that was killed at the very end finds nothing to do when it is started again.
  while not _is_finished():
    try:
      return _run_worker(cluster, target)
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
      # Where the session ends; before that it recovers by itself.
      logging.warning('A parameter server died before the last step was saved (%s): once more from the newest checkpoint.',
                      errors.explain(error))
  return 0


def _run_worker(cluster, target):
  """Trains on the TensorFlow server `target`; exit code of the program."""
  train_flags.check()
  descriptor = dataset_info.get_descriptor(FLAGS.dataset, FLAGS.dataset_dir)
  _fix_label_weights(descriptor)
  model_options = _model_options({common.OUTPUT_TYPE: descriptor.num_classes})
  model.check_options(model_options, FLAGS.quantize_delay_step)
  if cluster.is_chief:
    _look_through_data(descriptor, is_training=True)
  prefix = _prepare_folder(model_options, descriptor, cluster.is_chief)
  logging.info('Training on the %s split of %s.', FLAGS.train_split, descriptor.name)
  devices = _devices()
  with tf.Graph().as_default():
    tf.set_random_seed(_seed(cluster))
    with tf.device(cluster.device()):
      dataset = _build_dataset(cluster)
      with tf.device(_CPU):
        batches = CloneInput(dataset.get_one_shot_iterator(), (common.IMAGE, common.LABEL), devices)
      updates = _updates(cluster, is_resumed=prefix is not None)
      accumulator = GradientAccumulator(FLAGS.accumulate_steps, batches)
      train_tensor, summary_op = _train_deeplab_model(batches, dataset.num_of_classes, dataset.ignore_label, updates,
                                                      accumulator)
      init_fn = _start_run(prefix, model_options, descriptor) if cluster.is_chief else None
      # Last, so that what is drawn at random in training is the same without it.
      validator = _own_validator(cluster, model_options, descriptor)
      work = _Work(train_tensor, summary_op, init_fn, [updates, accumulator, batches], updates.interrupt, validator)
      return _end(*_train(cluster, target, work))


def main(unused_argv):
  cluster = train_flags.cluster()
  if cluster.is_evaluator:
    return _run_evaluator(cluster)
  return _run_in_cluster(cluster) if cluster.starts_servers else _run_worker(cluster, FLAGS.master)


def run():
  """Entry of the program."""
  common.run_program(main, ['train_logdir', 'dataset_dir'], flags_of_one_run=['train_logdir'])


if __name__ == '__main__':
  run()
