"""From features to what the logits are computed of: ASPP, the decoder, the dense prediction cell, one figure of a paper per file.

Not here: the backbones (core/networks), and losses and predictions (model.py, train_utils.py). Begin with aspp.py.
"""
