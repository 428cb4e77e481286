"""What tests/device/fake_gpu.py is made of: streams, memory, torch's operators and the CPU kernels."""
