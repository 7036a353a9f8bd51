"""Files of a checkpoint: configuration, tensors, quantized weights."""
