"""Arithmetic of training: the loss, the learning rate, gradient multipliers, and the start from another checkpoint."""

import collections
import math
import os
from typing import NamedTuple

from absl import logging

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.layers import fake_quantize, utils
from deeplab.core.networks.feature_extractor import BACKBONES
from deeplab.core.run import checkpoint

# The gradient of a bias counts twice, as in the Caffe models that DeepLab began with.
_BIAS_MULTIPLIER = 2.0
# Variables that a message names, of many alike.
_MAX_LISTED = 3


def add_softmax_cross_entropy_loss_for_each_scale(scales_to_logits, labels, num_classes, ignore_label, loss_weight=1.0,
                                                  upsample_logits=True, hard_example_mining_step=0,
                                                  top_k_percent_pixels=1.0, gt_is_matting_map=False, scope=None):
  """Adds one softmax cross entropy for each scale to the losses of the graph (tf.GraphKeys.LOSSES).

  All pixels: sum(weight * loss) / number of pixels that are not ignored; pixels of a class with weight 0 count in the divisor.
  Hard pixels: mean over the largest non-zero weight * loss of the whole batch; the share is of all pixels, ignored ones included.
  Both are 0 where every pixel is ignored.

  Args:
    scales_to_logits: name of a scale -> logits [batch, logits_height, logits_width, num_classes].
    labels: int [batch, height, width, 1], values 0..num_classes-1 or `ignore_label`; for a matting map float, values 0..1 or
      `ignore_label`.
    num_classes: number of classes.
    ignore_label: value of pixels that have no loss.
    loss_weight: weight of every class, or a list of one weight per class.
    upsample_logits: resize the logits to the size of the labels; else the labels to the size of the logits.
    hard_example_mining_step: steps in which the share of pixels shrinks linearly from 1 to `top_k_percent_pixels`; 0: at once.
    top_k_percent_pixels: share of pixels, above 0 and up to 1, that have a loss: those with the largest.
    gt_is_matting_map: whether the labels are the opacity of the second of two classes.
    scope: prefix of the name of the losses.

  Raises:
    InputError: an argument is out of its range. A label is so only when the graph runs (tf.errors.InvalidArgumentError).
  """
  if labels is None:
    raise InputError('labels is None: the loss needs the labels of the images.')
  check_mining(hard_example_mining_step, top_k_percent_pixels)
  if gt_is_matting_map:
    _check_matting_arguments(labels, num_classes, loss_weight)
  else:
    labels = tf.cast(labels, tf.int32)
  labels = _refuse_labels_out_of_range(labels, 1 if gt_is_matting_map else num_classes - 1, num_classes, ignore_label)
  for scale, logits in scales_to_logits.items():
    with tf.name_scope(f'{scope}_{scale}' if scope else None, 'softmax_cross_entropy_loss'):
      scale_logits, scale_labels = _match_sizes(logits, labels, upsample_logits)
      losses = _pixel_losses(scale_logits, scale_labels, ignore_label)
      weights = utils.get_label_weight_mask(scale_labels, ignore_label, num_classes, loss_weight)
      if top_k_percent_pixels == 1.0:
        loss = _mean(weights * losses, tf.not_equal(scale_labels, ignore_label))
      else:
        loss = _mean_of_hardest(weights * losses, top_k_percent_pixels, hard_example_mining_step)
      tf.losses.add_loss(loss)


def check_mining(hard_example_mining_step, top_k_percent_pixels):
  """Refuses arguments of the loss that choose no pixels, see add_softmax_cross_entropy_loss_for_each_scale.

  Raises:
    InputError: one is out of its range.
  """
  if not 0.0 < top_k_percent_pixels <= 1.0:
    raise InputError(f'--top_k_percent_pixels={top_k_percent_pixels}: give a share of pixels above 0 and up to 1.')
  if hard_example_mining_step < 0:
    raise InputError(f'--hard_example_mining_step={hard_example_mining_step}: give a number of steps, 0 or more.')


def _check_matting_arguments(labels, num_classes, loss_weight):
  if not labels.dtype.is_floating:
    raise InputError(f'A matting map has float labels, found {labels.dtype.name}.')
  if num_classes != 2:
    raise InputError(f'A matting map has 2 classes, background and foreground, found {num_classes}.')
  if loss_weight != 1.0:
    raise InputError(f'--label_weights={loss_weight} does not go with a matting map: leave it at 1.0.')


