"""What every room stands on: TensorFlow itself, the error for what a user can put right, files that others read, host memory.

Not here: anything that knows of networks, images or runs. Begin with tf_compat.py, the one place that imports TensorFlow.
"""
