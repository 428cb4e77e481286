"""Inference with models that Outcrop did not train: which of them are stacks of layers, computed one by one."""