def _refuse_labels_out_of_range(labels, largest, num_classes, ignore_label):
  """The labels, behind a check that fails when the graph runs."""
  # The labels come from the host, and so does the text of the message.
  with tf.device('/device:CPU:0'):
    in_range = tf.logical_and(labels >= 0, labels <= largest)
    allowed = tf.logical_or(in_range, tf.equal(labels, ignore_label))

    def fail():
      values, _ = tf.unique(tf.boolean_mask(labels, tf.logical_not(allowed)))
      message = (f'The labels hold values that are neither a class, 0..{largest} (num_classes {num_classes}), nor the '
                 f'ignore_label {ignore_label}: ')
      return tf.group(tf.Assert(False, [message, values], summarize=20))

    check = tf.cond(tf.reduce_all(allowed), tf.no_op, fail)
    with tf.control_dependencies([check]):
      return tf.identity(labels)


def _match_sizes(logits, labels, upsample_logits):
  """Logits [batch, height, width, classes], float32, and labels [batch, height, width] of one size."""
  if upsample_logits:
    logits = utils.resize_bilinear(logits, tf.shape(labels)[1:3])
  else:
    labels = tf.image.resize_nearest_neighbor(labels, tf.shape(logits)[1:3], align_corners=True)
  return tf.cast(logits, tf.float32), tf.squeeze(labels, axis=3)


def _pixel_losses(logits, labels, ignore_label):
  """Cross entropy of each pixel; ignored ones count as class 0 here, which their weight 0 takes back."""
  targets = tf.where(tf.equal(labels, ignore_label), tf.zeros_like(labels), labels)
  if targets.dtype.is_floating:
    targets = tf.stop_gradient(tf.stack([1.0 - targets, targets], axis=-1))
    return tf.nn.softmax_cross_entropy_with_logits_v2(labels=targets, logits=logits, name='pixel_losses')
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits, name='pixel_losses')


def _mean(losses, counted):
  """Sum of the losses over the number of those counted, 0 where none is."""
  count = tf.reduce_sum(tf.cast(counted, tf.float32))
  return tf.truediv(tf.reduce_sum(losses), tf.maximum(count, 1.0), name='value')


def _mean_of_hardest(losses, share, mining_step):
  losses = tf.reshape(losses, [-1])
  if mining_step:
    progress = tf.minimum(1.0, tf.cast(tf.train.get_or_create_global_step(), tf.float32) / mining_step)
    share = progress * share + (1.0 - progress)
  tf.summary.scalar('top_k_percent_pixels', share)
  num_hardest = tf.cast(share * tf.cast(tf.size(losses), tf.float32), tf.int32)
  is_hardest = _is_among_largest(tf.stop_gradient(losses), num_hardest)
  hardest = tf.where(is_hardest, losses, tf.zeros_like(losses))
  return _mean(hardest, tf.not_equal(hardest, 0.0))


def _is_among_largest(values, k):
  """Whether each value [n] is one of those that tf.nn.top_k gives, which sorts them and takes many times as long."""
  threshold = tf.raw_ops.NthElement(input=values, n=tf.maximum(k, 1) - 1, reverse=True)
  # Also true of what is not a number, so that it is noticed.
  is_larger = tf.logical_not(values <= threshold)
  is_equal = tf.equal(values, threshold)
  # Of equal values the first ones.
  num_free = k - tf.reduce_sum(tf.cast(is_larger, tf.int32))
  return tf.logical_or(is_larger, tf.logical_and(is_equal, tf.cumsum(tf.cast(is_equal, tf.int32)) <= num_free))


def balanced_label_weights(counts, ignore_label):
  """Weights inverse to the frequency of the classes: total / (number of classes that occur * count of the class).

  Their mean over all labelled pixels is 1, so that the size of the loss does not change.

  Args:
    counts: number of pixels of each class.
    ignore_label: its class, if it is one, does not count.

  Returns:
    List of floats, one per class; 1 for those that do not occur.
  """
  present = {index: int(count) for index, count in enumerate(counts) if count and index != ignore_label}
  total = sum(present.values())
  return [total / (len(present) * present[index]) if index in present else 1.0 for index in range(len(counts))]


