"""The operator on CUDA by Triton: logsumexps and pair sums of r·c over tiles that are not stored.

`check.unavailable(device)` gives the reason not to use it, without importing Triton; `launch` has
the four functions, `kernels` what runs on the GPU.
"""
