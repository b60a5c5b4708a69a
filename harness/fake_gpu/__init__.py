"""A machine with a GPU that is none: CUDA's libraries in C++ that compute nothing and write down every call.

docs/fake-gpu.md says what it promises. `build.py` makes it, `environment.py` puts a process on it, and in that process
`calls.py` reads what was called. Nothing that runs on it is a result.
"""
