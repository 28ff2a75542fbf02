"""Measuring a network on a split, by eval.py and by a run that judges itself: the graph, the sum, the record of a run.

Not here: the figures themselves and how they look (core/report), what surrounds the steps of training (core/run). Begin with
evaluation.py.
"""
