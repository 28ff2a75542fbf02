"""A process that is told to stop: it learns so at once, also while its main thread is inside of a call of TensorFlow."""

import os
import signal
import sys
import threading
import time

from absl import logging

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HANDLER_POLL_SECS = 0.001


class StopSignal:
  """Notes Ctrl-C (SIGINT) and SIGTERM; a second one ends the process at once. A context manager, for the main thread.

  Python runs handlers in the main thread, between two steps of its own: a call of TensorFlow that waits for a lost process would
  hold them up for ever. So another thread reads the numbers of the signals from a pipe. Around the context, the signals have
  their usual meaning.

  Attributes:
    signal_number: None until a signal has come.
    told: threading.Event, set when it has come.
    ended: threading.Event, set at the end of the context.
  """

  def __init__(self, react=None):
    """Creates the context.

    Args:
      react: function of this object, called in a thread of its own when the signal has come; it may end the process.
    """
    self._react = react
    self.signal_number = None
    self.told, self.ended = threading.Event(), threading.Event()

  def __enter__(self):
    self._reading_end, self._writing_end = os.pipe()
    os.set_blocking(self._writing_end, False)
    self._thread = threading.Thread(target=self._listen, daemon=True)
    self._thread.start()
    self._usual_wakeup = signal.set_wakeup_fd(self._writing_end)
    self._usual_handlers = {number: signal.signal(number, self._await_note) for number in _SIGNALS}
    return self

  def __exit__(self, *unused_exception):
    for number, handler in self._usual_handlers.items():
      signal.signal(number, handler)
    signal.set_wakeup_fd(self._usual_wakeup)
    self.ended.set()
    os.close(self._writing_end)
    self._thread.join()
    os.close(self._reading_end)

  def _await_note(self, unused_number, unused_frame):
    """The handler; after it, the main thread finds the signal noted."""
    # No lock: the main thread may hold it just now.
    while self.signal_number is None:
      time.sleep(_HANDLER_POLL_SECS)

  def _listen(self):
    number = self._next()
    if number is None:
      return
    self.signal_number = number
    self.told.set()
    logging.warning('%s: ending after this step with a checkpoint; once more ends at once.', signal.Signals(number).name)
    if self._react:
      threading.Thread(target=self._react, args=(self,), daemon=True).start()
    number = self._next()
    if number is not None:
      end_process(128 + number, f'{signal.Signals(number).name} once more: ends at once.')

  def _next(self):
    """Number of the next signal, or None at the end of the context."""
    while True:
      byte = os.read(self._reading_end, 1)
      if not byte:
        return None
      if byte[0] in _SIGNALS:
        return byte[0]


def end_process(exit_code, message):
  """Ends the process from any thread, whatever its other threads wait for.

  Args:
    exit_code: of the process.
    message: last line of the log; an error unless the exit code is 0.
  """
  logging.log(logging.ERROR if exit_code else logging.INFO, '%s', message)
  logging.flush()
  sys.stdout.flush()
  os._exit(exit_code)