def get_model_learning_rate(learning_policy, base_learning_rate, learning_rate_decay_step, learning_rate_decay_factor,
                            training_number_of_steps, learning_power, slow_start_step, slow_start_learning_rate,
                            slow_start_burnin_type='none', decay_steps=0.0, end_learning_rate=0.0, boundaries=None,
                            boundary_learning_rates=None):
  """Learning rate of the current global step: slow start, then the policy, whose steps t count from the end of slow start.

  Args:
    learning_policy: 'poly', (base - end) * (1 - t / decay_steps)^power + end (arXiv:1606.00915); 'step',
      base * factor^floor(t / decay_step); 'cosine', base * (1 + cos(pi * t / steps)) / 2; 'multi_steps', one rate per interval.
    base_learning_rate: rate at t = 0.
    learning_rate_decay_step: steps between two decays of 'step'.
    learning_rate_decay_factor: factor of each decay of 'step'.
    training_number_of_steps: last global step.
    learning_power: exponent of 'poly'.
    slow_start_step: number of steps of slow start, 0: none.
    slow_start_learning_rate: rate of slow start.
    slow_start_burnin_type: 'none', the rate of slow start is constant; 'linear', it climbs to the base rate.
    decay_steps: length of 'poly'; 0: up to training_number_of_steps.
    end_learning_rate: rate after the end of 'poly'.
    boundaries: last t of each interval of 'multi_steps' but the last, ascending.
    boundary_learning_rates: rates of 'multi_steps', one more than boundaries.

  Returns:
    float32 scalar tensor.

  Raises:
    InputError: unknown policy or burn-in type, or arguments that leave the policy without steps or rates.
  """
  # Read once: the training step may move it between two reads.
  global_step = tf.convert_to_tensor(tf.train.get_or_create_global_step())
  step = tf.cast(tf.maximum(global_step - slow_start_step, 0), tf.float32)
  num_steps = training_number_of_steps - slow_start_step
  policies = {
      'poly': lambda: _poly_rate(step, base_learning_rate, end_learning_rate, learning_power, decay_steps or num_steps),
      'step': lambda: _step_rate(step, base_learning_rate, learning_rate_decay_factor, learning_rate_decay_step),
      'cosine': lambda: _cosine_rate(step, base_learning_rate, num_steps),
      'multi_steps': lambda: _multi_steps_rate(step, boundaries, boundary_learning_rates),
  }
  if learning_policy not in policies:
    raise InputError(f'--learning_policy={learning_policy}: choose one of: {", ".join(policies)}')
  start_rate = _slow_start_rate(global_step, base_learning_rate, slow_start_step, slow_start_learning_rate,
                                slow_start_burnin_type)
  return tf.where(global_step < slow_start_step, start_rate, policies[learning_policy]())


def _progress(step, num_steps):
  """Share of the schedule that is over, 0..1."""
  if num_steps <= 0:
    raise InputError(f'The learning rate has {num_steps} steps to fall: --slow_start_step must lie below '
                     '--training_number_of_steps, and --decay_steps be 0 or more.')
  return tf.minimum(step, num_steps) / num_steps


def _poly_rate(step, base_rate, end_rate, power, num_steps):
  return (base_rate - end_rate) * tf.pow(1.0 - _progress(step, num_steps), power) + end_rate


def _step_rate(step, base_rate, factor, decay_step):
  if decay_step <= 0:
    raise InputError(f'--learning_rate_decay_step={decay_step}: give a number of steps above 0.')
  return base_rate * tf.pow(factor, tf.floor(step / decay_step))


def _cosine_rate(step, base_rate, num_steps):
  return base_rate * 0.5 * (1.0 + tf.cos(math.pi * _progress(step, num_steps)))


def _multi_steps_rate(step, boundaries, rates):
  if not boundaries or not rates or len(rates) != len(boundaries) + 1 or sorted(boundaries) != list(boundaries):
    raise InputError(f'--learning_policy=multi_steps needs --learning_rate_boundaries, ascending, and one more '
                     f'--boundary_learning_rates than those; found {boundaries} and {rates}.')
  interval = tf.reduce_sum(tf.cast(step > tf.constant(boundaries, tf.float32), tf.int32))
  return tf.gather(tf.constant(rates, tf.float32), interval)


