#!/usr/bin/env bash
# kind_of_driver.sh: prints which lock of this folder goes with this machine's NVIDIA driver: cuda13, cuda12, cpu where
# there is no GPU, driver-too-old for those before CUDA 12, and driver-unknown where nvidia-smi does not say.
nvidia-smi -L >/dev/null 2>&1 || { echo cpu; exit; }
cuda=$(nvidia-smi | sed -n 's/.*CUDA.* Version: *\([0-9][0-9]*\).*/\1/p' | head -n 1)
if [ -z "$cuda" ]; then # another layout, or N/A: by the driver's own version (docs.nvidia.com/deploy/cuda-compatibility)
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | sed -n 's/^\([0-9][0-9]*\)\..*/\1/p' | head -n 1)
    if [ -z "$driver" ]; then
        echo driver-unknown
        exit
    fi
    cuda=$((driver >= 580 ? 13 : driver >= 525 ? 12 : 11))
fi
if [ "$cuda" -ge 13 ]; then echo cuda13; elif [ "$cuda" -eq 12 ]; then echo cuda12; else echo driver-too-old; fi
