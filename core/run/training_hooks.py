"""What happens around the steps of a training session: progress lines, checkpoints, an end on Ctrl-C."""

import time

from absl import logging

from deeplab.core.base.errors import InputError
from deeplab.core.base.stop_signal import StopSignal
from deeplab.core.base.tf_compat import tf


def _clock(seconds):
  hours, rest = divmod(int(seconds), 3600)
  return f'{hours}:{rest // 60:02d}:{rest % 60:02d}'


class ProgressHook(tf.train.SessionRunHook):
  """Logs step, loss, learning rate, images per second and time left, and remembers the last global step."""

  def __init__(self, train_tensor, learning_rate, images_per_step, last_step, log_steps):
    """Creates the hook.

    Args:
      train_tensor: float32 scalar; its value is the loss, running it trains one step.
      learning_rate: float32 scalar.
      images_per_step: images that this process sees in one step.
      last_step: global step at which training ends.
      log_steps: global steps between two lines, 0 for none.
    """
    self._train_tensor = train_tensor
    self._learning_rate = learning_rate
    self._images_per_step = images_per_step
    self._last_step = last_step
    self._log_steps = log_steps
    self.global_step = 0
    self._logged_step, self._logged_time, self._runs = 0, time.monotonic(), 0

  def begin(self):
    # Read after the update, so that the step named is the number of updates that the weights have seen.
    with tf.control_dependencies([self._train_tensor]):
      self._step_tensor = tf.identity(tf.train.get_global_step().read_value())

  def after_create_session(self, session, coord):
    self.global_step, rate = session.run([tf.train.get_global_step(), self._learning_rate])
    logging.info('Training from step %d to %d, learning rate %.6g.', self.global_step, self._last_step, rate)
    self._logged_step, self._logged_time, self._runs = self.global_step, time.monotonic(), 0

  def before_run(self, run_context):
    return tf.train.SessionRunArgs([self._step_tensor, self._train_tensor, self._learning_rate])

  def after_run(self, run_context, run_values):
    self.global_step, loss, rate = run_values.results
    self._runs += 1
    if self._log_steps and self.global_step // self._log_steps > self._logged_step // self._log_steps:
      self._log(loss, rate)

  def leave_out(self, seconds, steps):
    """Lets time pass that is not training, in which others have made `steps` steps; it counts nowhere."""
    self._logged_time += seconds
    self._logged_step += steps

  def end(self, session):
    # Other workers may have made the last steps.
    self.global_step = session.run(tf.train.get_global_step())

  def _log(self, loss, rate):
    now = time.monotonic()
    seconds = max(now - self._logged_time, 1e-9)
    # Other workers advance the global step, too.
    seconds_left = (self._last_step - self.global_step) * seconds / (self.global_step - self._logged_step)
    logging.info('step %d/%d  loss %.4f  learning rate %.6g  %.1f images/s  %s left', self.global_step, self._last_step, loss,
                 rate, self._runs * self._images_per_step / seconds, _clock(seconds_left))
    self._logged_step, self._logged_time, self._runs = self.global_step, now, 0


class StopOnSignalHook(StopSignal, tf.train.SessionRunHook):
  """Lets Ctrl-C and SIGTERM end training after the step that runs, with a checkpoint; a second one ends the process at once.

  A StopSignal; its further attribute `is_training` says whether the session has begun a step.
  """

  is_training = False

  def after_create_session(self, session, coord):
    self.is_training = False
    if self.signal_number:
      coord.request_stop()

  def before_run(self, run_context):
    self.is_training = True

  def after_run(self, run_context, run_values):
    if self.signal_number:
      run_context.request_stop()


class SteadyTimer(tf.train.SecondOrStepTimer):
  """Triggers after a number of seconds of a clock that only goes forward; the one that TensorFlow asks can be set back."""
  _last_triggered_time: float

  def __init__(self, every_secs):
    super().__init__(every_secs=every_secs)

  def should_trigger_for_step(self, step):
    last_step = self.last_triggered_step()
    return last_step is None or step != last_step and time.monotonic() >= self._last_triggered_time + self._every_secs

  def update_last_triggered_step(self, step):
    """(seconds, steps) since the last time; (None, None) the first time."""
    now, last_step = time.monotonic(), self.last_triggered_step()
    elapsed = (None, None) if last_step is None else (now - self._last_triggered_time, step - last_step)
    self._last_triggered_step, self._last_triggered_time = step, now
    return elapsed


class _SaveTimer(SteadyTimer):
  """Is due after a time of training, and at each multiple of a number of steps, if there is one."""

  def __init__(self, every_secs, every_steps):
    super().__init__(every_secs=every_secs)
    self._interval_steps = every_steps

  def should_trigger_for_step(self, step):
    last_step = self.last_triggered_step()
    is_due = self._interval_steps and last_step is not None and step // self._interval_steps > last_step // self._interval_steps
    return bool(is_due) or super().should_trigger_for_step(step)

  def leave_out(self, seconds):
    if self.last_triggered_step() is not None:
      self._last_triggered_time += seconds


class CheckpointHook(tf.train.CheckpointSaverHook):
  """tf.train.CheckpointSaverHook by seconds and by steps; that of TensorFlow knows one of them."""

  def __init__(self, folder, save_secs, save_steps, scaffold, listeners):
    """Creates the hook.

    Args:
      folder: the training folder.
      save_secs: seconds of training between two checkpoints.
      save_steps: further ones are saved at multiples of this number of steps; None: none.
      scaffold: tf.train.Scaffold with the saver.
      listeners: list of tf.train.CheckpointSaverListener.
    """
    super().__init__(folder, save_secs=save_secs, scaffold=scaffold, listeners=listeners)
    self._timer = _SaveTimer(save_secs, save_steps)
    self.is_urgent = False

  def leave_out(self, seconds):
    """Lets time pass that is not training; the next checkpoint comes so much later."""
    self._timer.leave_out(seconds)

  def save_now(self, session):
    """Saves the present step, unless that is saved; listeners find `is_urgent` true."""
    step = session.run(self._global_step_tensor)
    if step != self._timer.last_triggered_step():
      self._timer.update_last_triggered_step(step)
      self.is_urgent = True
      self._save(session, step)
      self.is_urgent = False


class FiniteWeightsListener(tf.train.CheckpointSaverListener):
  """Refuses to save weights that are not finite, so that the last good checkpoint stays the newest."""

  def begin(self):
    # Finite exactly if all are, up to weights of 1e19; a test of each element would take four ops for each variable.
    losses = [tf.nn.l2_loss(variable) for variable in tf.global_variables() if variable.dtype.is_floating]
    self._all_finite = tf.math.is_finite(tf.add_n(losses))

  def before_save(self, session, global_step_value):
    if not session.run(self._all_finite):
      raise InputError(f'Training has diverged: weights are not finite at step {global_step_value}, no checkpoint of them is '
                       'saved. Start again from the last one with a smaller --base_learning_rate.')
