"""Whether a compiled model computes what another implementation does: layers, logits, ids, NLL."""
