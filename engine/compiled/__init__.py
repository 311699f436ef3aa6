"""Models on devices that run kernels: weights as kernels read them, passes of few and many rows."""
