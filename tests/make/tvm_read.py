#!/usr/bin/env python3
"""Reads a bundle with TVM's own reader and prints, as JSON, each tensor's dtype, shape and SHA-256.

    pip install apache-tvm numpy
    tests/make/tvm_read.py BUNDLE
"""
import hashlib
import json
import sys

import tvm
from tvm.contrib import tvmjs

tensors, _ = tvmjs.load_tensor_cache(sys.argv[1], tvm.cpu())
report = {}
for name, tensor in tensors.items():
    array = tensor.numpy()
    report[name] = [str(tensor.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
json.dump(report, sys.stdout)