def _slow_start_rate(global_step, base_rate, num_steps, slow_rate, burnin_type):
  if burnin_type == 'none':
    return tf.constant(slow_rate, tf.float32)
  if burnin_type == 'linear':
    return slow_rate + (base_rate - slow_rate) * tf.cast(global_step, tf.float32) / max(num_steps, 1)
  raise InputError(f'slow_start_burnin_type is {burnin_type!r}; choose one of: none, linear')


def get_model_gradient_multipliers(last_layers, last_layer_gradient_multiplier):
  """Factors of the gradients: the given one for the last layers, twice that for biases.

  Args:
    last_layers: scopes of the last layers, see `is_last_layer`.
    last_layer_gradient_multiplier: factor of the last layers; all others have 1.

  Returns:
    dict, name of a model variable -> factor, without the variables whose factor is 1 by rule.
  """
  multipliers = {}
  for variable in tf.model_variables():
    name = variable.op.name
    in_last_layer = is_last_layer(name, last_layers)
    is_bias = 'biases' in name
    if in_last_layer or is_bias:
      multipliers[name] = (last_layer_gradient_multiplier if in_last_layer else 1.0) * (_BIAS_MULTIPLIER if is_bias else 1.0)
  return multipliers


def is_last_layer(name, last_layers):
  """Whether a variable belongs to the last layers: one of these texts begins a part of its name.

  'aspp' so stands for aspp0/weights and aspp1_depthwise/BatchNorm/beta.
  """
  return any('/' + scope in '/' + name for scope in last_layers)


def get_model_init_fn(train_logdir, tf_initial_checkpoint, initialize_last_layer, last_layers, ignore_missing_vars=False):
  """Function that starts training from the model variables of another checkpoint; optimizer slots and step start anew.

  Args:
    train_logdir: folder of the training; a checkpoint there is resumed by the session and takes precedence.
    tf_initial_checkpoint: prefix, file or folder (checkpoint.resolve_checkpoint), or None.
    initialize_last_layer: True, restore the last layers too; False, start them afresh; 'auto', start those afresh whose shapes
      differ.
    last_layers: scopes of the last layers, see `is_last_layer`.
    ignore_missing_vars: whether variables that the checkpoint lacks keep their initial values, with a warning.

  Returns:
    Function that takes (scaffold, session) or (session), or None where there is nothing to restore.

  Raises:
    InputError: no usable checkpoint, one of another backbone, shapes that differ, or missing variables that are not ignored.
  """
  if initialize_last_layer not in (True, False, 'auto'):
    raise InputError(f'--initialize_last_layer={initialize_last_layer}: choose one of: true, false, auto')
  prefix = tf_initial_checkpoint and checkpoint.resolve_checkpoint(tf_initial_checkpoint, 'tf_initial_checkpoint')
  resumed = tf.train.latest_checkpoint(train_logdir)
  if resumed:
    ignored = f'--tf_initial_checkpoint={tf_initial_checkpoint} and --initialize_last_layer' if prefix else 'no flag'
    logging.warning('RESUMING the run in %s from step %s (%s). Ignored because of that: %s. To start afresh, name another '
                    '--train_logdir.', train_logdir, checkpoint.global_step(resumed), os.path.basename(resumed), ignored)
    return None
  if not prefix:
    logging.info('No --tf_initial_checkpoint: the model starts from its own initial values.')
    return None
  variables = {variable.op.name: variable for variable in tf.model_variables()}
  shapes = checkpoint.variable_shapes(prefix)
  _check_backbone(variables, shapes, prefix)
  plan = _plan_restore(variables, shapes, initialize_last_layer, last_layers)
  _check_shapes(plan, variables, shapes, prefix, initialize_last_layer, last_layers)
  if plan.missing and not ignore_missing_vars:
    raise InputError(f'{prefix} lacks {len(plan.missing)} variables of this network: {_join(plan.missing)}.')
  if plan.missing:
    logging.warning('%s lacks %d variables of this network, which start afresh: %s.',
                    prefix, len(plan.missing), _describe(_count_scopes(plan.missing)))
  if not plan.restored:
    return None
  saver = tf.train.Saver([variables[name] for name in plan.restored], name='initial_checkpoint')
  summary = _summarize(plan, prefix)

  def init_fn(*scaffold_and_session):
    saver.restore(scaffold_and_session[-1], prefix)
    logging.info(summary)
  return init_fn


class _Plan(NamedTuple):
  """Names of the model variables, by what becomes of them; only `restored` ones take the values of the checkpoint.

  `ranges` are those of 8-bit training where the checkpoint is of floating point and so cannot hold any.
  """
  restored: list
  excluded: list
  missing: list
  mismatched: list
  ranges: list


