#!/bin/bash
# Rendered by main.py from experiments.yaml, clusters/pyxis-whole-nodes.yaml and templates/pair.sh.j2: change those, not this file.
# By hand: `sbatch` it from anywhere, or `bash` it on a machine without Slurm.
#
# Both frameworks in one allocation, alternating: the same GPU and node, and a drift that hits both alike.

#SBATCH --job-name=pair_mnist_1_h100
#SBATCH --partition=batch
#SBATCH --account=my-account
#SBATCH --qos=normal
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=14
#SBATCH --mem=0G
#SBATCH --time=240
#SBATCH --exclusive

# 90 s before its time limit, or when it is preempted, a job of main.py stops and goes back into the queue; started again,
# it goes on where it was, and its output with it. B: the signal comes to this script, which has become the job by then.
#SBATCH --signal=B:USR2@90
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/home/me/jax vs torch/results/slurm/%x-%j.out"

set -euo pipefail
cd '/home/me/jax vs torch'

run=(/opt/main/bin/python -u -m harness.job --benchmark mnist --use_case 1 --gpu h100 --cluster pyxis-whole-nodes)

# By hand, the line above is what runs, with the arguments of this script at its end. From main.py it has two of its own
# in Slurm, `slurm FOLDER`: submitit's worker then runs the same job by the plan that it finds in FOLDER.
if [[ ${1:-} == slurm ]]; then
    export SUBMITIT_EXECUTOR=slurm
    run=(/opt/main/bin/python -u -m submitit.core._submit "$2")
else
    run+=("$@")
fi

# In a shell of salloc, which may be on the login node, the job starts on the first node of the allocation.
if [[ -n ${SLURM_JOB_ID:-} && -z ${SLURMD_NODENAME:-} ]]; then
    run=(srun --overlap --nodes=1 --ntasks=1 --cpus-per-task=14 "${run[@]}")
fi

# `exec` leaves no shell between the scheduler's signals and the job, which starts every process of a framework itself:
# by its Python, after its set-up lines and in its container (cluster.frameworks of experiments.yaml).
exec "${run[@]}"