def _plan_restore(variables, shapes, initialize_last_layer, last_layers):
  plan = _Plan([], [], [], [], [])
  is_float = not fake_quantize.count_ranges(shapes)
  for name, variable in variables.items():
    if is_float and fake_quantize.is_of_range(name):
      plan.ranges.append(name)
    elif not initialize_last_layer and is_last_layer(name, last_layers):
      plan.excluded.append(name)
    elif name not in shapes:
      plan.missing.append(name)
    elif variable.shape.as_list() != shapes[name]:
      plan.mismatched.append(name)
    else:
      plan.restored.append(name)
  return plan


def _check_backbone(variables, shapes, prefix):
  """Refuses a checkpoint without any variable of the network's backbone."""
  scopes_in_network, scopes_in_checkpoint = _count_scopes(variables), _count_scopes(shapes)
  for scope in {row.scope for row in BACKBONES.values()}.intersection(scopes_in_network):
    if any(name in shapes for name in variables if name.startswith(scope + '/')):
      continue
    fitting = [variant for variant, row in BACKBONES.items() if row.scope in scopes_in_checkpoint]
    hint = f' The checkpoint fits --model_variant={" or ".join(fitting)}.' if fitting else ''
    raise InputError(f'{prefix} holds no variable of the backbone {scope}. Scopes of the checkpoint: '
                     f'{", ".join(scopes_in_checkpoint)}; of this network: {", ".join(scopes_in_network)}.{hint}')


def _check_shapes(plan, variables, shapes, prefix, initialize_last_layer, last_layers):
  """Refuses shapes that differ, except those of the last layers under 'auto'."""
  differing = {name: f'{name} is {shapes[name]} in the checkpoint and {variables[name].shape.as_list()} in this network'
               for name in plan.mismatched}
  outside_last_layers = [name for name in differing if not is_last_layer(name, last_layers)]
  if outside_last_layers:
    raise InputError(f'{prefix} is of another network: {_join([differing[name] for name in outside_last_layers])}. Compare the '
                     'flags of the network, such as --model_variant, --depth_multiplier and --aspp_convs_filters.')
  if differing and initialize_last_layer == 'auto':
    logging.warning('Last layers whose shapes differ start afresh: %s.', _join(list(differing.values())))
  elif differing:
    classes = [f' It was trained for {shapes[name][-1]} classes, this network has {variables[name].shape.as_list()[-1]}.'
               for name in differing if _has_entry_per_class(name)]
    raise InputError(f'{prefix} does not fit: {_join(list(differing.values()))}.{classes[0] if classes else ""} '
                     'Pass --initialize_last_layer=false to start the last layers afresh, or =auto for those alone that differ.')


def _has_entry_per_class(name):
  # In the decoder only convolutions that give logits have biases.
  return name.endswith('/biases') and is_last_layer(name, ['logits', 'decoder'])


def _summarize(plan, prefix):
  """What the restore did, a line for each outcome."""
  fresh = [*plan.excluded, *plan.mismatched, *plan.missing]
  lines = [f'Restored {len(plan.restored)} of {len(plan.restored) + len(fresh)} model variables from {prefix}: '
           f'{_describe(_count_scopes(plan.restored))}.']
  reasons = {'skipped by --initialize_last_layer=false': plan.excluded, 'skipped, other shape': plan.mismatched,
             'not in the checkpoint': plan.missing}
  lines += [f'  {reason}: {_describe(_count_scopes(names))}.' for reason, names in reasons.items() if names]
  lines.append(f'  newly initialised: {len(fresh)}{", " + _describe(_count_scopes(fresh)) if fresh else ""}.')
  if plan.ranges:
    lines.append(f'  The {fake_quantize.count_ranges(plan.ranges)} ranges of 8-bit training start afresh.')
  return '\n'.join(lines)


def _count_scopes(names):
  return collections.Counter(name.split('/')[0] for name in names)


def _describe(scope_counts):
  return ', '.join(f'{scope} {count}' for scope, count in scope_counts.items())


def _join(texts):
  further = f'; and {len(texts) - _MAX_LISTED} more' if len(texts) > _MAX_LISTED else ''
  return '; '.join(texts[:_MAX_LISTED]) + further
